"""Transports for httpx, whose requests to other servers wait until a rule allows them, across all processes.

If a response asks to wait, all processes pause their requests.
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
from django_throttle.local.shared_clock import shared_clock
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
#: Number of idents whose pauses a process keeps itself.
MAX_PAUSED_IDENTS: Final = 10_000


class CallRefused(ThrottleError, httpx.TransportError):
    """A call was not sent, because the rule would not have allowed it within ``max_wait``; see ``decision``.

    It is an error of httpx, and not a Refused: an entry point would answer Refused with a 429, though the client is not
    at fault. Its ``__cause__`` is a Refused. Its ``args`` are plain values, as in Refused.
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


class _ThrottledTransport(Generic[Transport]):
    """Shared base of both transports."""

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
        if not isinstance(rule, str) or not rule:
            raise TypeError(f"a transport needs the name of a rule, not {rule!r}")
        if ident is not None and not callable(ident) and not (isinstance(ident, str) and ident):
            raise TypeError(f"ident is a text or a function of the request, not {ident!r}")
        if callable(ident) and is_async(ident):
            raise TypeError("ident is a plain function, not an async one")
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
        #: Pauses that apply while Redis does not answer.
        self._local_pauses = MemoryStore(max_entries=MAX_PAUSED_IDENTS)

    async def _send_in_turn(self, io: StoreIo, request: httpx.Request, send: Send, close: Send) -> httpx.Response:
        """Send a call when the rule allows it, and honour Retry-After. ``send`` and ``close`` are of the same kind."""
        value = self.ident(request) if callable(self.ident) else self.ident
        ident = ident_from_value("ident", f"host:{request.url.host}" if self.ident is None else value, None)
        if ident is None:
            unlimited: httpx.Response = await io.call(partial(send, request), partial(send, request))
            return unlimited
        deadline = time.monotonic() + self.max_wait
        retries = self.retries if isinstance(request.stream, httpx.ByteStream) else 0  # other streams are read once
        while True:
            decision = await self._wait_for_turn(io, request, ident, deadline)
            try:
                response: httpx.Response = await io.call(partial(send, request), partial(send, request))
            except BaseException:
                await release_lease(io, decision.lease)
                raise
            if response.is_closed:  # already read, for example from a cache, so it is never closed
                await release_lease(io, decision.lease)
            elif decision.lease is not None:
                response.stream = _LeasedStream(response.stream, decision.lease)
            try:
                await self._honour_retry_after(io, response, ident)
            except BaseException:  # the caller gets no response to close
                await io.call(partial(close, response), partial(close, response))
                raise
            if not retries or response.status_code not in (TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE):
                return response
            if await self._pause_seconds(io, ident) > deadline - time.monotonic():
                return response  # more informative than CallRefused
            retries -= 1
            await io.call(partial(close, response), partial(close, response))

    async def _wait_for_turn(self, io: StoreIo, request: httpx.Request, ident: str, deadline: float) -> Decision:
        """Wait until the call may be sent. Raise CallRefused if that is after the deadline."""
        caller = IdentCaller(ident)
        is_untrusted = not isinstance(self.ident, str)
        call = Call(
            self.rule,
            (),
            caller,
            rule=self.rule,
            ident=ident,
            is_untrusted=is_untrusted,
            method=request.method,
            retries_when_refused=True,
        )
        while True:
            while seconds := await self._pause_seconds(io, ident):
                paused = Decision(False, retry_after=seconds, reset_after=seconds, rule=self.rule)
                await self._wait(io, request, paused, deadline)
            peeked = await self._peek_delay(io, call)
            if peeked.delay > (remaining := max(0.0, deadline - time.monotonic())):
                wait = peeked.delay - remaining
                raise self._refused(request, peeked._replace(allowed=False, retry_after=wait), peeked.delay)
            decision = await io.call(partial(limiter.decide, call), partial(limiter.adecide, call))
            if not decision.allowed:
                await self._wait(io, request, decision, deadline, call)
            elif not (decision.delay and await self._pause_seconds(io, ident)):
                return decision
            else:  # a response has asked to wait meanwhile, so the reserved start time is in the pause
                await release_lease(io, decision.lease)

    async def _peek_delay(self, io: StoreIo, call: Call) -> Decision:
        """Return a decision with the delay of a call under a rule of action "delay", because ``decide`` would wait."""
        snapshot = await io.call(rulebook.current, rulebook.acurrent)
        rule = snapshot.by_name(self.rule)
        if rule is None or rule.action != "delay":
            return Decision()
        return await limiter.decide_fully(io, snapshot.match(call), commit=False)

    async def _wait(
        self, io: StoreIo, request: httpx.Request, decision: Decision, deadline: float, call: Call | None = None
    ) -> None:
        """Wait until the call may be decided again. If that is too long, report the refusal, and raise CallRefused."""
        seconds = decision.retry_after
        if seconds is None or seconds > deadline - time.monotonic():
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

    async def _honour_retry_after(self, io: StoreIo, response: httpx.Response, ident: str) -> None:
        """Pause the calls of all processes for as long as a response asks."""
        requested_wait = asked_wait(response.status_code, response.headers, shared_clock.now())
        seconds = min(requested_wait, self.longest_pause)
        if not seconds:
            return
        if response.status_code in (TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE) and _log_throttle.try_acquire(self.rule):
            line = "a call under rule %r was answered %d with a wait of %g s: no process sends such calls until then"
            logger.warning(line, self.rule, response.status_code, seconds)
        if seconds < requested_wait and _log_throttle.try_acquire(self.rule, "capped"):
            line = (
                "a call under rule %r was answered with a wait of %g s: calls continue after %g s (longest_pause); ask "
                "the operator of that server for the reason"
            )
            logger.warning(line, self.rule, requested_wait, seconds)
        pause_us = round(seconds * 1_000_000)
        self._local_pauses.execute(Pause(self.rule, ident, pause_us))
        await self._pause_seconds(io, ident, pause_us)

    async def _pause_seconds(self, io: StoreIo, ident: str, pause_us: int = 0) -> float:
        """Extend a pause to ``pause_us``. Return its remaining seconds, without the store those of the local pause."""
        command = Pause(self.rule, ident, pause_us)
        try:
            remaining_us = await io.execute(command)
        except StoreError:
            remaining_us = self._local_pauses.execute(command)
        return float(min(remaining_us / 1_000_000, self.longest_pause))


