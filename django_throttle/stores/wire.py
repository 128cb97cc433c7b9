"""The shortest way to Redis and back: a free list of redis-py's own connections, one command at a time.

A client's execute_command spends more time around a call than the call itself takes: a lock, a queue, a
readiness check on the socket and metrics for every command. What of that matters here is done when it matters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from threading import Condition
from typing import Any, Final
from weakref import WeakSet

from redis import ConnectionPool
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

# A connection that has rested for longer is looked at before it is used: the server may have closed it.
RESTED: Final = 0.5


class Wire:
    """At most ``most`` connections, made as the pool makes them; safe to use from threads and after a fork.

    Waits ``patience`` seconds for a free one, then raises redis-py's ConnectionError as its pools do.
    """

    def __init__(self, pool: ConnectionPool, most: int, patience: float) -> None:
        self._pool = pool
        self._most = most
        self._patience = patience
        self.restart()
        _wires.add(self)

    def restart(self) -> None:
        """Begin with no connection: in a forked child their sockets are the parent's."""
        self._free: list[tuple[AbstractConnection, float]] = []
        self._made = 0
        self._waiting = 0
        self._freed = Condition()

    def call(self, parts: Sequence[Any]) -> Any:
        """The reply to one command; raises redis-py's errors. The connection is closed unless all was read."""
        connection = self._take()
        try:
            connection.send_packed_command([pack(parts)], check_health=False)
            return connection.read_response()
        except ResponseError:
            raise  # read to its end
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._give(connection)

    def _take(self) -> AbstractConnection:
        if self._waiting:  # nobody overtakes those who wait
            return self._wait()
        try:
            connection, since = self._free.pop()
        except IndexError:
            return self._wait()
        if time.monotonic() - since > RESTED and _is_stale(connection):
            connection.disconnect()
        return connection  # one that is not connected connects as it sends

    def _give(self, connection: AbstractConnection) -> None:
        self._free.append((connection, time.monotonic()))
        if self._waiting:  # whoever begins to wait looks once more after saying so
            with self._freed:
                self._freed.notify()

    def _wait(self) -> AbstractConnection:
        until = time.monotonic() + self._patience
        with self._freed:
            self._waiting += 1
            try:
                queued = self._waiting > 1
                while queued or not self._free:
                    if self._made < self._most:
                        make: type[AbstractConnection] = self._pool.connection_class
                        connection = make(**self._pool.connection_kwargs)
                        self._made += 1
                        return connection
                    queued = False
                    if not self._freed.wait(until - time.monotonic()) and not self._free:
                        raise RedisConnectionError("Too many connections")
                return self._free.pop()[0]
            finally:
                self._waiting -= 1


def pack(parts: Sequence[Any]) -> bytes:
    """A command as Redis reads it: RESP, an array of bulk strings."""
    found = [b"*%d\r\n" % len(parts)]
    for part in parts:
        text = part if type(part) is bytes else str(part).encode()
        found.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(found)


def _is_stale(connection: AbstractConnection) -> bool:
    try:
        return bool(connection.can_read())  # nothing was asked, so all there can be is an end
    except (RedisConnectionError, OSError):
        return True


_wires: WeakSet[Wire] = WeakSet()


def _restart_all() -> None:
    for wire in _wires:
        wire.restart()


os.register_at_fork(after_in_child=_restart_all)
