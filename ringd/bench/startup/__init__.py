"""``ringd bench --startup``: from the start of a job's processes to their end, beside gloo.

``main`` starts the ranks, as torchrun would, over and over; each is a ``trainer``. ``children``
waits for all that they leave behind, so that its processor time counts too.
"""
