"""Who is in the group: a pure state machine, the service around it, the daemon's agent."""
