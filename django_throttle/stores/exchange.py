"""One command to Redis and its reply in two system calls; through redis-py's parser and sockets it is six."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError

from django_throttle.stores.deadline import DeadlineSocket

MOST: Final = 65536


def exchange(connection: AbstractConnection, command: bytes) -> Any:
    """The reply to a packed command, texts as bytes; raises redis-py's errors, and OSError."""
    line: Any = connection._sock
    bare = line.bare() if type(line) is DeadlineSocket else None
    if bare is None:  # not connected yet, encrypted, or late
        connection.send_packed_command([command], check_health=False)
        return connection.read_response(disable_decoding=True)
    try:
        bare.sendall(command)
        chunk = bare.recv(MOST)
    except BlockingIOError:
        raise TimeoutError("deadline passed") from None
    if chunk[:1] == b"$":  # a decision's reply, as a rule all of it
        head = chunk.find(b"\r\n") + 2
        if head > 1 and len(chunk) == head + int(chunk[1:head]) + 2:
            return chunk[head:-2]
    return Reply(chunk, line.recv, connection._parser.parse_error).read()


class Reply:
    """Reads RESP as far as scripts speak it: ``chunk``, and from ``more`` what is missing."""

    __slots__ = ("_at", "_error", "_more", "_text")

    def __init__(self, chunk: bytes, more: Callable[[int], bytes], error: Callable[[str], Exception]) -> None:
        self._text = chunk
        self._more = more
        self._error = error
        self._at = 0

    def read(self) -> Any:
        """The reply; raises the error that it is. An error inside an array stands in its place."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"$":
                return self._bulk(int(rest))
            case b":":
                return int(rest)
            case b"+":
                return rest
            case b"*":
                return None if rest == b"-1" else [self._element() for _ in range(int(rest))]
            case b"_":
                return None
            case b"-":
                raise self._error(rest.decode("utf-8", "replace"))
        raise InvalidResponse(f"Protocol Error: {line!r}")

    def _element(self) -> Any:
        try:
            return self.read()
        except ResponseError as error:
            return error

    def _line(self) -> bytes:
        while (end := self._text.find(b"\r\n", self._at)) < 0:
            self._fetch()
        line, self._at = self._text[self._at : end], end + 2
        return line

    def _bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        start, self._at = self._at, self._at + size + 2
        while len(self._text) < self._at:
            self._fetch()
        return self._text[start : start + size]

    def _fetch(self) -> None:
        chunk = self._text and self._more(MOST)
        if not chunk:
            raise RedisConnectionError("Connection closed by server.")
        self._text += chunk
