"""``self.throttle`` in a consumer: what a frame has reserved, uses and spends, settled once it is handled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from django_throttle.call_facts import Facts
from django_throttle.core.commands import Paid, Refund
from django_throttle.event_loop import spawn
from django_throttle.measured import settle
from django_throttle.meter import Meter, metered
from django_throttle.sockets.error_frames import Event
from django_throttle.spending import CallThrottle, Spending
from django_throttle.stores import get_store
from django_throttle.stores.base import LoopIo

RESERVED: Final = "django_throttle.reserved"  # in the event of a frame: its FrameState


@dataclass(slots=True)
class FrameState:
    """What one frame was ``charged`` under rules of measured units, and what handles it uses."""

    facts: Facts | None = None
    charged: list[Refund] = field(default_factory=list)
    spending: Spending = field(default_factory=Spending)
    meter: Meter = field(default_factory=Meter)

    def add_batch(self, paid: Paid) -> None:
        if (receipt := paid.receipt) is not None:
            self.charged.append(receipt)


def reserve(frame: Event, facts: Facts, receipt: Refund | None) -> None:
    """Note what this frame was charged under rules of measured units."""
    paid = [one for one in (receipt.paid if receipt else ()) if one.charge.rule.is_measured]
    if receipt and paid:
        state: FrameState = frame.setdefault(RESERVED, FrameState())
        state.facts = facts
        state.charged.append(Refund(tuple(paid), receipt.locally))


async def measure(handle: Callable[[Event], Awaitable[Any]], frame: Event, state: FrameState) -> None:
    """Have a frame handled, and settle it without waiting for that."""
    try:
        with metered() as state.meter:
            await handle(frame)
    finally:
        scope, spent = state.facts.scope if state.facts else "", state.spending.end(state.charged)
        spawn(settle(LoopIo(get_store()), tuple(state.charged), scope, state.meter, spent, ()))


@dataclass(slots=True)
class FrameThrottle(CallThrottle):
    """What a consumer asks about the frame that it handles, or has handled last."""

    state: FrameState = field(default_factory=FrameState)

    @property
    def _call(self) -> FrameState:
        return self.state
