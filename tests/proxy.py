"""A TCP proxy of threads that loses, delays, cuts and trickles replies when told to."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from testproject.services import free_port

Mode = Literal["pass", "delay", "swallow_reply", "swallow_and_close", "trickle", "reset", "refuse", "dead"]

TICK = 0.02
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Stands before a server on loopback; ``set(mode)`` changes what happens to every connection from now on.

    pass: nothing. delay: replies come ``seconds`` late. swallow_reply: requests arrive, replies vanish.
    swallow_and_close: the same, then the connection closes. trickle: replies come byte by byte.
    reset: a request is carried out, then the connection is reset. refuse: no connection is taken, open ones are reset.
    dead: nothing passes in either direction.
    """

    def __init__(self, port: int, mode: Mode = "pass", seconds: float = 0.0) -> None:
        self.target = port
        self.mode: Mode = mode
        self.seconds = seconds
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = int(self._listener.getsockname()[1])
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True, args=(self._listener,)).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def open_links(self) -> int:
        return len(self._links)

    def set(self, mode: Mode, seconds: float = 0.0) -> None:
        """Behave like this from now on; ``seconds`` is the delay of a reply."""
        before, self.mode, self.seconds = self.mode, mode, seconds
        if mode == "refuse":
            _end(self._listener)
            self.cut()
        elif before == "refuse":
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, daemon=True, args=(self._listener,)).start()

    def cut(self) -> None:
        for link in list(self._links):
            link.reset()

    def silence(self) -> None:
        """Nothing passes any more on the connections that are open, and nobody hears of it; new ones are well."""
        for link in list(self._links):
            link.is_silent = True

    def close(self) -> None:
        _end(self._listener)
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()  # what the server refuses, so does the proxy
            else:
                self._join(near, far)

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self, near, far)
        with self._lock:
            self.accepted += 1
            self._links.add(link)
        link.start()

    def forget(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)


class Link:
    """One connection through the proxy: a thread for each direction."""

    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self.proxy, self.near, self.far = proxy, near, far
        self.is_silent = False

    def start(self) -> None:
        for carry in (self._requests, self._replies):
            threading.Thread(target=self._until_closed, daemon=True, args=(carry,)).start()

    def reset(self) -> None:
        """Close so that the client gets RST rather than FIN."""
        with suppress(OSError):
            self.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close(socket.SHUT_RD)

    def close(self, how: int = socket.SHUT_RDWR) -> None:
        _end(self.near, how)
        _end(self.far)
        self.proxy.forget(self)

    def _until_closed(self, carry: Callable[[], None]) -> None:
        with suppress(OSError):  # the other thread has closed it, or a peer has
            carry()
        self.close()

    def _requests(self) -> None:
        while chunk := self.near.recv(65536):
            if self.proxy.mode != "dead" and not self.is_silent:
                self.far.sendall(chunk)

    def _replies(self) -> None:
        while chunk := self.far.recv(65536):
            match self.proxy.mode:
                case "swallow_reply" | "dead":
                    continue
                case "swallow_and_close":
                    return
                case "reset":
                    return self.reset()
                case "trickle":
                    self._trickle(chunk)
                case "delay":
                    time.sleep(self.proxy.seconds)
                    self.near.sendall(chunk)
                case _:
                    self.near.sendall(chunk)

    def _trickle(self, chunk: bytes) -> None:
        for place in range(len(chunk)):
            self.near.sendall(chunk[place : place + 1])
            time.sleep(TICK)


def _end(end: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    # shutdown() wakes the thread that waits in accept() or recv(); close() alone does not.
    with suppress(OSError):
        end.shutdown(how)
    end.close()
