"""Nodes of a Cluster and Sentinels that need no server of their own: they answer by a table, or have Redis answer."""

import socket
import threading
from collections import defaultdict
from contextlib import suppress
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ResponseError

from django_throttle.stores.redis.loop_connections import Incomplete, read_reply
from django_throttle.stores.redis.pool import pack


def as_reply(value: Any) -> bytes:
    match value:
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(as_reply, value))
        case int():
            return b":%d\r\n" % value
        case _:
            return b"$%d\r\n%s\r\n" % (len(value), value.encode())


class StandIn:
    """Stands before a Redis. ``always`` and ``next`` have replies by command; an empty one ends the connection."""

    def __init__(self, redis: int) -> None:
        self._redis = redis
        self.always: dict[str, bytes] = {"ASKING": b"+OK\r\n"}
        self.next: dict[str, list[bytes]] = defaultdict(list)
        self.seen: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._ends.append(self._listener.accept()[0])
                threading.Thread(target=self._serve, daemon=True, args=(self._ends[-1],)).start()

    def _serve(self, near: socket.socket) -> None:
        far = socket.create_connection(("127.0.0.1", self._redis))
        with suppress(OSError), near, far, near.makefile("rb") as lines:
            while head := lines.readline():
                parts = [lines.read(int(lines.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
                name = parts[0].decode()
                self.seen.append(name)
                reply = self._own(name, parts)
                if reply is None:
                    far.sendall(pack(parts))
                    reply = _whole(far)
                if not reply:
                    return
                near.sendall(reply)

    def _own(self, name: str, parts: list[bytes]) -> bytes | None:
        if self.next[name]:
            return self.next[name].pop(0)
        keys = parts[3 : 3 + int(parts[2])] if name.startswith("EVAL") else []
        if len({key_slot(key) for key in keys}) > 1:
            return b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
        return self.always.get(name)


def _whole(far: socket.socket) -> bytes:
    reply = b""
    while chunk := far.recv(65536):
        reply += chunk
        with suppress(Incomplete):
            read_reply(reply, 0, ResponseError)
            return reply
    raise OSError("Redis has closed the connection")
