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
import gc
import importlib
import importlib.machinery
import io
import json
import os
import random
import runpy
import signal
import socket
import threading
import types
from typing import Any, NoReturn

_MAX_DATAGRAM = 1 << 16


def serve(sock: socket.socket, modules: list[str], program: list[str]) -> None:
    """Import, then fork as often as asked; returns in the trainers only."""
    _find_as(program)
    gc.disable()  # what imports make stays: looking for garbage there takes a tenth of the time
    if error := _imported(modules):
        _send(sock, {"error": error})
        sys.exit(1)
    gc.freeze()  # else the collector would write to memory that all share, and so copy it
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
    """What Python does with such a command line, in this process."""
    first, *arguments = program
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    if first == "-m":
        sys.argv = ["-m", *arguments[1:]]
        _as_main(arguments[0])
    elif first == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        sys.argv = program
        if os.path.isdir(first):
            _as_main("__main__", alter_argv=False)
        else:
            path = main.__file__ = os.path.abspath(first)
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
            main.__dict__["__cached__"] = None
            try:
                with io.open_code(path) as file:
                    source = file.read()
            except OSError as exc:
                sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {exc}\n")
                sys.exit(2)
            code = compile(source, path, "exec", dont_inherit=True)
            exec(code, main.__dict__)


def _as_main(module: str, **options: Any) -> None:
    runpy._run_module_as_main(module, **options)  # type: ignore[attr-defined]  # as Python calls it


def _find_as(program: list[str]) -> None:
    """Look for modules where the program will, which is in its own folder first."""
    if sys.flags.safe_path:
        return
    first = program[0]
    if first == "-m":
        sys.path.insert(0, os.getcwd())
    elif first == "-c":
        sys.path.insert(0, "")
    elif os.path.isdir(first):
        sys.path.insert(0, os.path.abspath(first))
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(first)))


def leave(ours: frozenset[str], error: BaseException | None) -> NoReturn:
    """End a trainer as Python would, but for what was there before the fork.

    To take that apart would copy all of it: half a second of processor time where it is torch.

    Args:
        ours: the modules that were there.
        error: what the program has ended with.
    """
    code = _reported(error)
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends what it forks
    atexit._run_exitfuncs()
    modules = [module for name, module in [*sys.modules.items()] if name not in ours]
    for module in [sys.modules["__main__"], *modules]:
        getattr(module, "__dict__", {}).clear()  # files are flushed when they are forgotten
    if error is not None:  # it holds what its frames hold
        error.__traceback__ = error.__context__ = error.__cause__ = None
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _reported(error: BaseException | None) -> int:
    """The exit code; the traceback is written, without our own frames."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    sys.excepthook(type(error), error, traceback)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    sock.send(json.dumps(message).encode())


def _main() -> None:
    sock = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    program = sys.argv[2:]
    serve(sock, sys.argv[1].split(","), program)
    sys.modules["ringd preloader"] = sys.modules["__main__"]
    ours = frozenset(sys.modules)
    ended: BaseException | None = None
    try:
        run(program)
    except BaseException as exc:
        ended = exc
    leave(ours, ended)


if __name__ == "__main__":
    _main()
