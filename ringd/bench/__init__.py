"""``ringd bench``: ringd and its peers, measured in turn by one method.

``main`` drives a ``crew`` of workers. ``worker`` is one rank of one implementation, ``subjects``
are the implementations, ``tensors`` what they work on and what must come out. ``ops`` says what
is measured and how it is counted, ``figures`` turns samples into rows, ``table`` prints them.
"""
