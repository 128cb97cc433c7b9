"""The state of one guarded socket, from its handshake to its end; its frames pass through ``messages``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from operator import is_
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from django_throttle import rulebook
from django_throttle.conf import conf
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
from django_throttle.websockets.server_stream import is_given_up
from django_throttle.websockets.settings import SocketSettings
from django_throttle.websockets.subprotocols import Subprotocol, subprotocol_of

# What applications put into the scope for a caller: as soon as one of these changes, the socket may be of another.
CALLER_ENTRIES: Final = ("user", "auth", "session")
# What a wait returns that was cut short: known by its identity.
INTERRUPTED: Final[Event] = {}


class InterruptibleWaits:
    """What the ``tasks`` of one application wait for: each for one thing at a time."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any] | None] = set()

    async def on(self, work: Awaitable[object]) -> object:
        """Wait for this; returns INTERRUPTED when ``interrupt`` is called meanwhile."""
        task = asyncio.current_task()
        before = self.begin(task)
        try:
            return await work
        except BaseException as error:
            if not self.was_cut(task, before, error):
                raise
            return INTERRUPTED
        finally:
            self.tasks.discard(task)

    def begin(self, task: asyncio.Task[Any] | None) -> int:
        """This task begins to wait; returns what ``was_cut`` asks for."""
        self.tasks.add(task)
        return 0 if task is None else task.cancelling()

    def was_cut(self, task: asyncio.Task[Any] | None, before: int, error: BaseException) -> bool:
        """Whether ``interrupt`` has raised this. As asyncio.timeout has it, another's cancellation goes on."""
        # A server may have an error of its own for a frame that is cut.
        may_be = task is not None and task not in self.tasks and isinstance(error, (asyncio.CancelledError, Exception))
        return may_be and task.uncancel() <= before  # type: ignore[union-attr]

    def interrupt(self) -> None:
        tasks, self.tasks = self.tasks, set()
        for task in tasks:
            if task is not None:
                task.cancel()


# Seconds between two looks at a deadline that has passed but for the time in which an application was busy.
LOOK_AGAIN: Final = 0.05


class Unaccepted:
    """The sockets of one event loop that nobody has accepted yet: one timer for all, as nearly all of them soon are."""

    __slots__ = ("_due", "_is_watched")

    def __init__(self) -> None:
        self._due: dict[Deadlines, float] = {}  # on the monotonic clock
        self._is_watched = False  # by a timer, which is not kept: it refers to the loop

    def add(self, deadlines: Deadlines, seconds: float) -> None:
        """Have these pass in so many seconds, unless they are discarded."""
        self._due[deadlines] = monotonic() + seconds
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().call_later(seconds, self._look)

    def discard(self, deadlines: Deadlines) -> None:
        self._due.pop(deadlines, None)

    def _look(self) -> None:
        loop, now = asyncio.get_running_loop(), monotonic()
        for one in [one for one, due in self._due.items() if due <= now]:
            self.discard(one)
            loop.call_soon(one.on_passed, "not_accepted")  # what one raises is no concern of the others
        self._is_watched = bool(self._due)
        if self._due:
            loop.call_later(max(LOOK_AGAIN, min(self._due.values()) - now), self._look)


_unaccepted: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Unaccepted]] = WeakKeyDictionary()


class Deadlines:
    """Calls ``on_passed`` with the first deadline of a socket that has passed: not_accepted, idle or too_old.

    ``silence`` returns for how many seconds the application has listened and received nothing.
    """

    __slots__ = ("_idle", "_max_age", "_opened", "_silence", "_timer", "_unaccepted", "on_passed")

    def __init__(self, on_passed: Callable[[str], None], silence: Callable[[], float]) -> None:
        self.on_passed, self._silence = on_passed, silence
        self._opened = monotonic()
        self._idle = self._max_age = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._unaccepted: Unaccepted | None = None
        if wait := conf().SOCKET_ACCEPT_TIMEOUT:
            loop = asyncio.get_running_loop()
            self._unaccepted = _unaccepted.get(loop) or _unaccepted.setdefault(loop, Unaccepted())
            self._unaccepted.add(self, wait)

    def accept(self, idle: float, max_age: float) -> None:
        """It was accepted: watch these from now on, in seconds, 0 for never. Called again, it replaces them."""
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

    def _next(self) -> tuple[float, str] | None:
        """When the next one passes, on the monotonic clock, and which."""
        idle = (monotonic() + self._idle - self._silence(), "idle") if self._idle else None
        too_old = (self._opened + self._max_age, "too_old") if self._max_age else None
        return min(filter(None, (idle, too_old)), default=None)

    def _schedule(self) -> None:
        if (due := self._next()) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(LOOK_AGAIN, due[0] - monotonic()), self._look)

    def _look(self) -> None:
        self._timer = None
        due = self._next()
        if due is not None and due[0] <= monotonic():
            self.on_passed(due[1])
        else:
            self._schedule()


