"""``ringd bench --torch``: the backends of torch.distributed, ringd beside gloo.

``main`` drives a crew of ``worker`` processes, each one rank under one backend. ``training`` is the
training step that they run, ``figures`` turns samples into rows, ``table`` prints them.
"""
