"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell starts what runs in its background with SIGINT ignored, and that is inherited; the
# processes that tests start are to take it as those of a user in the foreground do.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
