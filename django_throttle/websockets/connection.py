"""The state of a guarded socket, from its handshake to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, takewhile
from operator import is_
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

from django_throttle import rulebook
from django_throttle.core import Decision, Lease
from django_throttle.core.commands import Correct, Release
from django_throttle.core.decide import correct
from django_throttle.core.decision import error_code
from django_throttle.core.texts import gettext_noop
from django_throttle.identity import AsgiCaller
from django_throttle.local.open_sockets import notice_payload, open_sockets
from django_throttle.runtime import spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import LoopIo
from django_throttle.websockets.counters import SocketCounters
from django_throttle.websockets.error_frames import (
    Close,
    DroppedFrames,
    Escalation,
    Event,
    Receive,
    Scope,
    Send,
    best_effort,
    bypassing,
    close_code,
    close_events,
    close_reason,
    frame_event,
    handshake_close_events,
)
from django_throttle.websockets.limits import FrameLimits, match
from django_throttle.websockets.server_stream import is_closed_by_server
from django_throttle.websockets.settings import SocketSettings
from django_throttle.websockets.subprotocols import Subprotocol, subprotocol_of

# Keys of the ASGI scope under which applications put the caller.
CALLER_ENTRIES: Final = ("user", "auth", "session")
# Result of an interrupted wait. It is compared by identity.
INTERRUPTED: Final[Event] = {}


class InterruptibleWaits:
    """The waits of one application's tasks, which a close interrupts."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[object] | None] = set()  #: tasks that wait now

    async def on(self, work: Awaitable[object]) -> object:
        """Await ``work``. Return INTERRUPTED if ``interrupt`` is called meanwhile."""
        task = asyncio.current_task()
        cancellations = self.begin(task)
        try:
            return await work
        except BaseException as error:
            if not self.was_interrupted(task, cancellations, error):
                raise
            return INTERRUPTED
        finally:
            self.tasks.discard(task)

    def begin(self, task: asyncio.Task[object] | None) -> int:
        """Register a task that begins to wait. Return its pending cancellations, for ``was_interrupted``."""
        self.tasks.add(task)
        return 0 if task is None else task.cancelling()

    def was_interrupted(self, task: asyncio.Task[object] | None, cancellations: int, error: BaseException) -> bool:
        """Return True if ``interrupt`` is the cause of the error. As in asyncio.timeout, other cancellations go on."""
        # Servers may raise their own errors for an interrupted frame.
        may_be = task is not None and task not in self.tasks and isinstance(error, (asyncio.CancelledError, Exception))
        return may_be and task.uncancel() <= cancellations  # type: ignore[union-attr]

    def interrupt(self) -> None:
        tasks, self.tasks = self.tasks, set()
        for task in tasks:
            if task is not None:
                task.cancel()


# Minimal seconds until a deadline is checked again. The time in which an application is busy moves its deadline.
ACCEPT_SECONDS: Final = 10.0  # until a socket that the application has not accepted is refused
RECHECK_SECONDS: Final = 0.05


class UnacceptedSockets:
    """The sockets of one event loop that are not accepted yet. They share a timer, as most are accepted soon."""

    __slots__ = ("_due", "_has_timer")

    def __init__(self) -> None:
        self._due: dict[Deadlines, float] = {}  #: times on the monotonic clock at which accepting is overdue
        self._has_timer = False  #: True if a timer runs. The timer is not kept, as it refers to the loop.

    def add(self, deadlines: Deadlines, seconds: float) -> None:
        """Call ``on_passed`` of the deadlines after ``seconds``, unless they are discarded."""
        self._due[deadlines] = monotonic() + seconds
        if not self._has_timer:
            self._has_timer = True
            asyncio.get_running_loop().call_later(seconds, self._check)

    def discard(self, deadlines: Deadlines) -> None:
        self._due.pop(deadlines, None)

    def _check(self) -> None:
        loop, now = asyncio.get_running_loop(), monotonic()
        for deadlines in [deadlines for deadlines, due in self._due.items() if due <= now]:
            self.discard(deadlines)
            loop.call_soon(deadlines.on_passed, "not_accepted")  # an error must not affect other sockets
        self._has_timer = bool(self._due)
        if self._due:
            loop.call_later(max(RECHECK_SECONDS, min(self._due.values()) - now), self._check)


