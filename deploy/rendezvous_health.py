"""The health check of a rendezvous: whether it answers to one who knows the job's secret.

It takes the rendezvous' own settings from RINGD_... variables, and asks at RINGD_RENDEZVOUS. A
bare connection to the port would prove less, and be logged as a stranger's.
"""

import asyncio
import sys

from ringd.config import environment
from ringd.config.loader import load
from ringd.config.secret import load_secret
from ringd.errors import RingdError
from ringd.rendezvous.observer import ask_standing, observer_credentials
from ringd.transport.base import Address
from ringd.transport.tcp import TcpTransport

LIMIT_S = 3.0


async def check() -> None:
    """Raises RingdError: no answer, or not to us."""
    loaded = load({}, environ=environment.snapshot())
    loaded.require("rendezvous")
    at = loaded.settings.rendezvous
    assert at is not None
    await ask_standing(
        TcpTransport(),
        observer_credentials(loaded.settings.job_id, load_secret(loaded.settings)),
        Address(at.host, at.port),
        deadline=asyncio.get_running_loop().time() + LIMIT_S,
    )


if __name__ == "__main__":
    try:
        asyncio.run(check())
    except RingdError as error:
        sys.exit(str(error))
