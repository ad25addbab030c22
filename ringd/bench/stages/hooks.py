"""Which methods are marked. They are class attributes, exchanged before there is an instance."""

from __future__ import annotations

import socket
from typing import Any

from ringd.bench.stages import marks
from ringd.bench.stages.marks import Recorder


def trace_daemon(recorder: Recorder) -> None:
    """Mark what this process, which is to be a daemon, does."""
    from ringd.daemon.session import Session
    from ringd.engine.landing import CopyLanding, FoldLanding
    from ringd.engine.operation import Operation
    from ringd.transport.tcp import TcpChannel

    for owner, name, what in (
        (Session, "_readable", marks.READ),
        (Session, "_handle", marks.ENTER),
        (Session, "_send", marks.ANSWER),
        (TcpChannel, "send", marks.SEND),
        (TcpChannel, "_writable", marks.SEND),
        (TcpChannel, "_readable", marks.RECEIVE),
        (Operation, "take_data", marks.FOLD),
        (FoldLanding, "filled", marks.FOLD),
        (FoldLanding, "complete", marks.FOLD),
        (CopyLanding, "complete", marks.FOLD),
    ):
        setattr(owner, name, recorder.during(what, getattr(owner, name)))


def trace_trainer(recorder: Recorder) -> None:
    """Mark when this process, which is to be a trainer, sends a request and has an answer."""
    from ringd_client._transport import Transport

    plain_init, plain_send, plain_receive = Transport.__init__, Transport.send, Transport.receive
    plain_receive_soon = Transport.receive_soon
    mark = recorder.mark

    def init(self: Any, sock: socket.socket) -> None:
        plain_init(self, sock)
        send_now = self.send_now

        def marked_send(*message: Any) -> int:
            mark(marks.REQUEST)
            sent: int = send_now(*message)
            return sent

        self.send_now = marked_send

    def send(self: Any, message: bytes) -> bool:
        mark(marks.REQUEST)
        return plain_send(self, message)

    def receive(self: Any, *, wait: bool) -> memoryview | None:
        found = plain_receive(self, wait=wait)
        if found is not None:
            mark(marks.FINISH)
        return found

    def receive_soon(self: Any) -> int:
        size = plain_receive_soon(self)
        if size >= 0:
            mark(marks.FINISH)
        return size

    for marked in (init, send, receive, receive_soon):
        setattr(Transport, "__init__" if marked is init else marked.__name__, marked)
