"""Messages of a socket, in and out: which pass, wait, or are dropped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Final

from django.utils import timezone

from django_throttle.core import Decision
from django_throttle.core.decision import error_code
from django_throttle.identity.call import cost_of
from django_throttle.runtime import spawn
from django_throttle.websockets import login
from django_throttle.websockets.connection import INTERRUPTED, Connection
from django_throttle.websockets.counters import MAX_DELAY
from django_throttle.websockets.error_frames import Close, DroppedFrames, Event, close_reason, frame_event
from django_throttle.websockets.limits import size_of
from django_throttle.websockets.subprotocols import subprotocol_of

MAX_END_SIZE: Final = 1024  # bytes of a frame that ends an operation; larger refused frames are not parsed for it
MAX_OPENING_SIZE: Final = 8192  # bytes of a frame that opens a socket, with a token; the same


class Inbound:
    """What the application receives from."""

    __slots__ = ("_connection", "_has_seen_close", "_is_excused", "_pending", "_ready_at", "_unended")

    def __init__(self, connection: Connection, first: Event) -> None:
        self._connection = connection
        self._pending: Event | None = first  # not passed yet: an application that stops waiting gets it next time
        self._ready_at: float | None = None  # when the pending frame, which was allowed, has its turn
        self._has_seen_close = False  # the application, ours
        self._is_excused = False  # the pending frame passes although it was refused
        self._unended = 0  # frames that have passed, each of which may have begun what a refused one ends

    async def receive(self) -> Event:
        """The next event that may pass; a refused frame is answered and dropped."""
        connection = self._connection
        if connection.caller_has_changed():
            await asyncio.shield(spawn(login.follow(connection)))
        while True:
            waits = connection.closed is None or self._has_seen_close
            event = self._pending or (await connection.next_event() if waits else INTERRUPTED)
            if event is not INTERRUPTED and event["type"] != "websocket.receive":
                self._pending = None
                if event["type"] == "websocket.disconnect":
                    connection.end()
                return event
            if (close := connection.closed) is not None:  # a frame that crosses our close reaches no one
                self._pending = None
                if not self._has_seen_close:
                    self._has_seen_close = True
                    return {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
            # A frame that was not looked at yet may pass with no wait.
            elif event is not INTERRUPTED and (
                (self._ready_at is None and connection.settings.cost == 1 and connection.incoming.passes())
                or await self._admit(event)
            ):
                self._pending, self._ready_at = None, None
                if not connection.has_ended:
                    if self._is_excused:  # it does not end a row of refusals
                        self._is_excused = False
                        self._unended -= 1
                    else:
                        self._unended += 1
                        if (escalation := connection.escalation).violations or escalation.quiet_until:
                            escalation.reset()
                    return event
                await asyncio.sleep(0)  # it crosses the application's own close: nobody is charged for it any more

    async def _admit(self, event: Event) -> bool:
        """Whether a frame passes, once it has waited for its turn."""
        connection, self._pending = self._connection, event
        if self._ready_at is None:
            cost = connection.settings.cost
            decision = await connection.incoming.admit(event, 1 if cost == 1 else cost_of(cost, event))
            if decision is None:
                return True
            if not decision.allowed:
                return await self._refuse(event, decision)
            self._ready_at = monotonic() + decision.delay
        return await connection.waits.on(asyncio.sleep(self._ready_at - monotonic())) is not INTERRUPTED

    async def _refuse(self, event: Event, decision: Decision) -> bool:
        """Do what is due for a refused frame; True when it passes all the same, having waited."""
        connection = self._connection
        escalation, settings = connection.escalation, connection.settings
        connection.refused += 1
        if self._ends_operation(event):
            self._is_excused = True
            return True
        action = escalation.refused(decision, settings.action)
        if action == "delay" and decision.retry_after and await self._passes_later(event, decision.retry_after):
            return True
        close = Close(connection.close_code(error_code(decision)), close_reason(decision))
        is_answered = action != "drop" and escalation.may_send_error(decision, once=settings.answers == "once")
        if connection.is_open and (is_answered or size_of(event) <= MAX_OPENING_SIZE):
            subprotocol = connection.subprotocol
            message = subprotocol.read(event)
            if subprotocol.opens(message):  # never in silence: its client would wait for ever
                action, close = "close", connection.close_for(decision, event, has_started=False)
            elif is_answered and (
                content := settings.refusal_content(decision, partial(subprotocol.answer, message), event)
            ):
                await connection.send_own(frame_event(content))
        self._pending = None
        if action == "close" and connection.is_open:
            await asyncio.shield(spawn(connection.close_by(close)))  # an application that waits no longer cuts it not
        # Neither a full queue of frames nor the memory store ever waits: let other sockets have a turn.
        await asyncio.sleep(0)
        return False

    def _ends_operation(self, event: Event) -> bool:
        """Return True for a refused frame that frees what the server holds, so that nothing runs for nobody.

        There are no more of them than frames have passed, as those have begun what is ended.
        """
        if not self._unended or size_of(event) > MAX_END_SIZE:
            return False
        subprotocol = self._connection.subprotocol
        return subprotocol.ends_operation(subprotocol.read(event))

    async def _passes_later(self, event: Event, seconds: float) -> bool:
        """Whether a refused frame passes after all, when it is delayed for as long as any may be."""
        connection = self._connection
        if await connection.waits.on(asyncio.sleep(min(seconds, MAX_DELAY))) is INTERRUPTED:
            return False
        again = await connection.incoming.admit(event, cost_of(connection.settings.cost, event))
        return again is None or again.allowed


logger = logging.getLogger("django_throttle")

_ENDING: Final = ("websocket.close", "websocket.http.response.start")


class Outbound:
    """What the application sends through."""

    __slots__ = ("_closing", "_connection", "_unsent")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unsent: UnsentFrames | None = None
        self._closing = False  # the application's close is on its way
        connection.take_dropped = self._take_dropped

    async def send(self, event: Event) -> None:
        """Pass the application's event on, unless the socket was closed here: then nothing more may follow."""
        connection = self._connection
        if connection.closed is not None:
            connection.check_still_sending()
        elif event["type"] == "websocket.send":
            if self._unsent is None and not self._closing and connection.outgoing.passes():
                await connection.deliver(event)
            else:
                await self._send_frame(event)
        elif event["type"] in _ENDING:
            await self._close(event)
        else:
            if is_accept := event["type"] == "websocket.accept":
                connection.subprotocol = subprotocol_of(event.get("subprotocol"))
            await connection.deliver(event)
            if is_accept:
                connection.accepted()
                connection.end_if_given_up()

    async def _send_frame(self, event: Event) -> None:
        connection = self._connection
        decision = await connection.outgoing.admit(event)
        unsent = self._unsent
        if decision is not None and not decision.allowed:
            if connection.has_ended:  # nobody is there to be told, now or later
                return
            if unsent is None:
                unsent = self._unsent = UnsentFrames(connection)
            unsent.refused(event, connection.settings.coalesce_kind(event), decision.retry_after)
            return
        if decision is not None:
            await connection.waits.on(asyncio.sleep(decision.delay))
        if self._closing:  # a frame that crosses the close reaches no one, and nobody is charged for it
            return
        if unsent is not None and not connection.has_ended:
            unsent.replaced(connection.settings.coalesce_kind(event))
            await unsent.report()
        await connection.deliver(event)

    async def _close(self, event: Event) -> None:
        """As the application says. Raises TimeoutError, an OSError, when the client takes nothing for too long."""
        connection = self._connection
        last, self._closing = connection.last_frames(), True
        connection.end()
        try:
            for one in last:
                await connection.send_own(one)
            await connection.deliver_close(event)
        finally:
            self._closing = False

    def _take_dropped(self) -> DroppedFrames | None:
        unsent, self._unsent = self._unsent, None
        return None if unsent is None else unsent.end()


