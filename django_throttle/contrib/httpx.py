"""Transports for httpx: calls to somebody else's server wait their turn under a rule, over all processes.

They also hold all processes back for as long as an answer asks to wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from django_throttle import limiter, rulebook
from django_throttle.core import Decision, Lease
from django_throttle.core.asked_wait import MIN_TIMESTAMP, SERVICE_UNAVAILABLE, TOO_MANY_REQUESTS, asked_wait
from django_throttle.core.commands import Pause
from django_throttle.core.decide import release_lease
from django_throttle.core.io import run
from django_throttle.exceptions import Refused, StoreError, ThrottleError, needs_extra
from django_throttle.identity import is_async
from django_throttle.identity.call import Call
from django_throttle.identity.caller import IdentCaller, ident_from_value
from django_throttle.rulebook.snapshot import wall_clock
from django_throttle.runtime import LogThrottle
from django_throttle.stores import MemoryStore, get_store
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo

with needs_extra("httpx", "httpx"):
    import httpx

__all__ = ["AsyncThrottledTransport", "CallRefused", "ThrottledTransport"]

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()

Ident = str | Callable[[httpx.Request], object] | None
Send = Callable[[Any], Any]
MOST_IDENTS: Final = 10_000  # whose pauses a process keeps by itself


class CallRefused(ThrottleError, httpx.TransportError):
    """A call was not sent, as it would not have had its turn within ``max_wait``; ``decision`` says for how long.

    What handles httpx's errors handles it. It is no Refused, of which an entry point would make a 429 for a client who
    is not at fault; that is its ``__cause__``. Its ``args`` are plain values, as those of Refused.
    """

    def __init__(
        self,
        decision: Decision | str,
        rule: str | None = None,
        retry_after: float | None = None,
        *,
        message: str = "",
        request: httpx.Request | None = None,
    ) -> None:
        httpx.TransportError.__init__(self, message, request=request)
        refused = Refused(decision, rule, retry_after)
        self.decision = refused.decision
        self.args = message or str(refused), *refused.args[1:]

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), message=str(self)), (self.decision,)


Transport = TypeVar("Transport", httpx.BaseTransport, httpx.AsyncBaseTransport)


class _Turns(Generic[Transport]):
    """What both transports do with a call, written once."""

    _default: Callable[[], Transport]

    def __init__(
        self,
        rule: str,
        transport: Transport | None = None,
        *,
        ident: Ident = None,
        max_wait: float = 30.0,
        retries: int = 0,
        longest_pause: float = 3600.0,
    ) -> None:
        _check(rule, ident)
        for name, number in (("max_wait", max_wait), ("retries", retries), ("longest_pause", longest_pause)):
            if type(number) not in (int, float) or not number >= 0:
                raise ValueError(f"{name} is a number, 0 or more, not {number!r}")
        if not longest_pause < MIN_TIMESTAMP:
            raise ValueError(f"longest_pause is less than {MIN_TIMESTAMP:.0f} seconds, not {longest_pause!r}")
        if type(retries) is not int:
            raise ValueError(f"retries is a whole number, not {retries!r}")
        limiter.named_by_transports.add(rule)
        self.rule, self.ident = rule, ident
        self.transport: Transport = self._default() if transport is None else transport
        self.max_wait, self.retries, self.longest_pause = max_wait, retries, longest_pause
        self._heard_here = MemoryStore(max_entries=MOST_IDENTS)  # while Redis is away

    async def _sent(self, io: StoreIo, request: httpx.Request, send: Send, close: Send) -> httpx.Response:
        """Send a call in its turn, and heed the answer; ``send`` and ``close`` are both sync, or both async."""
        given = self.ident(request) if callable(self.ident) else self.ident
        ident = ident_from_value("ident", f"host:{request.url.host}" if self.ident is None else given, None)
        if ident is None:
            unlimited: httpx.Response = await io.call(partial(send, request), partial(send, request))
            return unlimited
        until = time.monotonic() + self.max_wait
        retries = self.retries if isinstance(request.stream, httpx.ByteStream) else 0  # others can be sent only once
        while True:
            decision = await self._turn(io, request, ident, until)
            try:
                response: httpx.Response = await io.call(partial(send, request), partial(send, request))
            except BaseException:
                await release_lease(io, decision.lease)
                raise
            if response.is_closed:  # it is loaded, as of a cache, so nobody closes it
                await release_lease(io, decision.lease)
            elif decision.lease is not None:
                response.stream = _Held(response.stream, decision.lease)
            try:
                await self._heed(io, response, ident)
            except BaseException:  # nobody else would close it
                await io.call(partial(close, response), partial(close, response))
                raise
            if not retries or response.status_code not in (TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE):
                return response
            if await self._paused(io, ident) > until - time.monotonic():
                return response  # it says more than an error of ours would
            retries -= 1
            await io.call(partial(close, response), partial(close, response))

    async def _turn(self, io: StoreIo, request: httpx.Request, ident: str, until: float) -> Decision:
        """Wait until the call may be sent."""
        caller = IdentCaller(ident)
        claimed = not isinstance(self.ident, str)
        call = Call(self.rule, (), caller, rule=self.rule, ident=ident, is_untrusted=claimed, retries_when_refused=True)
        while True:
            while seconds := await self._paused(io, ident):
                paused = Decision(False, retry_after=seconds, reset_after=seconds, rule=self.rule)
                await self._wait(io, request, paused, until)
            queued = await self._queued(io, call)
            if queued.delay > (left := max(0.0, until - time.monotonic())):
                wait = queued.delay - left
                raise self._refused(request, queued._replace(allowed=False, retry_after=wait), queued.delay)
            decision = await io.call(partial(limiter.decide, call), partial(limiter.adecide, call))
            if not decision.allowed:
                await self._wait(io, request, decision, until, call)
            elif not (decision.delay and await self._paused(io, ident)):
                return decision
            else:  # an answer has asked to wait: its turn comes meanwhile, as those of others do
                await release_lease(io, decision.lease)

    async def _queued(self, io: StoreIo, call: Call) -> Decision:
        """How long a rule that delays would have the call wait, as ``decide`` waits for as long as the rule says."""
        snapshot = await io.call(rulebook.current, rulebook.acurrent)
        rule = snapshot.by_name(self.rule)
        if rule is None or rule.action != "delay":
            return Decision()
        return await limiter.decide_fully(io, snapshot.match(call), commit=False)

    async def _wait(
        self, io: StoreIo, request: httpx.Request, decision: Decision, until: float, call: Call | None = None
    ) -> None:
        """Wait until the call may be decided again; where that is too long, its refusal of this call is reported."""
        seconds = decision.retry_after
        if seconds is None or seconds > until - time.monotonic():
            if call is not None:
                await limiter.report(io, call, decision)
            raise self._refused(request, decision, seconds)
        await io.sleep(seconds)

    def _refused(self, request: httpx.Request, decision: Decision, seconds: float | None) -> CallRefused:
        turn = "never has a turn" if seconds is None else f"has its turn in {seconds:.1f} s"
        more = "" if seconds is None else f", and max_wait is {self.max_wait:g} s"
        message = f"not sent: a call to {request.url.host} under rule {self.rule!r} {turn}{more}"
        error = CallRefused(decision, message=message, request=request)
        error.__cause__ = Refused(decision)
        return error

    async def _heed(self, io: StoreIo, response: httpx.Response, ident: str) -> None:
        """Pause the calls of all processes for as long as an answer asks."""
        asked = asked_wait(response.status_code, response.headers, wall_clock())
        seconds = min(asked, self.longest_pause)
        if not seconds:
            return
        if response.status_code in (TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE) and _log_throttle.due(self.rule):
            line = "a call under rule %r was answered %d and asks to wait %g s: no process sends such calls until then"
            logger.warning(line, self.rule, response.status_code, seconds)
        if seconds < asked and _log_throttle.due(self.rule, "capped"):
            line = (
                "a call under rule %r asks to wait %g s: calls go on after %g s (longest_pause); ask the other side why"
            )
            logger.warning(line, self.rule, asked, seconds)
        lasts = round(seconds * 1_000_000)
        self._heard_here.execute(Pause(self.rule, ident, lasts))
        await self._paused(io, ident, lasts)

    async def _paused(self, io: StoreIo, ident: str, lasts: int = 0) -> float:
        """How many seconds a pause still lasts; without the store, one of which this process has heard."""
        command = Pause(self.rule, ident, lasts)
        try:
            left = await io.execute(command)
        except StoreError:
            left = self._heard_here.execute(command)
        return float(min(left / 1_000_000, self.longest_pause))


class ThrottledTransport(_Turns[httpx.BaseTransport], httpx.BaseTransport):
    """Sends calls by ``transport``, an ``httpx.HTTPTransport`` unless given, each when a rule lets it pass.

    ``rule`` is the name of a rule, whatever its scopes and events. One that is switched off, or that nobody has made
    yet, limits nothing; what an answer asks holds all the same. ``ident`` is a text, or a function of the request that
    returns a text, a number, a user, or None for a call that is not limited; without it each host has a count.
    ``max_wait`` is the most seconds that a call waits for its turn; one that would wait longer raises CallRefused.
    ``retries`` is how often a call that is answered 429 or 503 is sent again: never unless given, as its caller may
    do so too. ``longest_pause`` is the most seconds that an answer can ask for. Raises TypeError or ValueError for
    invalid options.
    """

    _default = httpx.HTTPTransport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for the call's turn, then send it."""
        io = BlockingIo(get_store())
        return run(self._sent(io, request, self.transport.handle_request, httpx.Response.close))

    def close(self) -> None:
        self.transport.close()


class AsyncThrottledTransport(_Turns[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """The same on an event loop; ``transport`` is an ``httpx.AsyncHTTPTransport`` unless given."""

    _default = httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for the call's turn, then send it."""
        send, close = self.transport.handle_async_request, httpx.Response.aclose
        return await self._sent(LoopIo(get_store()), request, send, close)

    async def aclose(self) -> None:
        await self.transport.aclose()


class _Held(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of an answer whose call holds a slot until it is closed."""

    def __init__(self, stream: Any, lease: Lease) -> None:
        self._stream, self._lease = stream, lease

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            run(release_lease(BlockingIo(get_store()), self._lease))

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await limiter.arelease(self._lease)


def _check(rule: object, ident: object) -> None:
    if not isinstance(rule, str) or not rule:
        raise TypeError(f"a transport is given the name of a rule, not {rule!r}")
    if ident is not None and not callable(ident) and not (isinstance(ident, str) and ident):
        raise TypeError(f"ident is a text or a function of the request, not {ident!r}")
    if callable(ident) and is_async(ident):
        raise TypeError("ident is a plain function, not an async one")
