"""How an operation stands, in the flight recorder and in what is read from its dumps."""

DONE, FAILED, IN_FLIGHT = "done", "failed", "in flight"
