"""``self.throttle`` in a consumer: the reserved, measured and spent units of a frame, settled after it is handled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from django_throttle.core.ledger import Ledger
from django_throttle.costs.measured import settle
from django_throttle.costs.meter import Meter, metered
from django_throttle.http.spending import CallThrottle, Spending
from django_throttle.identity.call import Call
from django_throttle.runtime import spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import LoopIo
from django_throttle.websockets.error_frames import Event

FRAME_STATE_KEY: Final = "django_throttle.reserved"  # key of the FrameState in the event of a frame


@dataclass(slots=True)
class FrameState:
    """The charges of a frame under rules of measured units, and the usage of its handler."""

    call: Call | None = None
    ledger: Ledger = field(default_factory=Ledger)
    spending: Spending = field(default_factory=Spending)
    meter: Meter = field(default_factory=Meter)


def attach_reserved(frame: Event, call: Call, ledger: Ledger) -> None:
    """Store the frame's charges under rules of measured units in its event."""
    reserved = tuple([entry for entry in ledger.entries if entry.charge.rule.is_measured])
    if reserved:
        state: FrameState = frame.setdefault(FRAME_STATE_KEY, FrameState())
        state.call = call
        state.ledger.add(reserved)


async def measure(handle: Callable[[Event], Awaitable[object]], frame: Event, state: FrameState) -> None:
    """Handle a frame and measure that, then settle its charges in a background task."""
    try:
        with metered() as state.meter:
            await handle(frame)
    finally:
        state.ledger.end()
        scope, spent = state.call.scope if state.call else "", state.spending.end(state.ledger)
        spawn(settle(LoopIo(get_store()), state.ledger, scope, state.meter, spent, ()))


@dataclass(slots=True)
class FrameThrottle(CallThrottle):
    """The ``self.throttle`` of a consumer, for the frame that it handles or has handled last."""

    state: FrameState = field(default_factory=FrameState)

    @property
    def _call(self) -> FrameState:
        return self.state
