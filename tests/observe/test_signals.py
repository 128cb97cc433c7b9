"""Who is told of what: receivers of each signal, sync and async, and none of them can make a call fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction

from django_throttle import observe
from django_throttle.call_facts import Facts
from django_throttle.core import Decision
from django_throttle.core.commands import OnceKey
from django_throttle.core.decision import Crossing
from django_throttle.exceptions import Cause
from django_throttle.signals import quota_warning, shadowed, store_failed, throttled
from tests.observe.conftest import FACTS, decided

SIGNALS = {"throttled": throttled, "shadowed": shadowed, "quota_warning": quota_warning, "store_failed": store_failed}
Enforce = Callable[..., None]


class Receiver:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.told: dict[str, Any] = {}

    def hear(self, sender: object, signal: Any, facts: Facts, **told: Any) -> None:
        assert facts is FACTS
        self.names.append(next(name for name, each in SIGNALS.items() if each is signal))
        self.told = told

    async def ahear(self, sender: object, signal: Any, facts: Facts, **told: Any) -> None:
        await asyncio.sleep(0)
        self.hear(sender, signal, facts, **told)

    def fail(self, **_: object) -> None:
        raise ZeroDivisionError

    async def afail(self, **_: object) -> None:
        raise ZeroDivisionError


@pytest.fixture(params=["hear", "ahear"])
def told(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """What a receiver of each colour hears, beside two that fail."""
    receiver = Receiver()
    methods = [receiver.fail, getattr(receiver, request.param), receiver.afail]
    for signal in SIGNALS.values():
        for method in methods:
            signal.connect(method, dispatch_uid=method.__name__)
    yield receiver
    for signal in SIGNALS.values():
        for method in methods:
            signal.disconnect(dispatch_uid=method.__name__)


async def tell(decision: Decision, on_loop: bool) -> None:
    if on_loop:
        await observe.atell(FACTS, decision)
    else:
        await asyncio.to_thread(observe.tell, FACTS, decision)


WARNED = decided(True)
CROSSING = Crossing(WARNED.outcomes[0], 0.8, OnceKey("one", "user:somebody", "80", 60))
TOLD = {
    "allowed": (decided(True, True), []),
    "no rule applies": (Decision(), []),
    "refused": (decided(True, False), ["throttled"]),
    "shadowed": (decided(False, shadow=True), ["shadowed"]),
    "refused by one, shadowed by another": (
        decided(False)._replace(outcomes=decided(False).outcomes + decided(False, shadow=True).outcomes),
        ["throttled", "shadowed"],
    ),
    "without the store": (decided(True)._replace(degraded=True, cause=Cause.POOL), ["store_failed"]),
    "refused without the store": (decided(False)._replace(degraded=True), ["throttled", "store_failed"]),
    "warned twice": (WARNED._replace(crossed=(CROSSING, CROSSING)), ["quota_warning"] * 2),
}


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("case", TOLD)
async def test_each_signal_is_sent_for_what_it_means(case: str, on_loop: bool, told: Receiver) -> None:
    decision, names = TOLD[case]
    await tell(decision, on_loop)
    assert told.names == names
    if "quota_warning" in names:
        assert told.told == {"outcome": WARNED.outcomes[0], "share": 0.8}
    elif names:
        assert told.told == {"decision": decision}


@pytest.mark.parametrize("told", ["ahear"], indirect=True)
async def test_a_synchronous_call_on_a_loop_has_no_async_receivers(
    told: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Django calls those by async_to_sync, which cannot be used where a loop runs."""
    assert iscoroutinefunction(told.ahear)
    observe.tell(FACTS, decided(False))
    assert told.names == []
    assert "receiver was not called" in caplog.text
