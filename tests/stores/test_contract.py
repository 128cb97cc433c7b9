"""Every case of the table: on each store and both drivers, on the counters of one socket, and through sockets."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from django_throttle.limiter import Limiter
from django_throttle.stores.base import Store
from django_throttle.websockets.settings import LADDER
from tests.cases import ANY, CASES, FRAMES, Case, Step, cases
from tests.clock import FrozenClock
from tests.doors import Enforce
from tests.play import HOOK, OwnCounters, Sockets, aplay, play, with_options

OWN: dict[str, Any] = {"key": "connection", "events": ["message"]}
SHARED: dict[str, Any] = {"key": "ip", "events": ["message"]}
OPEN: dict[str, Any] = {"key": "ip", "events": ["connection"]}
FRAME_VERBS = {"acquire", "peek"}


def named(*cases: Case) -> list[Any]:
    return [pytest.param(case, id=case.name) for case in cases]


def played(cases: tuple[Case, ...], verbs: set[str], options: dict[str, Any]) -> list[Case]:
    return [replace(case, rules=rules) for case in cases if (rules := with_options(case, verbs, **options))]


def remembered(case: Case) -> Case:
    """The case for a socket, which repeats an earlier refusal of its own rules until there is room again."""
    return replace(case, steps=tuple(_remembered(step) for step in case.steps))


def _remembered(step: Step) -> Step:
    is_refused = step.allowed is False or (step.admitted is not None and step.admitted < step.times)
    return replace(step, remaining=ANY, reset=ANY, each=ANY) if is_refused else step


@pytest.mark.parametrize("case", named(*CASES))
def test_sync(case: Case, each_store: Store, clock: FrozenClock) -> None:
    play(case, Limiter(case.rules, each_store), clock)


@pytest.mark.parametrize("case", named(*CASES))
def test_async(case: Case, each_store: Store, clock: FrozenClock) -> None:
    asyncio.run(aplay(case, Limiter(case.rules, each_store), clock))


COUNTERS = played(CASES, FRAME_VERBS | {"reset"}, OWN)
SOCKETS = [
    *((OWN, remembered(case)) for case in played((*CASES, *cases(FRAMES)), FRAME_VERBS, OWN)),
    *((SHARED, case) for case in played((*CASES, *cases(FRAMES)), FRAME_VERBS, SHARED)),
    *((OPEN, case) for case in played(CASES, {"lease", "release", "peek"}, OPEN)),
]


@pytest.mark.parametrize("case", named(*COUNTERS))
def test_counters_of_a_socket(case: Case, clock: FrozenClock) -> None:
    play(case, OwnCounters(case.rules, clock), clock)


@pytest.mark.parametrize(
    ("options", "case"), [pytest.param(*row, id=f"{row[0]['key']}: {row[1].name}") for row in SOCKETS]
)
async def test_sockets(
    options: dict[str, Any], case: Case, enforce: Enforce, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_throttle.websockets.limits.monotonic", clock)
    rules: Any = {rule.name: rule.as_options() for rule in case.rules}
    monkeypatch.setitem(LADDER, "close", 0)
    enforce(**rules, HOOKS=[HOOK])
    sockets = Sockets(case.rules)
    await aplay(case, sockets, clock)
    await sockets.end()
