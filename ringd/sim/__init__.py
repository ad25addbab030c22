"""Simulation: the real engine, rendezvous and daemon logic over memory and virtual time.

``clock`` is the loop, ``weather`` is chance on the network, ``cluster`` sets up nodes,
``scenario`` draws a job and a fault from a seed and checks what comes out.
Run it by ``python -m ringd.sim --seeds 200``.
"""
