"""``ringd bench``: ringd and its peers, measured in turn by one method.

``main`` drives, ``worker`` is one rank of one implementation, ``subjects`` are the
implementations, ``figures`` turns samples into rows, ``table`` prints them.
"""