# Seconds that an application may go on sending to a client that we have closed, before it gets an error for it, and
# that its own close may take.
CLOSE_TIMEOUT: Final = 10.0

_DETAILS: Final = {
    "idle": gettext_noop("Nothing has come from you for too long."),
    "too_old": gettext_noop("This connection has been open for as long as one may be."),
    "not_accepted": gettext_noop("The server took too long to accept this connection."),
}


class Connection:
    """One socket, as its application, its limits and other threads see it (``local.open_sockets``).

    ``settings`` are those of its door. ``send_own`` sends our own frames, in the shape of ``subprotocol``. ``outer`` is
    a connection of another scope around this one and ``inner`` are those within. ``take_dropped`` ends the wait of
    unsent frames. ``is_open`` is True between accept and close, ``has_ended`` once either side has closed; ``closed``
    is how we have closed it, and ``is_left`` is True once its application has returned. Used on its event loop;
    ``close`` and ``reset`` are called, and numbers read, from anywhere.
    """

    __slots__ = (
        "__weakref__", "_caller", "_closed_at", "_counters", "_deadlines", "_listened", "_listening_since", "_receive",
        "_send", "caller", "_sending_since", "closed", "escalation", "handshake", "has_ended", "id", "incoming",
        "inner", "is_left", "is_open", "last_received", "leases", "loop", "lost", "opened", "outer", "outgoing", "path",
        "received", "refused", "scope", "send_own", "sent", "settings", "subprotocol", "take_dropped", "waits",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: SocketSettings, outer: Connection | None = None
    ) -> None:
        self.id: str = open_sockets.new_id() if outer is None else outer.id
        self.scope, self.path, self.caller = settings.scope, scope.get("path", ""), AsgiCaller(scope)
        self.settings, self.outer = settings, outer
        # We accept by the first one that the client offers, its application by what it likes.
        self.subprotocol: Subprotocol = subprotocol_of(next(iter(scope.get("subprotocols") or ()), None))
        self.inner: tuple[Connection, ...] = ()
        self.send_own: Send = best_effort(send) if outer is None else bypassing(outer.send_own, send)
        self._receive, self._send = receive, send
        self.loop = asyncio.get_running_loop()
        self.waits = InterruptibleWaits()
        self.leases: tuple[Lease, ...] = ()
        self.handshake: Decision | None = None  # how that was decided, until it is accepted
        self.opened = self.last_received = monotonic()
        self.received = self.refused = self.sent = self.lost = 0
        around = (None, None) if outer is None else (outer.incoming, outer.outgoing)
        self._counters = SocketCounters()
        self.incoming: FrameLimits = FrameLimits(self.scope, "message", self.caller, self._counters, around[0])
        self.outgoing: FrameLimits = FrameLimits(self.scope, "send", self.caller, self._counters, around[1])
        self.escalation = Escalation()
        self.take_dropped: Callable[[], DroppedFrames | None] = _none_dropped
        self._caller: list[object] = []
        self.is_open = self.has_ended = self.is_left = False
        self.closed: Close | None = None
        self._closed_at = 0.0
        self._deadlines: Deadlines | None = None
        self._listened = 0.0  # seconds that the application has listened in vain, up to its last wait
        self._listening_since: float | None = None
        self._sending_since: float | None = None

    @property
    def idents(self) -> frozenset[str]:
        """Whom it counts for: the idents that it holds leases under, its user's and its address's."""
        leased = {ident for lease in self.leases for _, ident in lease.lease_keys}
        return frozenset(leased.union(filter(None, map(self.caller.ident, ("user", "ip")))))

    @property
    def address(self) -> str:
        """The client's address as text; empty when nobody knows it."""
        return str(self.caller.address() or "")

    def close_code(self, reason: str) -> int:
        return close_code(reason, self.settings.close_codes, self.subprotocol.close_codes)

    def close(self, code: int, reason: str, payload: object = None) -> None:
        """Have its event loop close it; a second time, or when it has ended, changes nothing."""
        self._call(self.start_close, Close(code, reason, payload))

    def reset(self) -> None:
        """Have it forget what it has counted and refused: its budgets were given back."""
        self._call(self._reset)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop has been closed, and the socket with it
            self.loop.call_soon_threadsafe(function, *args)

    def close_for(self, decision: Decision, message: Event | None = None, *, has_started: bool = True) -> Close:
        """Return how to close it for a refusal, and the frame that says so before."""
        shape = self.subprotocol.last if has_started else self.subprotocol.last_before_start
        payload = self.settings.refusal_content(decision, shape, message)
        return Close(self.close_code(error_code(decision)), close_reason(decision), payload)

    def start(self) -> None:
        """It has been let in: its application begins."""
        self._caller = self._caller_entries()
        if self.outer is None:
            open_sockets.add(self)
        else:
            self.outer.leases += self.leases
            self.outer.inner += (self,)
        self._deadlines = Deadlines(self._deadline_passed, self.silence)
        if self.outer is not None and self.outer.has_ended:  # while this one was decided
            self.end()

    def all_scopes(self) -> Iterator[Connection]:
        yield self
        for one in self.inner:
            yield from one.all_scopes()

    def adopt(self, settings: SocketSettings, scope: Scope) -> None:
        """An entry point inside, of the same scope, leaves its part to this one, which has its settings from now on.

        Its ASGI scope too: a router has made a copy, into which a consumer puts who has logged in.
        """
        self.settings, self.caller.subject = settings, scope
        self._caller = self._caller_entries()
        if self._deadlines is not None and self.is_open:
            self._deadlines.accept(*settings.lifetimes())

    def _caller_entries(self) -> list[object]:
        scope = self.caller.subject
        return [*map(scope.get, CALLER_ENTRIES), len(scope)]

    def caller_has_changed(self) -> bool:
        """Return True once after the application has put another caller into the scope."""
        before, self._caller = self._caller, self._caller_entries()
        return not all(map(is_, before, self._caller))  # comparing them might ask a database

    def put_leases(self, leases: tuple[Lease, ...]) -> None:
        """Hold these in place of its leases until now."""
        if (outer := self.outer) is not None:
            outer.leases = (*[lease for lease in outer.leases if lease not in self.leases], *leases)
        self.leases = leases

    async def outer_pairs(self, events: tuple[str, ...]) -> frozenset[tuple[str, str]]:
        """Return the names of rules, and idents, that the connection around this one charges for these events."""
        if self.outer is None:
            return frozenset()
        return (await match(self.outer.scope, events, self.outer.caller, await rulebook.acurrent())).pairs

    async def next_event(self) -> Event:
        """The next event from the server; INTERRUPTED where the wait was cut short."""
        self._listening_since = monotonic()
        waits, task = self.waits, asyncio.current_task()
        before = waits.begin(task)  # and not ``waits.on``: on the hot path, here and in ``deliver``
        try:
            event = await self._receive()
        except BaseException as error:
            if not waits.was_cut(task, before, error):  # the application has stopped waiting, and may come back
                self._listened, self._listening_since = self._listened_for(), None
                raise
            event = INTERRUPTED
        finally:
            waits.tasks.discard(task)
        self._listening_since = None
        if event is not INTERRUPTED and event["type"] == "websocket.receive":
            self.received += 1
            self.last_received, self._listened = monotonic(), 0.0
            for one in self.inner:
                one.client_was_heard()
        return event

    def client_was_heard(self) -> None:
        """An outer connection has received a frame, which this one may never see."""
        self.last_received, self._listened = monotonic(), 0.0
        if self._listening_since is not None:
            self._listening_since = self.last_received
        for one in self.inner:
            one.client_was_heard()

    async def deliver(self, event: Event) -> None:
        """Send the application's event to the server, unless we have closed; our close cuts a send that is stuck."""
        if self.closed is not None:
            return
        if event["type"] == "websocket.send":
            self.sent += 1
        is_first = self._sending_since is None
        if is_first:
            self._sending_since = monotonic()
        waits, task = self.waits, asyncio.current_task()
        before = waits.begin(task)
        try:
            await self._send(event)
        except BaseException as error:
            # Each server has its own for what comes after a close, which is our doing.
            is_after_ours = self.closed is not None and isinstance(error, Exception)
            if not (waits.was_cut(task, before, error) or is_after_ours):
                raise
        finally:
            waits.tasks.discard(task)
            if is_first:
                self._sending_since = None

    async def deliver_close(self, event: Event) -> None:
        """Send the application's close to the server. Raises TimeoutError, and cuts all that is stuck."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.deliver(event)
        except TimeoutError:
            self.waits.interrupt()
            raise

    def silence(self) -> float:
        """For how many seconds the application has listened since its client was last heard, or accepted.

        What a client sends to an application that is busy stays unread, and is not held to be silence. But a client
        that takes no frame for so long has gone, or might as well have.
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

    def end_if_given_up(self) -> None:
        """Close a socket that the server has refused meanwhile and will never speak of again."""
        if is_given_up(self._send):
            self._deadline_passed("not_accepted")

    def rules_changed(self) -> None:
        """Refusals under the former rules hold no more."""
        self._forget()

    def _reset(self) -> None:
        self._counters.clear()
        self.escalation.reset()
        self._forget()
        for one in self.inner:
            one._reset()

    def _forget(self) -> None:
        self.escalation.quiet_until = 0.0
        self.incoming.forget()
        self.outgoing.forget()

    def start_close(self, close: Close) -> None:
        if self.closed is None and not self.has_ended:
            spawn(self.close_by(close))

    async def close_by(self, close: Close) -> None:
        """Send the last frames, close, and have the application see it; leases do not wait for any of that."""
        is_outer_closed = self.outer is not None and self.outer.closed is not None
        if self.closed is not None or self.has_ended or is_outer_closed:
            return
        self.closed, self._closed_at = close, monotonic()
        if isinstance(close.payload, Mapping):
            close = close._replace(payload=self.subprotocol.last(close.payload))
        last, was_open = self.last_frames(), self.is_open
        self.end()
        accepts = self.settings.refusal == "frame"
        events = (
            close_events(close) if was_open else handshake_close_events(close, self.caller.subject, accepts=accepts)
        )
        try:
            for event in chain(last, events):
                await self.send_own(event)
        finally:
            self.waits.interrupt()

    def last_frames(self) -> tuple[Event, ...]:
        """What its client is sent before it closes, whoever closes it: the report of dropped frames that is due."""
        dropped = self.take_dropped()
        if dropped is None or not self.is_open:
            return ()
        content = self.settings.continuity_content(dropped, self.subprotocol.notice)
        return () if content is None else (frame_event(content),)

    def check_still_sending(self) -> None:
        """The application sends after we have closed: ignored at first, so that it can end what it is doing.

        An application that never listens would go on for ever. Raises what servers do for a closed socket (ASGI: an
        OSError).
        """
        if monotonic() > self._closed_at + CLOSE_TIMEOUT:
            raise ConnectionAbortedError("django_throttle closed this socket: stop sending to it")

    def end(self) -> None:
        """It has ended: deadlines and limits end, and its leases are released; a second time changes nothing."""
        if self.has_ended:
            return
        self.is_open, self.has_ended = False, True
        open_sockets.remove(self)
        if self._deadlines is not None:
            self._deadlines.end()
            self._deadlines = None
        if (outer := self.outer) is not None:
            outer.inner = tuple([one for one in outer.inner if one is not self])
            outer.leases = tuple([one for one in outer.leases if one not in self.leases])
        for lease in self.leases:
            get_store().release_soon(Release(lease.id, lease.lease_keys))
        self.take_dropped()
        self.take_dropped = _none_dropped
        self.outgoing.end()
        self.incoming.end()

    def leave(self) -> None:
        """Its application has returned: it has ended, and is no connection around others any more."""
        self.is_left = True
        self.end()

    async def refund_handshake(self) -> None:
        """Another entry point refuses the handshake: what this one and those around it have charged for it goes back.

        Not where an application has accepted it.
        """
        refunds: list[Correct] = []
        connection: Connection | None = self
        while connection is not None and not connection.is_open:
            if connection.handshake is not None:
                refunds += connection.handshake.ledger.refund_for_refusal()
            connection.handshake, connection = None, connection.outer
        await correct(LoopIo(get_store()), refunds)

    def _deadline_passed(self, reason: str) -> None:
        payload = notice_payload(reason, _DETAILS[reason], retry_after=0)
        self.start_close(Close(self.close_code(reason), reason.replace("_", " "), payload))


def _none_dropped() -> DroppedFrames | None:
    return None
