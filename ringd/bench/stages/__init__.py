"""``ringd bench --stages``: where the time of a blocking call goes, on the whole path of a rank.

``main`` drives two jobs in turns, an ordinary one and a traced one. ``launcher`` is the ``ringd
run`` of the latter: its daemons run in ``daemon``, which has ``hooks`` wrap some of their methods;
its trainers are ``worker``. Each process keeps ``marks``, from which ``path`` makes the stages of
each call, ``figures`` rows, and ``table`` tables. What is not traced runs the code as it is.
"""
