"""Connection pool of the synchronous transport: sends packed commands and reads their replies."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - an import at the first connection would hang a child that is forked meanwhile
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

get_lib_version()  # imports parts of importlib.metadata, as the first connection would
# Size of the buffer for a decision's reply. Allocating a larger one would take longer than reading.
MAX_REPLY_BYTES: Final = 1024
# Header of a complete bulk reply, by the number of bytes received.
REPLY_HEADERS: Final = {
    len(header) + size + 2: header for size in range(MAX_REPLY_BYTES) if (header := b"$%d\r\n" % size)
}
DEADLINE_PASSED: Final = "deadline passed"
NO_CONNECTION: Final[tuple[Any, float]] = None, -inf  # no free connection, or others wait: first come, first served
# A connection that was idle for longer is checked before use, as the server may have closed it.
IDLE_SECONDS: Final = 0.5
TIMEOUTS: Final = (TimeoutError, RedisTimeoutError)


class Pool:
    """Pool of at most ``max_connections`` connections of redis-py. Safe to use from threads and after a fork.

    A caller waits ``wait_seconds`` for a free connection. After that, redis-py's ConnectionError is raised, as in its
    own pools. Connecting may take longer than a call. A caller that gives up leaves the connection to a thread, for
    later callers. ``is_watched`` is True if Sentinels watch the server.
    """

    def __init__(
        self, pool: ConnectionPool, max_connections: int, wait_seconds: float, *, is_watched: bool = False
    ) -> None:
        self._pool = pool
        self._max_connections = max_connections
        self._wait_seconds = wait_seconds
        self._deadline: float = pool.connection_kwargs["socket_timeout"]
        self._connect_seconds = connect_seconds(self._deadline, is_watched=is_watched)
        self._finalizer: finalize[..., object] | None = None
        self.restart()
        in_child(self, Pool._forked)

    def restart(self) -> None:
        """Drop all connections. In a forked child their sockets belong to the parent."""
        if self._finalizer:
            self._finalizer.detach()
        self._free: list[tuple[AbstractConnection, float]] = []
        # Closes the connections of a collected store, in any order of collection.
        self._finalizer = finalize(self, _close, self._free)
        self._finalizer.atexit = False
        self._connections: list[AbstractConnection] = []
        self._outdated: set[AbstractConnection] = set()  # to be closed as soon as they are free
        self._unproven: set[AbstractConnection] = set()  # connections without any reply yet
        self._waiting = 0
        self._connecting = 0  # threads that finish connecting for callers that gave up
        self._condition = Condition()

    def _forked(self) -> None:
        """Drop the parent's connections. Under gevent its greenlets live on here, and must not read its replies."""
        _replace_sockets(self._connections)
        self.restart()

    def call(self, command: bytes, until: float) -> object:
        """Send a packed command. Return its reply, with texts as bytes.

        ``until`` is the deadline in monotonic seconds. Raise redis-py's errors, and OSError. The connection is closed
        unless the reply was read to its end.
        """
        now = time.monotonic()
        try:
            connection, idle_since = NO_CONNECTION if self._waiting else self._free.pop()
        except IndexError:
            connection, idle_since = NO_CONNECTION
        if now - idle_since > IDLE_SECONDS:
            connection, now = self._usable_connection(connection, until), time.monotonic()
        sock: Any = connection._sock
        is_late = False
        try:
            kernel_timed_socket = sock.kernel_timed_socket(until - now) if type(sock) is DeadlineSocket else None
            if kernel_timed_socket is not None:  # connected, unencrypted, and the whole deadline is left
                kernel_timed_socket.sendall(command)
                chunk = kernel_timed_socket.recv(MAX_REPLY_BYTES)
                header = REPLY_HEADERS.get(len(chunk))
                if header is not None and chunk.startswith(header):  # a decision's complete reply
                    return chunk[len(header) : -2]
                sock.push_back(chunk)
            return _reply_until(until, connection, command if kernel_timed_socket is None else None)
        except BaseException as error:
            # A ResponseError was read to its end. After a demotion, a new connection finds the primary.
            if not isinstance(error, ResponseError) or is_demotion(error):
                connection.disconnect()
            is_late = sock is None and isinstance(error, TIMEOUTS)
            if isinstance(error, BlockingIOError):
                raise TimeoutError(DEADLINE_PASSED) from None
            raise
        finally:
            if is_late:
                self._connect_later(connection)
            elif self._outdated:
                self._put_back(connection)
            else:  # like ``_put_back``, inline and without reading the clock, for speed
                self._free.append((connection, now))
                if self._waiting:
                    self._notify()

    def post(self, commands: Sequence[bytes]) -> AbstractConnection:
        """Send packed commands together. Return the connection, to ``collect`` the replies from or to ``drop``."""
        connection = self._usable_connection(None if self._waiting else self._pop_free())
        if connection._sock is None:
            self._unproven.add(connection)
        try:
            connection.send_packed_command([b"".join(commands)], check_health=False)
        except BaseException as error:
            self.drop(connection, is_late=isinstance(error, TIMEOUTS))
            raise
        return connection

    def collect(self, connection: AbstractConnection, count: int) -> list[object]:
        """Read ``count`` replies, with errors in their places."""
        try:
            replies = [_reply(connection) for _ in range(count)]
        except BaseException as error:
            self.drop(connection, is_late=isinstance(error, TIMEOUTS))
            raise
        self._unproven.discard(connection)
        if any(map(is_demotion, replies)):
            connection.disconnect()
        self._put_back(connection)
        return replies

    def drop(self, connection: AbstractConnection, *, is_late: bool = False) -> None:
        """Close a connection whose replies are not read, and put it back."""
        connection.disconnect()
        if is_late and connection in self._unproven:
            self._connect_later(connection)
        else:
            self._put_back(connection)
        self._unproven.discard(connection)

    def close_idle(self) -> None:
        """Make every connection reconnect before its next use, as the server has changed."""
        self._outdated = set(self._connections)
        with suppress(IndexError):  # other threads may take them meanwhile
            for _ in range(len(self._free)):
                self.drop(self._free.pop(0)[0])

    def _usable_connection(
        self, connection: AbstractConnection | None, until: float | None = None
    ) -> AbstractConnection:
        """Check an idle connection, which may have been closed. Without a connection, make or wait for one."""
        if connection is None:
            with nullcontext() if until is None else Deadline(until - time.monotonic()):
                return self._make_or_wait()
        # redis-py 5 has no public attribute for being connected.
        if connection._sock is not None and _is_stale(connection):
            connection.disconnect()
        return connection  # a closed connection connects when it sends

    def _put_back(self, connection: AbstractConnection) -> None:
        if connection in self._outdated:
            self._outdated.discard(connection)
            connection.disconnect()
        # Closed connections are used last, as connecting takes time.
        self._free.insert(0 if connection._sock is None else len(self._free), (connection, time.monotonic()))
        if self._waiting:
            self._notify()

    def _connect_later(self, connection: AbstractConnection) -> None:
        """Finish connecting in a thread, for later callers, as the first caller has given up."""
        with self._condition:
            self._connecting += 1
        # In a context of its own, without the deadline of the caller.
        thread = Thread(
            target=Context().run, args=(self._connect, connection), name="django_throttle.connect", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            self._finish_connecting(connection)

    def _connect(self, connection: AbstractConnection) -> None:
        started_at = time.monotonic()
        try:
            with Deadline(self._connect_seconds):
                connection.connect()
        except Exception:  # noqa: BLE001 - the next caller connects again, and raises the error
            connection.disconnect()
        else:
            log_slow_connecting(time.monotonic() - started_at, self._deadline)
        self._finish_connecting(connection)

    def _finish_connecting(self, connection: AbstractConnection) -> None:
        with self._condition:
            if connection in self._connections:
                self._connecting -= 1
                self._put_back(connection)
                return
        connection.disconnect()  # under gevent, this process was forked meanwhile

    def _notify(self) -> None:
        """Wake a waiting thread after a connection was put back. A new waiter checks again after registering."""
        with self._condition:
            self._condition.notify()

    def _pop_free(self) -> AbstractConnection | None:
        try:
            return self._free.pop()[0]
        except IndexError:
            return None

    def _make_or_wait(self) -> AbstractConnection:
        """Make a connection, or wait for a free one in the order of arrival.

        In any other order a thread that calls again at once would overtake threads that have to wake up. Wait until the
        deadline for a connection that a thread is making.
        """
        until = time.monotonic() + self._wait_seconds
        with self._condition:
            if is_connecting := self._waiting < self._connecting:
                until = time.monotonic() + seconds_left(self._deadline)
            elif len(self._connections) < self._max_connections:
                make: type[AbstractConnection] = self._pool.connection_class
                self._connections.append(make(**self._pool.connection_kwargs))
                return self._connections[-1]
            self._waiting += 1
            try:
                if self._waiting > 1:
                    self._condition.wait(until - time.monotonic())
                connection = self._condition.wait_for(self._pop_free, until - time.monotonic())
            finally:
                self._waiting -= 1
                if self._waiting and self._free:
                    self._condition.notify()  # a thread that has arrived meanwhile
        if connection is None:
            raise TimeoutError(DEADLINE_PASSED) if is_connecting else RedisConnectionError("Too many connections")
        return connection


def _reply_until(until: float, connection: AbstractConnection, command: bytes | None) -> object:
    """Send a command, or None if it was sent before, and read the reply as redis-py does."""
    with Deadline(until - time.monotonic()):
        if command is not None:
            connection.send_packed_command([command], check_health=False)
        return connection.read_response(disable_decoding=True)


def _close(free: list[tuple[AbstractConnection, float]]) -> None:
    for connection, _since in free:
        with suppress(RedisError, OSError):
            connection.disconnect()


def _replace_sockets(connections: Iterable[AbstractConnection]) -> None:
    """Replace the sockets by closed ones in this process only, as another process shares them."""
    read_end, end = os.pipe()
    os.close(end)
    for connection in connections:
        sock = connection._sock
        if sock is not None and sock.fileno() >= 0:
            os.dup2(read_end, sock.fileno(), inheritable=False)
    os.close(read_end)


def pack(parts: Sequence[object], *, more: int = 0) -> bytes:
    """Return a command in RESP: an array of bulk strings, of which ``more`` are appended by the caller."""
    texts = [part if type(part) is bytes else str(part).encode() for part in parts]
    bulks = [b"$%d\r\n%b\r\n" % (len(text), text) for text in texts]  # like ``bulk``, in half of the time
    return b"".join([b"*%d\r\n" % (len(parts) + more), *bulks])


def bulk(text: bytes) -> bytes:
    """Return a part of a command in RESP."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _reply(connection: AbstractConnection) -> object:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def is_demotion(reply: object) -> bool:
    """Return True if the server has become a replica. Redis 6.2 wraps this error in scripts."""
    return isinstance(reply, ResponseError) and "write against a read only replica" in str(reply)


def _is_stale(connection: AbstractConnection) -> bool:
    try:
        return bool(connection.can_read())  # nothing was requested, so only the end can be readable
    except (RedisError, OSError):
        return True


def text(value: object) -> str:
    """Return a reply as text, whether or not the client decodes replies."""
    return value.decode() if isinstance(value, bytes) else str(value)
