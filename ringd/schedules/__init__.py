"""Schedules: which rank sends which chunk to whom, as data that can be proved.

``build`` gives a schedule, ``select`` names the algorithm behind "auto", ``formula`` says what it
costs, ``proof`` shows that a whole group's schedules are right. All of it is pure.
"""
