"""Incoming and outgoing messages of a socket: they pass, wait or are dropped."""

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
from django_throttle.identity.site_functions import cost_of
from django_throttle.runtime import spawn
from django_throttle.websockets import login
from django_throttle.websockets.connection import INTERRUPTED, Connection
from django_throttle.websockets.counters import MAX_DELAY
from django_throttle.websockets.error_frames import Close, DroppedFrames, Event, close_reason, frame_event
from django_throttle.websockets.limits import size_of
from django_throttle.websockets.subprotocols import subprotocol_of

# Bytes. Refused frames that are larger are not parsed to see whether they end an operation, or open a socket.
MAX_END_SIZE: Final = 1024
MAX_OPENING_SIZE: Final = 8192  # has room for a token


class Inbound:
    """The receiving side of an application."""

    __slots__ = ("_connection", "_has_seen_close", "_is_exempt", "_pending", "_passes_at", "_passed_frames")

    def __init__(self, connection: Connection, first: Event) -> None:
        self._connection = connection
        #: The event that has not passed yet. It stays here if the application stops waiting.
        self._pending: Event | None = first
        #: The time on the monotonic clock when the pending frame passes, once it is allowed.
        self._passes_at: float | None = None
        self._has_seen_close = False  #: True after the application has received our close
        self._is_exempt = False  #: True if the pending frame passes although it was refused
        self._passed_frames = 0  #: passed frames that no exempt frame has ended yet; each may have started an operation

    async def receive(self) -> Event:
        """Return the next event that may pass. Refused frames are answered and dropped."""
        connection = self._connection
        if connection.refresh_caller():
            await asyncio.shield(spawn(login.move_leases(connection)))
        while True:
            may_wait = connection.closed is None or self._has_seen_close
            event = self._pending or (await connection.next_event() if may_wait else INTERRUPTED)
            if event is not INTERRUPTED and event["type"] != "websocket.receive":
                self._pending = None
                if event["type"] == "websocket.disconnect":
                    connection.end()
                return event
            if (close := connection.closed) is not None:  # a frame that arrives after our close is dropped
                self._pending = None
                if not self._has_seen_close:
                    self._has_seen_close = True
                    return {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
            # ``try_admit`` comes first for a frame that has not been decided yet.
            elif event is not INTERRUPTED and (
                (self._passes_at is None and connection.settings.cost == 1 and connection.incoming.try_admit())
                or await self._admit_frame(event)
            ):
                self._pending, self._passes_at = None, None
                if not connection.has_ended:
                    if self._is_exempt:  # refusals before it still count as consecutive
                        self._is_exempt = False
                        self._passed_frames -= 1
                    else:
                        self._passed_frames += 1
                        if (escalation := connection.escalation).violations or escalation.errors_muted_until:
                            escalation.reset()
                    return event
                await asyncio.sleep(0)  # the application closed meanwhile: the frame is dropped without a charge

    async def _admit_frame(self, event: Event) -> bool:
        """Decide a frame, and wait for its delay. Return True if it passes."""
        connection, self._pending = self._connection, event
        if self._passes_at is None:
            cost = connection.settings.cost
            decision = await connection.incoming.check_frame(event, 1 if cost == 1 else cost_of(cost, event))
            if decision is None:
                return True
            if not decision.allowed:
                return await self._handle_refusal(event, decision)
            self._passes_at = monotonic() + decision.delay
        return await connection.waits.on(asyncio.sleep(self._passes_at - monotonic())) is not INTERRUPTED

    async def _handle_refusal(self, event: Event, decision: Decision) -> bool:
        """Take the action for a refused frame. Return True if it passes after all, as an exempt or delayed frame."""
        connection = self._connection
        escalation, settings = connection.escalation, connection.settings
        connection.refused += 1
        if self._ends_operation(event):
            self._is_exempt = True
            return True
        action = escalation.action_for_refusal(decision, settings.action)
        if action == "delay" and decision.retry_after and await self._admit_after_delay(event, decision.retry_after):
            return True
        close = Close(connection.close_code(error_code(decision)), close_reason(decision))
        is_answered = action != "drop" and escalation.may_send_error(decision, once=settings.answers == "once")
        if connection.is_open and (is_answered or size_of(event) <= MAX_OPENING_SIZE):
            subprotocol = connection.subprotocol
            message = subprotocol.read(event)
            if subprotocol.opens(message):  # without an answer its client would wait for ever
                action, close = "close", connection.close_for(decision, event, has_started=False)
            elif is_answered and (
                content := settings.refusal_content(decision, partial(subprotocol.answer, message), event)
            ):
                await connection.send_own(frame_event(content))
        self._pending = None
        if action == "close" and connection.is_open:
            await asyncio.shield(spawn(connection.close_by(close)))  # goes on if the application stops waiting
        # A full queue of frames and the memory store never yield to the event loop.
        await asyncio.sleep(0)
        return False

    def _ends_operation(self, event: Event) -> bool:
        """Return True for a refused frame that ends an operation, and so frees resources of the server.

        Return False if more frames would be exempt than have passed, as each passed frame starts at most one operation.
        """
        if not self._passed_frames or size_of(event) > MAX_END_SIZE:
            return False
        subprotocol = self._connection.subprotocol
        return subprotocol.ends_operation(subprotocol.read(event))

    async def _admit_after_delay(self, event: Event, seconds: float) -> bool:
        """Delay a refused frame, by MAX_DELAY at most, and decide it again. Return True if it passes."""
        connection = self._connection
        if await connection.waits.on(asyncio.sleep(min(seconds, MAX_DELAY))) is INTERRUPTED:
            return False
        decision = await connection.incoming.check_frame(event, cost_of(connection.settings.cost, event))
        return decision is None or decision.allowed


logger = logging.getLogger("django_throttle")

_CLOSE_EVENTS: Final = ("websocket.close", "websocket.http.response.start")


class Outbound:
    """The sending side of an application."""

    __slots__ = ("_is_closing", "_connection", "_unsent")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unsent: UnsentFrames | None = None
        self._is_closing = False  #: True while the application's close is being sent
        connection.take_dropped = self._take_dropped

    async def send(self, event: Event) -> None:
        """Pass the application's event on, unless django_throttle has closed the socket."""
        connection = self._connection
        if connection.closed is not None:
            connection.check_still_sending()
        elif event["type"] == "websocket.send":
            if self._unsent is None and not self._is_closing and connection.outgoing.try_admit():
                await connection.deliver(event)
            else:
                await self._send_frame(event)
        elif event["type"] == "websocket.accept":
            connection.subprotocol = subprotocol_of(event.get("subprotocol"))
            await connection.deliver(event)
            connection.accepted()
            connection.close_if_server_closed()
        elif event["type"] in _CLOSE_EVENTS:
            await self._close(event)
        else:
            await connection.deliver(event)

    async def _send_frame(self, event: Event) -> None:
        connection = self._connection
        decision = await connection.outgoing.check_frame(event)
        unsent = self._unsent
        if decision is not None and not decision.allowed:
            if connection.has_ended:
                return
            if unsent is None:
                unsent = self._unsent = UnsentFrames(connection)
            unsent.keep_or_drop(event, connection.settings.coalesce_kind(event), decision.retry_after)
            return
        if decision is not None:
            await connection.waits.on(asyncio.sleep(decision.delay))
        if self._is_closing:  # the frame cannot be sent after the close
            return
        if unsent is not None and not connection.has_ended:
            unsent.drop_kept(connection.settings.coalesce_kind(event))
            await unsent.report()
        await connection.deliver(event)

    async def _close(self, event: Event) -> None:
        """Close as the application asks. Raise TimeoutError, an OSError, if the client reads nothing for too long."""
        connection = self._connection
        last_frames, self._is_closing = connection.last_frames(), True
        connection.end()
        try:
            for frame in last_frames:
                await connection.send_own(frame)
            await connection.deliver_close(event)
        finally:
            self._is_closing = False

    def _take_dropped(self) -> DroppedFrames | None:
        unsent, self._unsent = self._unsent, None
        return None if unsent is None else unsent.end()


# Kinds of frames whose newest frame is kept.
MAX_KINDS: Final = 1000
# Seconds between two reports of dropped frames.
REPORT_SECONDS: Final = 1.0
# Seconds until kept frames are decided again, at least.
MIN_RETRY_SECONDS: Final = 0.01


class UnsentFrames:
    """The refused frames to one client: the newest of each kind is kept, the others are dropped."""

    __slots__ = ("_connection", "_newest", "_reported_at", "_since", "_timer", "lost")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._newest: dict[Hashable, Event] = {}
        self._since: datetime | None = None  #: time when the first frame of the next report was dropped
        self._reported_at = -REPORT_SECONDS  #: time of the last report, on the monotonic clock
        self._timer: asyncio.TimerHandle | None = None
        self.lost = 0  #: number of frames dropped since the last report

    def keep_or_drop(self, event: Event, kind: Hashable | None, wait: float | None) -> None:
        """Keep a refused frame as the newest of its kind, or drop it.

        It may be sent in ``wait`` seconds, never if that is None.
        """
        if kind is None or wait is None:
            self._count_lost()
        else:
            self.drop_kept(kind)
            self._newest[kind] = event
            if len(self._newest) > MAX_KINDS:
                self.drop_kept(next(iter(self._newest)))
        self._schedule_retry(REPORT_SECONDS if wait is None else max(wait, MIN_RETRY_SECONDS))

    def drop_kept(self, kind: Hashable | None) -> None:
        """Drop the kept frame of a kind, as there is a newer one."""
        if kind is not None and self._newest.pop(kind, None) is not None:
            self._count_lost()

    async def report(self) -> None:
        """Report dropped frames to the client, at most once in REPORT_SECONDS."""
        if not self.lost or self._since is None:
            return
        wait = self._reported_at + REPORT_SECONDS - monotonic()
        if wait > 0:
            self._schedule_retry(wait)
            return
        dropped = DroppedFrames(self.lost, self._since)
        self.lost, self._since, self._reported_at = 0, None, monotonic()
        connection = self._connection
        content = connection.settings.continuity_content(dropped, connection.subprotocol.notice)
        if connection.is_open and content is not None:
            await connection.send_own(frame_event(content))

    def end(self) -> DroppedFrames | None:
        """Drop all kept frames, as the socket has ended. Return the dropped frames that are not reported yet."""
        for kind in tuple(self._newest):
            self.drop_kept(kind)
        dropped = DroppedFrames(self.lost, self._since) if self.lost and self._since is not None else None
        self.lost = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return dropped

    def _count_lost(self) -> None:
        self.lost += 1
        self._connection.lost += 1
        self._since = self._since or timezone.now()

    def _schedule_retry(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._retry)

    def _retry(self) -> None:
        self._timer = None
        spawn(self._retry_quietly())

    async def _retry_quietly(self) -> None:
        """Send kept frames. Errors are only logged: the server tells the application if the client has gone."""
        try:
            await self._send_newest()
        except Exception as error:  # noqa: BLE001 - each server has its own
            logger.debug("a frame that was kept for a client was not sent: %r", error)

    async def _send_newest(self) -> None:
        """Send the newest frame of each kind that is allowed now, and report dropped frames."""
        for kind, event in list(self._newest.items()):
            decision = await self._connection.outgoing.check_frame(event)
            if self._newest.get(kind) is not event:  # replaced during the decision
                continue
            if decision is not None and not decision.allowed:
                self._schedule_retry(max(decision.retry_after or REPORT_SECONDS, MIN_RETRY_SECONDS))
                break
            del self._newest[kind]
            await self.report()
            await self._connection.deliver(event)
        await self.report()