class ThrottledTransport(_ThrottledTransport[httpx.BaseTransport], httpx.BaseTransport):
    """Transport that sends each request when a rule allows it, by ``transport``, an ``httpx.HTTPTransport`` by default.

    ``rule`` is the name of a rule, whose scopes and events do not matter. A rule that is disabled or does not exist
    limits nothing, but pauses apply all the same. ``ident`` is a text, or a function of the request. The function
    returns a text, a number, a user, or None for a request that is not limited. By default each host is counted
    separately. ``max_wait`` is the maximum wait in seconds. A request that would wait longer raises CallRefused.
    ``retries`` is the number of times that a request answered with 429 or 503 is sent again. It is 0 by default,
    because the calling code may retry, too. ``longest_pause`` is the maximum pause for a response, in seconds.

    Raise TypeError or ValueError for invalid options.
    """

    _default = httpx.HTTPTransport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait until the rule allows the request, and send it."""
        io = BlockingIo(get_store())
        return run(self._send_in_turn(io, request, self.transport.handle_request, httpx.Response.close))

    def close(self) -> None:
        self.transport.close()


class AsyncThrottledTransport(_ThrottledTransport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """ThrottledTransport for an event loop. ``transport`` is an ``httpx.AsyncHTTPTransport`` by default."""

    _default = httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait until the rule allows the request, and send it."""
        send, close = self.transport.handle_async_request, httpx.Response.aclose
        return await self._send_in_turn(LoopIo(get_store()), request, send, close)

    async def aclose(self) -> None:
        await self.transport.aclose()


class _LeasedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Body of a response whose call holds a slot until the body is closed."""

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
