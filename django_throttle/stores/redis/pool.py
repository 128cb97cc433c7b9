"""The synchronous transport's connections: a pool that sends commands and reads their replies."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else the first connection does, and a child forked meanwhile waits without end
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from contextvars import Context
from math import inf
from threading import Condition, Thread
from typing import Any, Final
from weakref import finalize

from redis import ConnectionPool
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.utils import get_lib_version

from django_throttle.runtime import in_child
from django_throttle.stores.redis.timeouts import (
    Deadline,
    DeadlineSocket,
    connect_seconds,
    log_slow_connecting,
    seconds_left,
)

get_lib_version()  # which imports parts of importlib.metadata, as the first connection would
# Bytes; longer than the reply to any decision. Making room for more would take longer than reading.
DECISION: Final = 1024
# What a whole reply of so many bytes begins with: how long its text is.
WHOLE: Final = {len(head) + size + 2: head for size in range(DECISION) if (head := b"$%d\r\n" % size)}
TOO_LATE: Final = "deadline passed"
NONE_FREE: Final[tuple[Any, float]] = None, -inf  # or others wait: first come, first served
# Seconds; a connection that was idle for longer is checked before use: the server may have closed it.
IDLE_SECONDS: Final = 0.5


TIMEOUTS: Final = (TimeoutError, RedisTimeoutError)


class Pool:
    """At most ``most`` connections, made as redis-py's pool would; safe to use from threads and after a fork.

    Waits ``wait`` seconds for a free one, then raises redis-py's ConnectionError as its pools do. Making a connection
    may take longer than a call: whoever gives up leaves it to a thread, for later calls. ``is_watched`` by Sentinels.
    """

    def __init__(self, pool: ConnectionPool, most: int, wait: float, *, is_watched: bool = False) -> None:
        self._pool = pool
        self._most = most
        self._seconds = wait
        self._deadline: float = pool.connection_kwargs["socket_timeout"]
        self._connect_seconds = connect_seconds(self._deadline, is_watched=is_watched)
        self._end: finalize[..., Any] | None = None
        self.restart()
        in_child(self, Pool._forked)

    def restart(self) -> None:
        """Start without connections: in a forked child their sockets are the parent's."""
        if self._end:
            self._end.detach()
        self._free: list[tuple[AbstractConnection, float]] = []
        # Closes the connections of a store that is garbage, in whatever order the collector finds them.
        self._end = finalize(self, _close, self._free)
        self._end.atexit = False
        self._made: list[AbstractConnection] = []
        self._outdated: set[AbstractConnection] = set()  # to be closed as soon as nobody uses them
        self._new: set[AbstractConnection] = set()  # that have posted commands and answered nothing yet
        self._waiting = 0
        self._connecting = 0  # threads that make a connection which was late
        self._freed = Condition()

    def _forked(self) -> None:
        """Under gevent, greenlets that waited in the parent wait here too, for replies that are the parent's."""
        _replace_sockets(self._made)
        self.restart()

    def call(self, command: bytes, until: float) -> Any:
        """The reply to one packed command until a moment in monotonic seconds, texts as bytes.

        Raises redis-py's errors, and OSError. The connection is closed unless all was read.
        """
        now = time.monotonic()
        try:
            connection, since = NONE_FREE if self._waiting else self._free.pop()
        except IndexError:
            connection, since = NONE_FREE
        if now - since > IDLE_SECONDS:
            connection, now = self._checked(connection, until), time.monotonic()
        line: Any = connection._sock
        is_late = False
        try:
            bare = line.bare(until - now) if type(line) is DeadlineSocket else None
            if bare is not None:  # connected, not encrypted, not late
                bare.sendall(command)
                chunk = bare.recv(DECISION)
                head = WHOLE.get(len(chunk))
                if head is not None and chunk.startswith(head):  # a decision's reply, all of it
                    return chunk[len(head) : -2]
                line.unread(chunk)
            return _reply_until(until, connection, command if bare is None else None)
        except BaseException as error:
            # A ResponseError was read to its end; on a replica whoever connects anew finds the master.
            if not isinstance(error, ResponseError) or is_demotion(error):
                connection.disconnect()
            is_late = line is None and isinstance(error, TIMEOUTS)
            if isinstance(error, BlockingIOError):
                raise TimeoutError(TOO_LATE) from None
            raise
        finally:
            if is_late:
                self._connect_later(connection)
            elif self._outdated:
                self._give(connection)
            else:  # what ``_give`` does, in line and without reading the clock: each decision passes here
                self._free.append((connection, now))
                if self._waiting:
                    self._notify()

    def post(self, commands: Sequence[bytes]) -> AbstractConnection:
        """Send several packed commands at once; then ``collect`` the replies from the connection, or ``drop`` it."""
        connection = self._checked(None if self._waiting else self._pop())
        if connection._sock is None:
            self._new.add(connection)
        try:
            connection.send_packed_command([b"".join(commands)], check_health=False)
        except BaseException as error:
            self.drop(connection, is_late=isinstance(error, TIMEOUTS))
            raise
        return connection

    def collect(self, connection: AbstractConnection, count: int) -> list[Any]:
        """``count`` replies, errors in their places."""
        try:
            replies = [_reply(connection) for _ in range(count)]
        except BaseException as error:
            self.drop(connection, is_late=isinstance(error, TIMEOUTS))
            raise
        self._new.discard(connection)
        if any(map(is_demotion, replies)):
            connection.disconnect()
        self._give(connection)
        return replies

    def drop(self, connection: AbstractConnection, *, is_late: bool = False) -> None:
        """Close the connection, as nobody reads the replies, and return it."""
        connection.disconnect()
        if is_late and connection in self._new:
            self._connect_later(connection)
        else:
            self._give(connection)
        self._new.discard(connection)

    def close_idle(self) -> None:
        """Reconnect every connection before its next use: the server is another now."""
        self._outdated = set(self._made)
        with suppress(IndexError):  # others may take them meanwhile
            for _ in range(len(self._free)):
                self.drop(self._free.pop(0)[0])

    def _checked(self, connection: AbstractConnection | None, until: float | None = None) -> AbstractConnection:
        """A connection that was idle, as it may have been closed meanwhile; where there is none, one is waited for."""
        if connection is None:
            with nullcontext() if until is None else Deadline(until - time.monotonic()):
                return self._wait()
        # redis-py 5 has no public name for being connected.
        if connection._sock is not None and _is_stale(connection):
            connection.disconnect()
        return connection  # one that is not connected connects as it sends

    def _give(self, connection: AbstractConnection) -> None:
        if connection in self._outdated:
            self._outdated.discard(connection)
            connection.disconnect()
        # One that is closed is used last, as connecting takes time.
        self._free.insert(0 if connection._sock is None else len(self._free), (connection, time.monotonic()))
        if self._waiting:
            self._notify()

    def _connect_later(self, connection: AbstractConnection) -> None:
        """Make a connection for later callers, as its first caller has given up."""
        with self._freed:
            self._connecting += 1
        # Of its own context: the deadline of the caller is over.
        thread = Thread(
            target=Context().run, args=(self._connect, connection), name="django_throttle.connect", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            self._connected(connection)

    def _connect(self, connection: AbstractConnection) -> None:
        began = time.monotonic()
        try:
            with Deadline(self._connect_seconds):
                connection.connect()
        except Exception:  # noqa: BLE001 - the next caller tries again, and raises it
            connection.disconnect()
        else:
            log_slow_connecting(time.monotonic() - began, self._deadline)
        self._connected(connection)

    def _connected(self, connection: AbstractConnection) -> None:
        with self._freed:
            if connection in self._made:
                self._connecting -= 1
                self._give(connection)
                return
        connection.disconnect()  # of a parent: this process was forked meanwhile, under gevent

    def _notify(self) -> None:
        """After a connection was put back: whoever begins to wait looks once more after saying so."""
        with self._freed:
            self._freed.notify()

    def _pop(self) -> AbstractConnection | None:
        try:
            return self._free.pop()[0]
        except IndexError:
            return None

    def _wait(self) -> AbstractConnection:
        """Make a connection, or wait for a free connection in the order of arrival.

        In any other order a thread that calls again at once would pass the threads that have to wake up. A connection
        that is being made is waited for until the deadline.
        """
        until = time.monotonic() + self._seconds
        with self._freed:
            if is_connecting := self._waiting < self._connecting:
                until = time.monotonic() + seconds_left(self._deadline)
            elif len(self._made) < self._most:
                make: type[AbstractConnection] = self._pool.connection_class
                self._made.append(make(**self._pool.connection_kwargs))
                return self._made[-1]
            self._waiting += 1
            try:
                if self._waiting > 1:
                    self._freed.wait(until - time.monotonic())
                connection = self._freed.wait_for(self._pop, until - time.monotonic())
            finally:
                self._waiting -= 1
                if self._waiting and self._free:
                    self._freed.notify()  # whoever came as this one was woken waits for nobody else
        if connection is None:
            raise TimeoutError(TOO_LATE) if is_connecting else RedisConnectionError("Too many connections")
        return connection


def _reply_until(until: float, connection: AbstractConnection, command: bytes | None) -> Any:
    """The reply to a command that is sent now, or was sent before where it is None, in redis-py's own way."""
    with Deadline(until - time.monotonic()):
        if command is not None:
            connection.send_packed_command([command], check_health=False)
        return connection.read_response(disable_decoding=True)


def _close(free: list[tuple[AbstractConnection, float]]) -> None:
    for connection, _since in free:
        with suppress(RedisError, OSError):
            connection.disconnect()


def _replace_sockets(connections: Iterable[AbstractConnection]) -> None:
    """Replace the sockets by closed ones, in this process only: another process shares them."""
    ended, end = os.pipe()
    os.close(end)
    for connection in connections:
        sock = connection._sock
        if sock is not None and sock.fileno() >= 0:
            os.dup2(ended, sock.fileno(), inheritable=False)
    os.close(ended)


def pack(parts: Sequence[Any], *, more: int = 0) -> bytes:
    """A command as Redis reads it: RESP, an array of bulk strings, of which so many ``more`` follow."""
    texts = [part if type(part) is bytes else str(part).encode() for part in parts]
    found = [b"$%d\r\n%b\r\n" % (len(text), text) for text in texts]  # as ``bulk`` does, in half of the time
    return b"".join([b"*%d\r\n" % (len(parts) + more), *found])


def bulk(text: bytes) -> bytes:
    """A part of a command."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _reply(connection: AbstractConnection) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def is_demotion(reply: object) -> bool:
    """Whether the server has become a replica; a script of Redis 6.2 wraps that in more words."""
    return isinstance(reply, ResponseError) and "write against a read only replica" in str(reply)


def _is_stale(connection: AbstractConnection) -> bool:
    try:
        return bool(connection.can_read())  # nothing was asked, so all there can be is an end
    except (RedisError, OSError):
        return True


def text(value: object) -> str:
    """A reply as text, however the client decodes it."""
    return value.decode() if isinstance(value, bytes) else str(value)
