"""How long a rendezvous waits, unless it is told otherwise."""

DEAD_AFTER_S = 3.0
"""A daemon that is silent for so long is dead."""
LAST_CALL_S = 3.0
"""How long after the last arrival a group that may be smaller waits for others."""
GATHER_LINK_REPORTS_S = 0.150
"""How long a report about a link waits for others, and for a sign that the accused is dead."""
