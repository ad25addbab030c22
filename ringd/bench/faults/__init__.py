"""``ringd bench --faults``: how long from an event to what the other ranks make of it.

``main`` drives rounds of ``kinds`` of faults on a ``group`` of real processes, whose trainers are
``worker``. ``sockets`` takes hold of another process's connections, ``network`` gives each rank a
network of its own that can be cut. ``figures`` turns what was seen into rows, ``table`` prints
them.
"""