_unaccepted_sockets: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, UnacceptedSockets]] = WeakKeyDictionary()


class Deadlines:
    """The deadlines of a socket.

    ``on_passed`` is called with the first deadline that passes: "not_accepted", "idle" or "too_old". ``silence``
    returns the seconds for which the application has listened and received nothing.
    """

    __slots__ = ("_idle", "_max_age", "_opened", "_silence", "_timer", "_unaccepted", "on_passed")

    def __init__(self, on_passed: Callable[[str], None], silence: Callable[[], float]) -> None:
        self.on_passed, self._silence = on_passed, silence
        self._opened = monotonic()
        self._idle = self._max_age = 0.0
        self._timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._unaccepted: UnacceptedSockets | None = _unaccepted_sockets.get(loop)
        if self._unaccepted is None:
            self._unaccepted = _unaccepted_sockets.setdefault(loop, UnacceptedSockets())
        self._unaccepted.add(self, ACCEPT_SECONDS)

    def accept(self, idle: float, max_age: float) -> None:
        """Watch the deadlines of an accepted socket, in seconds, 0 for never. A second call replaces them."""
        self.end()
        self._idle, self._max_age = idle, max_age
        if idle or max_age:
            self._schedule()

    def end(self) -> None:
        if self._unaccepted is not None:
            self._unaccepted.discard(self)
            self._unaccepted = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_deadline(self) -> tuple[float, str]:
        """Return the time of the next deadline, on the monotonic clock, and its name."""
        idle = (monotonic() + self._idle - self._silence(), "idle") if self._idle else None
        too_old = (self._opened + self._max_age, "too_old") if self._max_age else None
        return min(filter(None, (idle, too_old)))

    def _schedule(self) -> None:
        due_at, _ = self._next_deadline()
        self._timer = asyncio.get_running_loop().call_later(max(RECHECK_SECONDS, due_at - monotonic()), self._check)

    def _check(self) -> None:
        self._timer = None
        due_at, name = self._next_deadline()
        if due_at <= monotonic():
            self.on_passed(name)
        else:
            self._schedule()


# Seconds for which an application may send after our close before it gets an error, and that its own close may take.
CLOSE_TIMEOUT: Final = 10.0

_CLOSE_DETAILS: Final = {
    "idle": gettext_noop("This connection was idle for too long."),
    "too_old": gettext_noop("This connection has reached its maximum age."),
    "not_accepted": gettext_noop("The server took too long to accept this connection."),
}


