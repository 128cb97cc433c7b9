"""Connections of the asynchronous transport: each event loop has one connection to a server, for all of its calls.

redis-py connects and authenticates. Then a protocol of this module replaces its streams on the socket. A reply is
passed to the callback of its request as it is read, without a task.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError

from django_throttle.runtime import spawn
from django_throttle.stores.redis.failures import LoopBlocked, LoopEnded
from django_throttle.stores.redis.pool import DEADLINE_PASSED, IDLE_SECONDS, REPLY_HEADERS, is_demotion
from django_throttle.stores.redis.timeouts import (
    GRACE_SECONDS,
    LATE_SECONDS,
    LoopDeadline,
    connect_seconds,
    log_slow_connecting,
)

CLOSING_SECONDS: Final = 1.0
READ_BYTES: Final = 65_536  # size of the read buffer
CONNECTION_CLOSED: Final = "Connection closed by server."  # text of redis-py

# Callback for the replies, with errors in their places, or for one error of all. Must not raise.
Done = Callable[[list[Any] | Exception], object]


class Request:
    """Packed commands with ``count`` replies, and the callback for these.

    ``until`` is the deadline on the loop's clock. ``done`` is None once the callback has been called.
    """

    __slots__ = ("count", "done", "is_late", "packed", "replies", "until")

    def __init__(self, packed: bytes, count: int, until: float, done: Done) -> None:
        self.packed, self.count, self.until, self.is_late = packed, count, until, False
        self.done: Done | None = done
        self.replies: list[object] = []

    def end(self, outcome: list[object] | Exception) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(outcome)


class Incomplete(Exception):
    """Raised if a reply is not complete yet."""


def read_reply(chunk: bytes, position: int, error_of: Callable[[str], Exception]) -> tuple[object, int]:
    """Parse the RESP2 reply that begins at a position. Return it and its end. Raise Incomplete or ValueError."""
    end = chunk.find(b"\r\n", position)
    if end < 0:
        raise Incomplete
    kind, line, position = chunk[position : position + 1], chunk[position + 1 : end], end + 2
    if kind == b"$":
        end = position + int(line)
        if len(chunk) < end + 2 and end >= position:
            raise Incomplete
        return (chunk[position:end], end + 2) if end >= position else (None, position)
    if kind == b"*":
        return _array(chunk, position, int(line), error_of)
    if kind == b"-":
        return error_of(line.decode(errors="replace")), position
    if kind not in b":+":
        raise ValueError(f"{kind!r} begins no reply")
    return int(line) if kind == b":" else line, position


def _array(chunk: bytes, position: int, count: int, error_of: Callable[[str], Exception]) -> tuple[object, int]:
    replies = []
    for _ in range(count):
        reply, position = read_reply(chunk, position, error_of)
        replies.append(reply)
    return (replies if count >= 0 else None), position


class LoopConnection(asyncio.BufferedProtocol):
    """Open connection, which takes over the socket of redis-py's ``connection``.

    After the deadline of a request has passed, nothing more is sent, and the connection is closed as soon as no request
    waits, because a late reply must not be taken for another request's. A connection without any reply yet is used for
    ``patience`` seconds, because connecting left its first callers little time.
    """

    def __init__(self, connection: Any, patience: float = 0.0) -> None:
        self.host = getattr(connection, "host", None), getattr(connection, "port", None)
        self.is_usable = True
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._error_of = connection._parser.parse_error
        # Keep the writer, as its destructor would close the socket.
        self._writer, connection._reader, connection._writer = connection._writer, None, None
        self._transport: asyncio.Transport = self._writer.transport
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._rest = b""
        self._waiting: deque[Request] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._used = self._loop.time()
        self._kept_until = self._used + patience
        self._transport.set_protocol(self)

    def post(self, requests: Sequence[Request], until: float) -> bool:
        """Send requests. Return False, without sending, if the connection is retired or the server has closed it.

        ``until`` is the earliest of the deadlines of the requests.
        """
        now = self._loop.time()
        if self.is_usable and not self._waiting and now - self._used > IDLE_SECONDS:
            sock = self._transport.get_extra_info("socket")
            # Nothing was requested, so only the end can be readable.
            if sock is None or sock.fileno() < 0 or _is_readable(sock.fileno()):
                self.retire()
        if not self.is_usable:
            return False
        self._used = now
        self._waiting.extend(requests)
        if self._timer is None or until < self._timer.when():
            self._watch(until)
        self._transport.write(
            requests[0].packed if len(requests) == 1 else b"".join([request.packed for request in requests])
        )
        return True

    def retire(self) -> None:
        """Send nothing more, and close the connection when no request waits."""
        self.is_usable = False
        if not any(request.done for request in self._waiting):
            self._transport.abort()

    async def close(self) -> None:
        """Close the connection, as its loop ends."""
        self._lose(LoopEnded())
        await asyncio.wait({self.closed}, timeout=CLOSING_SECONDS)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        chunk, position = self._rest + self._buffer[:nbytes], 0
        head = REPLY_HEADERS.get(len(chunk))
        if head is not None and chunk.startswith(head) and self._waiting:  # a decision's complete reply
            self._rest = b""
            self._take(chunk[len(head) : -2])
            return
        try:
            while position < len(chunk):
                reply, position = read_reply(chunk, position, self._error_of)
                self._take(reply)
        except Incomplete:
            pass
        except (ValueError, IndexError) as error:  # no valid reply, or without a request
            self._lose(InvalidResponse(str(error)))
            return
        self._rest = chunk[position:]

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set_result(None)
        self._lose(RedisConnectionError(str(error) if error else CONNECTION_CLOSED))

    def _take(self, reply: object) -> None:
        first = self._waiting[0]
        first.replies.append(reply)
        if isinstance(reply, Exception) and is_demotion(reply):
            self.is_usable = False  # after a demotion, a new connection finds the primary
        if len(first.replies) == first.count:
            self._kept_until = 0.0
            self._waiting.popleft()
            first.end(first.replies)
        if not self.is_usable:
            self.retire()

    def _lose(self, error: Exception) -> None:
        self.is_usable = False
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._waiting.popleft().end(error)
        self._transport.abort()

    def _watch(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(until, self._check)

    def _check(self) -> None:
        """Fail the requests whose deadline has passed. A loop that was blocked first reads what has arrived."""
        now, self._timer = self._loop.time(), None
        for request in self._waiting:
            if request.done is None or request.until > now:
                continue
            if now > request.until + LATE_SECONDS and not request.is_late:
                request.is_late, request.until = True, now + GRACE_SECONDS
                continue
            self.is_usable = self.is_usable and now < self._kept_until
            request.end(
                LoopBlocked("the event loop was busy with something else")
                if request.is_late
                else TimeoutError(DEADLINE_PASSED)
            )
        if deadlines := [request.until for request in self._waiting if request.done]:
            self._watch(min(deadlines))
        elif not self.is_usable:
            self._transport.abort()


class LoopClient:
    """Client of one server for an event loop, with one connection at a time. ``make`` returns one of redis-py.

    ``deadline`` limits a call, in seconds. Connecting may take longer. A caller that gives up leaves the connection to
    later calls. ``is_former`` returns True if another server has taken over from a host and port.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[Any]],
        deadline: float,
        is_former: Callable[[object, object], bool] | None = None,
    ) -> None:
        self._make, self._is_former = make, is_former
        self._deadline = deadline
        self._connect_seconds = connect_seconds(deadline, is_watched=is_former is not None)
        self._connection: LoopConnection | None = None
        self._connecting: asyncio.Task[LoopConnection] | None = None
        self._is_closed = False
        self._open: set[LoopConnection] = set()

    def post(self, requests: Sequence[Request], until: float) -> bool:
        """Send requests. Return False if there is no connection, which ``ask`` then makes."""
        connection = self._connection
        if connection is None:
            return False
        if self._is_former is not None and self._is_former(*connection.host):
            connection.retire()
        return connection.post(requests, until)

    async def ask(self, packed: bytes, count: int, until: float) -> list[object]:
        """Send commands. Return their replies, with errors in their places. Raise errors of the connection.

        ``until`` is the deadline on the loop's clock.
        """
        replies_future: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
        requests = (Request(packed, count, until, partial(answer, replies_future)),)
        if not self.post(requests, until):
            async with LoopDeadline(until):
                connection = await self._connect()
            if not connection.post(requests, until):
                raise RedisConnectionError(CONNECTION_CLOSED)
        return await replies_future

    async def close(self) -> None:
        """Close all connections, and make no other. Must be called on their loop."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for connection in tuple(self._open):
            await connection.close()

    async def _connect(self) -> LoopConnection:
        """Wait for the connection, which all waiting callers share."""
        if self._is_closed:  # threads may still call on a loop that ends, where a connection would never be closed
            raise LoopEnded
        if self._connecting is None:
            self._connecting = spawn(self._make_connection())
            self._connecting.add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._connecting)

    async def _make_connection(self) -> LoopConnection:
        redis_connection, loop = None, asyncio.get_running_loop()
        started_at = loop.time()
        try:
            async with LoopDeadline(started_at + self._connect_seconds):
                redis_connection = await self._make()
                await redis_connection.connect()
        except BaseException:
            if redis_connection is not None:
                with suppress(RedisError, OSError):
                    await redis_connection.disconnect(nowait=True)
            raise
        finally:
            self._connecting = None
        log_slow_connecting(loop.time() - started_at, self._deadline)
        connection = self._connection = LoopConnection(redis_connection, self._connect_seconds)
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        return connection


def answer(future: asyncio.Future[list[object]], outcome: list[object] | BaseException) -> None:
    """Resolve a future with replies or an error, unless it was cancelled."""
    if future.done():
        return
    if isinstance(outcome, list):
        future.set_result(outcome)
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.cancel()


def _retrieve_exception(task: asyncio.Task[object]) -> None:
    """Retrieve a task's exception, which its waiters have raised, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _is_readable(descriptor: int) -> bool:
    poll = select.poll() if hasattr(select, "poll") else None
    if poll is None:
        return bool(select.select([descriptor], [], [], 0)[0])
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
