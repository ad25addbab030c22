"""What the command's exit code says. ``ringd run`` passes on the code of the trainer instead."""

from __future__ import annotations

from ringd import errors

OK = 0
FAILED = 1
"""A check did not hold (demo, bench), or an error nobody foresaw."""
USAGE = 2
"""The command line, a setting, a taken port or the platform is at fault; nothing was started."""
RENDEZVOUS = 3
"""The group could not be formed, or refused us."""
COLLECTIVE = 4
"""A collective, a peer or a daemon failed while the job ran."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells count."""
TERMINATED = 143
"""SIGTERM, likewise. A daemon and a rendezvous that are told to end do so in order: OK."""

MEANING = """\
Exit codes: 0 fine; 1 a check failed, or an unforeseen error; 2 usage or settings; \
3 rendezvous; 4 a collective or a peer failed; 130 interrupted, 143 terminated. \
`ringd run` passes on the trainer's own code."""

_BY_ERROR: tuple[tuple[type[errors.RingdError], int], ...] = (
    (errors.ConfigError, USAGE),
    (errors.UnsupportedPlatformError, USAGE),
    (errors.AddressInUseError, USAGE),
    (errors.InvalidArgumentError, USAGE),
    (errors.RendezvousError, RENDEZVOUS),
    (errors.CollectiveError, COLLECTIVE),
    (errors.TooManyOperationsError, COLLECTIVE),
    (errors.MemoryInUseError, COLLECTIVE),
    (errors.DaemonLostError, COLLECTIVE),
    (errors.ArenaFullError, COLLECTIVE),
    (errors.ResourceError, COLLECTIVE),
    (errors.CommunicatorClosedError, COLLECTIVE),
)


def exit_code(error: errors.RingdError) -> int:
    """The exit code for an error that ended a command."""
    for cls, code in _BY_ERROR:
        if isinstance(error, cls):
            return code
    return FAILED
