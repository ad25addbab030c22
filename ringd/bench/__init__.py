"""``ringd bench``: ringd and its peers, measured in turn by one method.

``main`` drives a ``crew`` of workers. ``worker`` is one rank of one implementation, ``subjects``
are the implementations, ``tensors`` what they work on and what must come out. ``ops`` says what
operations there are and how they are counted, ``matrix`` which rows are measured; ``figures``
turns samples into rows, ``table`` prints them.
"""
