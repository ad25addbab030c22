"""The preloader: has imported what every trainer of a job imports, and is forked for each of them.

``python [OPTIONS] preloader.py MODULE[,MODULE...] PROGRAM [ARGUMENTS]``, where PROGRAM is a script,
``-m MODULE`` or ``-c COMMAND``: what Python itself would be given. It is run by the trainers' own
Python and imports nothing of ringd, so that a trainer finds nothing that it would not find without.

Its standard input is a socket of datagrams (JSON), and its end that of the preloader. First it
sends ``{}``, or ``{"error": TEXT}`` and ends. Then it is asked, and answers, one thing at a time:

- ``{"fork": RANK}`` with three descriptors, of a trainer's stdout and stderr, and of a file with
  its environment (JSON): ``{"pid": PID}``.
- ``{"reap": PID}``, once that has ended: ``{"code": CODE}``, negative: the signal that ended it.
"""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # this folder, before anything is imported

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import runpy
import socket
import types
from typing import Any

_python = ctypes.pythonapi
_python.PyRun_SimpleStringFlags.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
_python.PyRun_AnyFileExFlags.argtypes = (
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p,
)  # fmt: skip
_MAX_DATAGRAM = 1 << 16


def serve(sock: socket.socket, modules: list[str], program: list[str]) -> None:
    """Import, then fork as often as asked; returns in the trainers only."""
    _find_as(program)
    gc.disable()  # what imports make stays: looking for garbage there takes a tenth of the time
    if error := _imported(modules):
        _send(sock, {"error": error})
        sys.exit(1)
    gc.freeze()  # else the collector would write to memory that all share, and so copy it
    atexit.register(_write_open_files)  # the first of all, so it will be called last
    gc.enable()
    _send(sock, {})
    while True:
        data, fds, _, _ = socket.recv_fds(sock, _MAX_DATAGRAM, 3)
        if not data:
            os._exit(0)
        asked = json.loads(data)
        if "reap" in asked:
            _, status = os.waitpid(asked["reap"], 0)
            _send(sock, {"code": os.waitstatus_to_exitcode(status)})
            continue
        pid = os.fork()
        if not pid:
            sock.close()
            return _become_trainer(fds)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # it has done so itself, and runs something else by now
            os.setpgid(pid, pid)
        _send(sock, {"pid": pid})


def _imported(modules: list[str]) -> str:
    """What went wrong; "": nothing."""
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as exc:  # whatever a module does
            return f"{module!r} can't be imported: {type(exc).__name__}: {exc}"
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"to import them started {threads - 1} threads, which a fork would lack"
    return ""


def _become_trainer(fds: list[int]) -> None:
    os.setpgid(0, 0)
    *outputs, environment = fds
    for number, fd in enumerate(outputs, start=1):
        os.dup2(fd, number)
        os.close(fd)
    with open(environment, "rb") as file:
        env = json.load(file)
    os.environ.clear()  # noqa: TID251 - there is nothing of ringd here
    os.environ.update(env)  # noqa: TID251
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all ranks would draw the same numbers


def run(program: list[str]) -> None:
    """What Python does with such a command line, by the same functions of its own."""
    first, *arguments = program
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = program
    if first == "-m":
        sys.argv = ["-m", *arguments[1:]]
        _run_as_main(arguments[0])
    elif first == "-c":
        sys.argv = ["-c", *arguments[1:]]
        _end_after(_python.PyRun_SimpleStringFlags(arguments[0].encode(), None))
    elif pkgutil.get_importer(first) is not None:  # a folder, or a zip file
        _run_as_main("__main__", alter_argv=False)
    else:
        path = os.fsencode(os.path.abspath(first))
        _end_after(_python.PyRun_AnyFileExFlags(_opened(path), path, 1, None))


def _opened(path: bytes) -> int:
    """A FILE of C's."""
    try:
        with open(path, "rb"):
            pass
    except OSError as exc:
        name = os.fsdecode(path)
        said = f"[Errno {exc.errno}] {exc.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {name!r}: {said}\n")
        sys.exit(2)
    fopen = ctypes.CDLL(None).fopen
    fopen.restype = ctypes.c_void_p
    file: int = fopen(path, b"rb")
    return file


def _end_after(failed: int) -> None:
    """Python has written what the program raised, if ``failed``; after a Ctrl-C it also knows that
    it is to end by the signal."""
    if failed and getattr(sys, "last_type", None) is not KeyboardInterrupt:
        sys.exit(1)


def _run_as_main(module: str, **options: Any) -> None:
    try:
        runpy._run_module_as_main(module, **options)  # type: ignore[attr-defined]
    except SystemExit:
        raise
    except BaseException as exc:
        traceback = exc.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        exc.__traceback__ = traceback
        sys.excepthook(type(exc), exc, traceback)
        sys.excepthook = lambda *told: None
        raise


def _find_as(program: list[str]) -> None:
    """Look for modules where the program will, which is in its own folder first."""
    if sys.flags.safe_path:
        return
    first = program[0]
    if first == "-m":
        sys.path.insert(0, os.getcwd())
    elif first == "-c":
        sys.path.insert(0, "")
    elif pkgutil.get_importer(first) is not None:
        sys.path.insert(0, os.path.abspath(first))
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(first)))


def _write_open_files() -> None:
    """What a trainer has opened and hung on what was there before the fork: nobody will find that
    when Python forgets its modules, as the collector passes over them."""
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase):
            with contextlib.suppress(Exception):
                found.flush()


def _leave_libraries_standing() -> None:
    """At the end, when Python has finished, the system takes libraries apart, the latest first.

    Let it stop when it comes to those that were there before the fork: torch's take a fifth of a
    second of processor time. What C's streams hold is written before.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # glibc's; elsewhere it takes that time
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    sock.send(json.dumps(message).encode())


def _main() -> None:
    sock = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    program = sys.argv[2:]
    serve(sock, sys.argv[1].split(","), program)
    _leave_libraries_standing()
    sys.modules["ringd preloader"] = sys.modules["__main__"]
    run(program)


if __name__ == "__main__":
    _main()
