"""``ringd lab``: a LAN on one machine, several hosts with a switch between them.

A host is a network namespace with an address, a name and an /etc/hosts of its own. ``spec`` says
what is wanted, ``etc_hosts`` what a host believes of names, ``wiring`` makes namespaces, cables and
rates with ``ip`` and ``tc``, ``lab`` puts a whole one up and takes it down. Where a network is to
have delay, jitter, loss or cuts in one direction, its switch is a program, ``switch``, which asks
``weather`` when a packet is due. ``keeper`` takes a lab down whose maker was killed.
"""
