"""The asynchronous transport's connections: each event loop has one to a server, on which all its calls travel in turn.

redis-py connects and introduces itself; then its streams are taken off the socket. A reply is handed to whoever waits
for it as it is read, without a task.
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
from django_throttle.stores.redis.pool import IDLE_SECONDS, TOO_LATE, WHOLE, is_demotion
from django_throttle.stores.redis.timeouts import GRACE, LATE, LoopDeadline, connect_seconds, log_slow_connecting

CLOSING_SECONDS: Final = 1.0
READ_BYTES: Final = 65_536  # at once
LOST: Final = "Connection closed by server."  # as redis-py says it

# Called with the replies, errors in their places, or with the error of all of them. Must not raise.
Done = Callable[[list[Any] | Exception], object]


class Request:
    """Commands that have ``count`` replies, and who is to get them; ``done`` is None once nobody waits.

    It is answered by ``until``, a moment of the loop's clock.
    """

    __slots__ = ("count", "done", "is_late", "packed", "replies", "until")

    def __init__(self, packed: bytes, count: int, until: float, done: Done) -> None:
        self.packed, self.count, self.until, self.is_late = packed, count, until, False
        self.done: Done | None = done
        self.replies: list[Any] = []

    def end(self, outcome: list[Any] | Exception) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(outcome)


class Incomplete(Exception):
    """More of a reply is to come."""


def read_reply(chunk: bytes, at: int, error_of: Callable[[str], Exception]) -> tuple[Any, int]:
    """The reply in RESP2 that begins at a place, and where it ends. Raises Incomplete, or ValueError if it is none."""
    end = chunk.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, at = chunk[at : at + 1], chunk[at + 1 : end], end + 2
    if kind == b"$":
        end = at + int(line)
        if len(chunk) < end + 2 and end >= at:
            raise Incomplete
        return (chunk[at:end], end + 2) if end >= at else (None, at)
    if kind == b"*":
        return _array(chunk, at, int(line), error_of)
    if kind == b"-":
        return error_of(line.decode(errors="replace")), at
    if kind not in b":+":
        raise ValueError(f"{kind!r} begins no reply")
    return int(line) if kind == b":" else line, at


def _array(chunk: bytes, at: int, count: int, error_of: Callable[[str], Exception]) -> tuple[Any, int]:
    replies = []
    for _ in range(count):
        reply, at = read_reply(chunk, at, error_of)
        replies.append(reply)
    return (replies if count >= 0 else None), at


class LoopConnection(asyncio.BufferedProtocol):
    """A connection that is made: ``connection`` is redis-py's, whose socket this takes over.

    Whoever waits longer than a deadline is told so. Nothing is sent on the connection after that, and it is closed once
    nobody waits any more: a reply that is still to come is nobody else's. A connection that has answered nothing yet is
    kept for ``patience`` seconds, as connecting left its first callers little time.
    """

    def __init__(self, connection: Any, patience: float = 0.0) -> None:
        self.host = getattr(connection, "host", None), getattr(connection, "port", None)
        self.is_usable = True
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._error_of = connection._parser.parse_error
        # The writer is kept: collecting it would close the socket.
        self._writer, connection._reader, connection._writer = connection._writer, None, None
        self._transport: asyncio.Transport = self._writer.transport
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._rest = b""
        self._waiting: deque[Request] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._used = self._loop.time()
        self._kept_until = self._used + patience
        self._transport.set_protocol(self)

    def post(self, requests: Sequence[Request], until: float) -> None:
        """Send these at once; the first of them is to be answered by ``until``."""
        if not self.is_usable:
            for request in requests:
                request.end(RedisConnectionError(LOST))
            return
        self._used = self._loop.time()
        self._waiting.extend(requests)
        if self._timer is None or until < self._timer.when():
            self._watch(until)
        self._transport.write(requests[0].packed if len(requests) == 1 else b"".join([one.packed for one in requests]))

    def is_fresh(self) -> bool:
        """Whether commands can be sent: not where the server has closed the connection, and the loop is yet to hear."""
        if self.is_usable and not self._waiting and self._loop.time() - self._used > IDLE_SECONDS:
            sock = self._transport.get_extra_info("socket")
            # Nothing was asked, so all there can be is an end.
            if sock is None or sock.fileno() < 0 or _is_readable(sock.fileno()):
                self.retire()
        return self.is_usable

    def retire(self) -> None:
        """Send nothing more on it, and close it when nobody waits."""
        self.is_usable = False
        if not any(one.done for one in self._waiting):
            self._transport.abort()

    async def close(self) -> None:
        """Close it, as its loop ends."""
        self._lose(LoopEnded())
        await asyncio.wait({self.closed}, timeout=CLOSING_SECONDS)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        chunk, at = self._rest + self._buffer[:nbytes], 0
        head = WHOLE.get(len(chunk))
        if head is not None and chunk.startswith(head) and self._waiting:  # one decision's reply, all of it
            self._rest = b""
            self._take(chunk[len(head) : -2])
            return
        try:
            while at < len(chunk):
                reply, at = read_reply(chunk, at, self._error_of)
                self._take(reply)
        except Incomplete:
            pass
        except (ValueError, IndexError) as error:  # what came is no reply, or nobody's
            self._lose(InvalidResponse(str(error)))
            return
        self._rest = chunk[at:]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self._lose(RedisConnectionError(str(error) if error else LOST))

    def _take(self, reply: object) -> None:
        first = self._waiting[0]
        first.replies.append(reply)
        if isinstance(reply, Exception) and is_demotion(reply):
            self.is_usable = False  # on a replica whoever connects anew finds the primary
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
        """Tell those whose time is up; a loop that was blocked first reads what has arrived meanwhile."""
        now, self._timer = self._loop.time(), None
        for one in self._waiting:
            if one.done is None or one.until > now:
                continue
            if now > one.until + LATE and not one.is_late:
                one.is_late, one.until = True, now + GRACE
                continue
            self.is_usable = self.is_usable and now < self._kept_until
            one.end(
                LoopBlocked("the event loop was busy with something else") if one.is_late else TimeoutError(TOO_LATE)
            )
        if ends := [one.until for one in self._waiting if one.done]:
            self._watch(min(ends))
        elif not self.is_usable:
            self._transport.abort()


class LoopClient:
    """One server as an event loop asks it, over one connection at a time; ``make`` gives one of redis-py's.

    ``deadline`` is how long a call may take, in seconds. Making a connection may take longer: whoever gives up leaves
    it to later calls. ``is_former`` says whether another server has taken over from this one.
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
        """Send these where there is a connection; False where ``ask`` has to make one."""
        connection = self._fresh()
        if connection is None:
            return False
        connection.post(requests, until)
        return True

    async def ask(self, packed: bytes, count: int, until: float) -> list[Any]:
        """The replies to commands, errors in their places, by a moment of the loop's clock; raises other errors."""
        connection = self._fresh()
        if connection is None:
            async with LoopDeadline(until):
                connection = await self._connect()
        answered: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        connection.post((Request(packed, count, until, partial(answer, answered)),), until)
        return await answered

    async def close(self) -> None:
        """Close all connections, and make no other; must be called on their loop."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for connection in tuple(self._open):
            await connection.close()

    def _fresh(self) -> LoopConnection | None:
        connection = self._connection
        if connection is None or not connection.is_fresh():
            return None
        if self._is_former is not None and self._is_former(*connection.host):
            connection.retire()
            return None
        return connection

    async def _connect(self) -> LoopConnection:
        """Wait for the one connection that all callers who need one wait for."""
        if self._is_closed:  # else nobody would close it: threads may still call something on the loop as it ends
            raise LoopEnded
        if self._connecting is None:
            self._connecting = spawn(self._connected())
            self._connecting.add_done_callback(_heed)
        return await asyncio.shield(self._connecting)

    async def _connected(self) -> LoopConnection:
        made, loop = None, asyncio.get_running_loop()
        began = loop.time()
        try:
            async with LoopDeadline(began + self._connect_seconds):
                made = await self._make()
                await made.connect()
        except BaseException:
            if made is not None:
                with suppress(RedisError, OSError):
                    await made.disconnect(nowait=True)
            raise
        finally:
            self._connecting = None
        log_slow_connecting(loop.time() - began, self._deadline)
        connection = self._connection = LoopConnection(made, self._connect_seconds)
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        return connection


def answer(future: asyncio.Future[list[Any]], outcome: list[Any] | BaseException) -> None:
    """Tell who waits for a future what has come of it."""
    if future.done():  # cancelled meanwhile
        return
    if isinstance(outcome, list):
        future.set_result(outcome)
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.cancel()


def _heed(task: asyncio.Task[Any]) -> None:
    """Those who waited for it have its error, or have gone."""
    if not task.cancelled():
        task.exception()


def _is_readable(descriptor: int) -> bool:
    poll = select.poll() if hasattr(select, "poll") else None
    if poll is None:
        return bool(select.select([descriptor], [], [], 0)[0])
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