# Kinds of frames of which the newest is kept.
MAX_KINDS: Final = 1000
# Seconds between two frames that report dropped ones, and before kept frames are tried again.
REPORT_EVERY: Final = 1.0
TRY_AGAIN: Final = 0.01


class UnsentFrames:
    """The frames to one client that were refused; ``lost`` have been dropped since the last report."""

    __slots__ = ("_connection", "_newest", "_reported", "_since", "_timer", "lost")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._newest: dict[Hashable, Event] = {}
        self._since: datetime | None = None
        self._reported = -REPORT_EVERY
        self._timer: asyncio.TimerHandle | None = None
        self.lost = 0

    def refused(self, event: Event, kind: Hashable | None, wait: float | None) -> None:
        """A frame may not go for ``wait`` seconds, None for ever: it is kept for its kind, or lost."""
        if kind is None or wait is None:
            self._lose()
        else:
            self.replaced(kind)
            self._newest[kind] = event
            if len(self._newest) > MAX_KINDS:
                self.replaced(next(iter(self._newest)))
        self._later(REPORT_EVERY if wait is None else max(wait, TRY_AGAIN))

    def replaced(self, kind: Hashable | None) -> None:
        """There is a newer frame of this kind: the one that was kept will never be sent."""
        if kind is not None and self._newest.pop(kind, None) is not None:
            self._lose()

    async def report(self) -> None:
        """Report to the client what was dropped, unless there was a report a moment ago: then later."""
        if not self.lost or self._since is None:
            return
        wait = self._reported + REPORT_EVERY - monotonic()
        if wait > 0:
            self._later(wait)
            return
        dropped, self.lost, self._since, self._reported = DroppedFrames(self.lost, self._since), 0, None, monotonic()
        connection = self._connection
        content = connection.settings.continuity_content(dropped, connection.subprotocol.notice)
        if connection.is_open and content is not None:
            await connection.send_own(frame_event(content))

    def end(self) -> DroppedFrames | None:
        """The socket has ended, and nothing more is sent: what was dropped and not reported."""
        for kind in tuple(self._newest):
            self.replaced(kind)
        dropped = DroppedFrames(self.lost, self._since) if self.lost and self._since is not None else None
        self.lost = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return dropped

    def _lose(self) -> None:
        self.lost += 1
        self._connection.lost += 1
        self._since = self._since or timezone.now()

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._again)

    def _again(self) -> None:
        self._timer = None
        spawn(self._try_again())

    async def _try_again(self) -> None:
        """Raises nothing, as nobody waits for it: the server tells the application of a client that has gone."""
        try:
            await self._send_newest()
        except Exception as error:  # noqa: BLE001 - each server has its own
            logger.debug("a frame that was kept for a client was not sent: %r", error)

    async def _send_newest(self) -> None:
        """Send the newest frame of each kind, as far as there is room by now, and report the others."""
        for kind, event in list(self._newest.items()):
            decision = await self._connection.outgoing.admit(event)
            if self._newest.get(kind) is not event:  # replaced meanwhile
                continue
            if decision is not None and not decision.allowed:
                self._later(max(decision.retry_after or REPORT_EVERY, TRY_AGAIN))
                break
            del self._newest[kind]
            await self.report()
            await self._connection.deliver(event)
        await self.report()
