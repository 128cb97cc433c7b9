"""One deadline over all that a synchronous call does on a socket.

A socket's timeout holds for each read, so a reply that trickles in outlives it. Here every read and
write gets what is left of the caller's time instead.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable
from threading import local
from typing import Any, Final

from redis.connection import AbstractConnection

# When less of the deadline has passed, a timeout of the whole of it ends soon enough.
NEARLY: Final = 0.9
LOOK: Final = 0.001  # 0 would raise something else


class _Left(local):
    until: float | None = None
    looked = False

    def to_read(self, otherwise: float | None) -> float | None:
        """The same for a read, which may be one look late: a process that stood still finds what came meanwhile."""
        if self.until is None or self.looked or self.until > time.monotonic():
            return self.seconds(otherwise)
        self.looked = True
        return LOOK

    def seconds(self, otherwise: float | None) -> float | None:
        """What is left, ``otherwise`` when there is no deadline; raises TimeoutError when nothing is left."""
        if self.until is None:
            return otherwise
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline passed")
        return left


_left = _Left()


class Within:
    """All Redis I/O of this thread inside the block ends within ``seconds``, and with the block around it."""

    __slots__ = ("_around", "_looked", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        around, until = _left.until, time.monotonic() + self._seconds
        self._around, self._looked, _left.looked = around, _left.looked, False
        _left.until = until if around is None or until < around else around

    def __exit__(self, *_: object) -> None:
        _left.until, _left.looked = self._around, self._looked


KERNEL_WATCHES: Final = sys.platform == "linux"  # elsewhere the option takes another shape


def _watch(sock: socket.socket, seconds: float) -> None:
    sock.settimeout(None)
    value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))  # a timeval
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)


class DeadlineSocket:
    """A socket whose blocking reads and writes also obey the thread's deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._timeout = sock.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._socket.settimeout(timeout)

    def recv(self, *args: Any) -> bytes:
        self._hurry(_left.to_read)
        return self._socket.recv(*args)

    def recv_into(self, *args: Any) -> int:
        self._hurry(_left.to_read)
        return self._socket.recv_into(*args)

    def sendall(self, *args: Any) -> None:
        self._hurry(_left.seconds)
        self._socket.sendall(*args)

    def bare(self) -> socket.socket | None:
        """The socket itself, on which reads and writes give up after its timeout by the kernel's watch.

        That saves the system calls by which Python sets a timeout and then waits. None unless the timeout is
        about what the deadline has left, and where the socket is not a plain one.
        """
        whole, left = self._timeout, _left.seconds(None)
        if not KERNEL_WATCHES or type(self._socket) is not socket.socket:
            return None
        if not whole or left is None or not NEARLY * whole <= left <= whole:
            return None
        if self._socket.gettimeout() is not None:
            _watch(self._socket, whole)
        return self._socket

    def _hurry(self, left: Callable[[float | None], float | None]) -> None:
        if self._timeout != 0:  # 0 asks whether something is there, and does not wait
            self._socket.settimeout(left(self._timeout))


def with_deadline(connection_class: type[AbstractConnection]) -> type[AbstractConnection]:
    """The same connection class, obeying ``Within``, connecting included."""

    class DeadlineConnection(connection_class):  # type: ignore[misc, valid-type]
        def _connect(self) -> DeadlineSocket:
            self.socket_connect_timeout = _left.seconds(self.socket_timeout)
            return DeadlineSocket(super()._connect())

    return DeadlineConnection