class Connection:
    """A guarded socket: an ``OpenSocket`` of ``local.open_sockets``.

    Use it on its event loop. Other threads may call ``close`` and ``reset`` and read its numbers.
    """

    __slots__ = (
        "__weakref__", "_closed_at", "_counters", "_deadlines", "_last_caller_entries", "_listened",
        "_listening_since", "_receive", "_send", "_sending_since", "caller", "closed", "escalation", "handshake",
        "has_ended", "has_returned", "id", "incoming", "inner", "is_open", "last_received", "leases", "loop", "lost",
        "opened", "outer", "outgoing", "path", "received", "refused", "scope", "send_own", "sent", "settings",
        "subprotocol", "take_dropped", "waits",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: SocketSettings, outer: Connection | None = None
    ) -> None:
        self.id: str = open_sockets.new_id() if outer is None else outer.id
        self.scope, self.path, self.caller = settings.scope, scope.get("path", ""), AsgiCaller(scope)
        self.settings = settings  #: settings of the entry point
        self.outer = outer  #: connection of another scope around this one
        #: The first offer of the client, with which we accept; then the choice of the application.
        self.subprotocol: Subprotocol = subprotocol_of(next(iter(scope.get("subprotocols") or ()), None))
        self.inner: tuple[Connection, ...] = ()  #: connections of other scopes inside this one
        #: Sends frames of django_throttle.
        self.send_own: Send = best_effort(send) if outer is None else bypassing(outer.send_own, send)
        self._receive, self._send = receive, send
        self.loop = asyncio.get_running_loop()
        self.waits = InterruptibleWaits()
        self.leases: tuple[Lease, ...] = ()
        self.handshake: Decision | None = None  #: decision on the handshake, until the application accepts
        self.opened = self.last_received = monotonic()
        self.received = self.refused = self.sent = self.lost = 0
        outer_incoming, outer_outgoing = (None, None) if outer is None else (outer.incoming, outer.outgoing)
        self._counters = SocketCounters()
        self.incoming: FrameLimits = FrameLimits(self.scope, "message", self.caller, self._counters, outer_incoming)
        self.outgoing: FrameLimits = FrameLimits(self.scope, "send", self.caller, self._counters, outer_outgoing)
        self.escalation = Escalation()
        #: Drops the frames that wait to be sent. Returns the dropped frames that are not reported yet.
        self.take_dropped: Callable[[], DroppedFrames | None] = _no_dropped_frames
        self._last_caller_entries: list[object] = []
        self.is_open = False  #: True between accept and close
        self.has_ended = False  #: True after either side has closed
        self.has_returned = False  #: True after the application has returned
        self.closed: Close | None = None  #: close by django_throttle
        self._closed_at = 0.0
        self._deadlines: Deadlines | None = None
        #: Seconds for which the application has listened since the last frame, without the current wait.
        self._listened = 0.0
        self._listening_since: float | None = None
        self._sending_since: float | None = None

    @property
    def idents(self) -> frozenset[str]:
        """The idents under which it holds leases, and those of its user and address."""
        leased = {ident for lease in self.leases for _, ident in lease.lease_keys}
        return frozenset(leased.union(filter(None, map(self.caller.ident, ("user", "ip")))))

    @property
    def address(self) -> str:
        """The client's address as text; empty if the server reports none."""
        return str(self.caller.address() or "")

    def close_code(self, reason: str) -> int:
        """Return the close code for a reason: that of the site, else of the subprotocol, else the default."""
        return close_code(reason, self.settings.close_codes, self.subprotocol.close_codes)

    def close(self, code: int, reason: str, payload: object = None) -> None:
        """Close the socket on its event loop. Do nothing if it is closed already."""
        self._call_on_loop(self.start_close, Close(code, reason, payload))

    def reset(self) -> None:
        """Clear its counters and cached refusals, on its event loop."""
        self._call_on_loop(self._reset)

    def _call_on_loop(self, function: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the socket with it
            self.loop.call_soon_threadsafe(function, *args)

    def close_for(self, decision: Decision, message: Event | None = None, *, has_started: bool = True) -> Close:
        """Return the close for a refusal, with the payload of the last frame.

        ``message`` is the refused frame. ``has_started`` is False before the client's first operation.
        """
        shape = self.subprotocol.last if has_started else self.subprotocol.last_before_start
        payload = self.settings.refusal_content(decision, shape, message)
        return Close(self.close_code(error_code(decision)), close_reason(decision), payload)

    def start(self) -> None:
        """Register the socket after its handshake is allowed, before its application runs."""
        self._last_caller_entries = self._caller_entries()
        if self.outer is None:
            open_sockets.add(self)
        else:
            self.outer.inner += (self,)
        for outer in self.outers():
            outer.leases += self.leases
        self._deadlines = Deadlines(self._deadline_passed, self.silence)
        if self.outer is not None and self.outer.has_ended:  # during the decision
            self.end()

    def with_inner(self) -> Iterator[Connection]:
        """Yield this connection and all connections inside it."""
        yield self
        for connection in self.inner:
            yield from connection.with_inner()

    def outers(self) -> Iterator[Connection]:
        """Yield the connections around this one, from the inside to the outside."""
        outer = self.outer
        while outer is not None:
            yield outer
            outer = outer.outer

    def adopt(self, settings: SocketSettings, scope: Scope) -> None:
        """Take over the settings and the ASGI scope of an inner entry point of the same scope.

        A router has copied the ASGI scope, and a consumer puts the logged-in user into the copy.
        """
        self.settings, self.caller.subject = settings, scope
        self._last_caller_entries = self._caller_entries()
        if self._deadlines is not None and self.is_open:
            self._deadlines.accept(*settings.lifetimes())

    def _caller_entries(self) -> list[object]:
        scope = self.caller.subject
        return [*map(scope.get, CALLER_ENTRIES), len(scope)]

    def refresh_caller(self) -> bool:
        """Note the caller in the scope. Return True if the application has replaced it since the last call."""
        former, self._last_caller_entries = self._last_caller_entries, self._caller_entries()
        return not all(map(is_, former, self._last_caller_entries))  # an equality test might query a database

    def replace_leases(self, leases: tuple[Lease, ...]) -> None:
        for outer in self.outers():
            outer.leases = (*[lease for lease in outer.leases if lease not in self.leases], *leases)
        self.leases = leases

    async def outer_pairs(self, events: tuple[str, ...]) -> frozenset[tuple[str, str]]:
        """Return the names of rules, and idents, that outer connections charge for these events."""
        rules = await rulebook.acurrent()
        matches = [await match(outer.scope, events, outer.caller, rules) for outer in self.outers()]
        return frozenset[tuple[str, str]]().union(*[matched.pairs for matched in matches])

    async def next_event(self) -> Event:
        """Return the next event of the server, or INTERRUPTED if the socket was closed meanwhile."""
        self._listening_since = monotonic()
        waits, task = self.waits, asyncio.current_task()
        cancellations = waits.begin(task)  # instead of ``waits.on``: hot path, as in ``deliver``
        try:
            event = await self._receive()
        except BaseException as error:
            if not waits.was_interrupted(task, cancellations, error):  # the application may receive again later
                self._listened, self._listening_since = self._listened_for(), None
                raise
            event = INTERRUPTED
        finally:
            waits.tasks.discard(task)
        self._listening_since = None
        if event is not INTERRUPTED and event["type"] == "websocket.receive":
            self.received += 1
            self.last_received, self._listened = monotonic(), 0.0
            for connection in self.inner:
                connection.restart_silence()
        return event

    def restart_silence(self) -> None:
        """Measure silence from now on: an outer connection has received a frame, and may not pass it on."""
        self.last_received, self._listened = monotonic(), 0.0
        if self._listening_since is not None:
            self._listening_since = self.last_received
        for connection in self.inner:
            connection.restart_silence()

    async def deliver(self, event: Event) -> None:
        """Send the application's event to the server. Do nothing after our close, which interrupts a pending send."""
        if self.closed is not None:
            return
        if event["type"] == "websocket.send":
            self.sent += 1
        is_first = self._sending_since is None
        if is_first:
            self._sending_since = monotonic()
        waits, task = self.waits, asyncio.current_task()
        cancellations = waits.begin(task)
        try:
            await self._send(event)
        except BaseException as error:
            # Each server raises its own error for an event after our close.
            is_after_close = self.closed is not None and isinstance(error, Exception)
            if not (waits.was_interrupted(task, cancellations, error) or is_after_close):
                raise
        finally:
            waits.tasks.discard(task)
            if is_first:
                self._sending_since = None

    async def deliver_close(self, event: Event) -> None:
        """Send the application's close to the server. After a timeout, interrupt all waits and raise TimeoutError."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.deliver(event)
        except TimeoutError:
            self.waits.interrupt()
            raise

    def silence(self) -> float:
        """Return the seconds for which the application has listened since the last frame, or since accept.

        The time in which an application is busy does not count, as it reads no frames then. If a send has been
        pending for longer, return its duration: the client has probably gone.
        """
        sending = 0.0 if self._sending_since is None else monotonic() - self._sending_since
        return max(self._listened_for(), sending)

    def _listened_for(self) -> float:
        return self._listened if self._listening_since is None else self._listened + monotonic() - self._listening_since

    def accepted(self) -> None:
        self.handshake = None
        self.is_open = not self.has_ended
        self._listened = 0.0
        if self._listening_since is not None:
            self._listening_since = monotonic()
        if self._deadlines is not None:
            self._deadlines.accept(*self.settings.lifetimes())

    def close_if_server_closed(self) -> None:
        """Close the socket if the server has refused the handshake without telling the application."""
        if is_closed_by_server(self._send):
            self._deadline_passed("not_accepted")

    def _reset(self) -> None:
        self._counters.clear()
        self.escalation.reset()
        self.forget_refusals()
        for connection in self.inner:
            connection._reset()

    def forget_refusals(self) -> None:
        """Drop the matched rules and cached refusals."""
        self.escalation.errors_muted_until = 0.0
        self.incoming.forget()
        self.outgoing.forget()

    def start_close(self, close: Close) -> None:
        """Start closing in a task of its own. Do nothing if the socket is closed already."""
        if self.closed is None and not self.has_ended:
            spawn(self.close_by(close))

    async def close_by(self, close: Close) -> None:
        """Release the leases, send the last frames and the close, and end the application's waits."""
        is_outer_closed = any(outer.closed is not None for outer in self.outers())
        if self.closed is not None or self.has_ended or is_outer_closed:
            return
        self.closed, self._closed_at = close, monotonic()
        if isinstance(close.payload, Mapping):
            close = close._replace(payload=self.subprotocol.last(close.payload))
        last, was_open = self.last_frames(), self.is_open
        self.end()
        accepts = self.settings.refuse == "frame"
        events = (
            close_events(close) if was_open else handshake_close_events(close, self.caller.subject, accepts=accepts)
        )
        try:
            for event in chain(last, events):
                await self.send_own(event)
        finally:
            self.waits.interrupt()

    def last_frames(self) -> tuple[Event, ...]:
        """Return the frames that precede any close: the report of dropped frames, if there are any."""
        dropped = self.take_dropped()
        if dropped is None or not self.is_open:
            return ()
        content = self.settings.continuity_content(dropped, self.subprotocol.notice)
        return () if content is None else (frame_event(content),)

    def check_still_sending(self) -> None:
        """Raise ConnectionAbortedError, an OSError as ASGI wants it, if the application sends long after our close.

        Sending is ignored for CLOSE_TIMEOUT, so that the application can finish. Without the error, an application
        that never receives would go on sending.
        """
        if monotonic() > self._closed_at + CLOSE_TIMEOUT:
            raise ConnectionAbortedError("django_throttle closed this socket: stop sending to it")

    def end(self) -> None:
        """End deadlines and limits, and release the leases. A second call does nothing."""
        if self.has_ended:
            return
        self.is_open, self.has_ended = False, True
        open_sockets.remove(self)
        if self._deadlines is not None:
            self._deadlines.end()
            self._deadlines = None
        if self.outer is not None:
            self.outer.inner = tuple([connection for connection in self.outer.inner if connection is not self])
        for outer in self.outers():
            outer.leases = tuple([lease for lease in outer.leases if lease not in self.leases])
        for lease in self.leases:
            get_store().release_soon(Release(lease.id, lease.lease_keys))
        self.take_dropped()
        self.take_dropped = _no_dropped_frames
        self.outgoing.end()
        self.incoming.end()

    def application_returned(self) -> None:
        """End the connection after its application has returned. It is not an outer connection any more."""
        self.has_returned = True
        self.end()

    async def refund_handshake(self) -> None:
        """Refund the handshake here and in outer connections, as an inner entry point refuses it.

        Connections that are accepted already keep their charges.
        """
        refunds: list[Correct] = []
        for connection in takewhile(lambda each: not each.is_open, (self, *self.outers())):
            if connection.handshake is not None:
                refunds += connection.handshake.ledger.refund_for_refusal()
            connection.handshake = None
        await correct(LoopIo(get_store()), refunds)

    def _deadline_passed(self, reason: str) -> None:
        payload = notice_payload(reason, _CLOSE_DETAILS[reason], retry_after=0)
        self.start_close(Close(self.close_code(reason), reason.replace("_", " "), payload))


def _no_dropped_frames() -> DroppedFrames | None:
    return None
