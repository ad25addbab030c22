"""torch comes late: in a thread of its own, while operations run on numpy."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_torch_is_ready = False


def torch_is_ready() -> bool:
    """Whether a loader of this process has brought torch in completely."""
    return _torch_is_ready


def import_torch() -> None:
    """Import torch for use on one core: a daemon must not take the trainers' cores.

    Raises:
        Exception: whatever the import of a broken installation raises.
    """
    _map_library_without_gil()
    import torch

    torch.set_num_threads(1)


def _map_library_without_gil() -> None:
    """Bring torch's big library into the process before the import asks for it.

    The import holds the GIL while it is linked: 0.2 to 0.3 s in which no other thread runs
    (measured; 0.03 to 0.07 s remain). Calls through ctypes release it. Whatever goes wrong
    here goes wrong again, and is told, in the import.
    """
    spec = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    dlopen = getattr(ctypes.CDLL(None), "dlopen", None)
    if dlopen is None or not library.exists():
        return
    dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    dlopen.restype = ctypes.c_void_p
    dlopen(os.fsencode(library), os.RTLD_LAZY | os.RTLD_LOCAL)


class TorchLoader:
    """Imports torch once, in the background.

    Attributes:
        failure: why torch will not come, as "type: text"; None so far.

    Args:
        load: what to run in the thread.
    """

    def __init__(self, load: Callable[[], None] = import_torch) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = False
        self.failure: str | None = None

    @property
    def ready(self) -> bool:
        """Whether torch is there, completely."""
        return self._ready

    def start(self) -> None:
        """Begin, unless begun already; returns at once and never raises.

        An interpreter that exits before the end of the import waits for it, unless
        :meth:`end_process` does it: start it when the first 16-bit operation comes, not always.
        """
        with self._lock:
            if self._thread is not None:
                return
            # Not a daemon thread: an exit in the middle of the import runs C++ destructors beside
            # constructors, and aborts (seen). It waits instead: seconds, on a busy machine.
            self._thread = threading.Thread(target=self._run, name="torch-loader", daemon=False)
            try:
                self._thread.start()
            except RuntimeError as error:
                self.failure = f"{type(error).__name__}: {error}"

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the attempt.

        Returns:
            :attr:`ready`.
        """
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(timeout_s)
        return self._ready

    def end_process(self) -> None:
        """End this process now, in order, if the import still runs: nobody needs it any more.

        For the last line of a program that did all that it had to; its exit code is 0.
        """
        if self._thread is not None and self._thread.is_alive():
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _run(self) -> None:
        global _torch_is_ready
        try:
            self._load()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            return
        self._ready = _torch_is_ready = True
