"""``ringd demo``: the main job on real input, shown.

One module per part: ``verify`` (each call against gloo or its definition), ``traffic`` (bytes on
the wire beside the formula), ``timing``, ``training``, ``fault``. These give orders and judge
answers; they run in the process of the command, without torch. What the ranks do of each part is
the module of the same name in ``workers``. ``main`` puts the parts in order, ``cases`` says what
part 1 verifies, ``job`` starts the ranks,
``ledger`` reads their accounting, ``report`` and ``plots`` show what came out.
"""
