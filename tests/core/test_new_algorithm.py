"""An algorithm that is added to the table, with a Lua file, is there wherever algorithms are, without another line."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from django_throttle.admin.rules import PreviewForm, RuleForm, preview_options
from django_throttle.core import Override, Rule
from django_throttle.core.algorithms import ALGORITHMS, Algorithm, CounterParams, State, StepResult
from django_throttle.core.algorithms.base import NEVER, Backfill, Stored, max_units_of, rate_of
from django_throttle.core.commands import charge
from django_throttle.core.decide import correct, decide_charges
from django_throttle.core.descriptions import describe
from django_throttle.core.headers import policies, rate_limit
from django_throttle.core.io import run
from django_throttle.core.overrides import apply_override
from django_throttle.exceptions import InvalidRule
from django_throttle.limiter import Limiter
from django_throttle.models import ThrottleRule
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import BlockingIo, Store
from django_throttle.stores.fallback import BackfillCharge, PendingBackfill
from tests.cases import Case, forgets, passes, refused
from tests.cases import Step as Call
from tests.clock import FrozenClock
from tests.play import aplay, play


@dataclass(frozen=True, slots=True)
class Cooldown(CounterParams):
    """A call that is charged takes all there is, for ``window``. State: until when."""

    window: int
    name, wire_id = "cooldown", 6
    lua = str(Path(__file__).with_name("cooldown.lua"))

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        left = max(0, min(state[0] - now, self.window)) if state else 0
        retry = NEVER if cost > self.limit else left if cost else 0
        charged = (now + self.window,) if retry == 0 else None
        return StepResult(retry, 0 if left else self.limit, left, 0, self.window, charged, None)

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        return () if state[0] == since + self.window else None

    def late_charges(self, state: State, now: int) -> Iterator[Backfill]:
        yield Backfill(self.limit, state[0] - self.window)

    def charge_late(self, state: State | None, now: int, late: Backfill) -> Stored | None:
        finish = max(state[0] if state else 0, late.at + self.window)
        return Stored((finish,), finish - now) if finish > now else None

    def quota_seconds(self, limit: int, window: float) -> float:
        return window * 2


COOLDOWN = Algorithm(
    name="cooldown",
    label="Cooldown",
    help="one call, then none for a while",
    params=lambda rule: Cooldown(max_units_of(rule), rate_of(rule).window_us),
    shape=lambda rule, every: (f"then none for a {every}",),
    takes=("burst",),
    max_limit=50,
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "cooldown", COOLDOWN)


def cooldown(**options: Any) -> Rule:
    return Rule("cooldown", "5/min", algorithm="cooldown", **options)


STEPS: tuple[Call, ...] = (
    passes(0, cost=0, remaining=5, reset=0.0), passes(1, cost=2, remaining=0, reset=60.0),
    refused(31, retry=30.0, remaining=0, reset=30.0), refused(31, cost=6, retry=None), forgets(40, 1),
    passes(41, remaining=0, reset=60.0), passes(101, remaining=0, reset=60.0),
)  # fmt: skip


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("beside", [(), (Rule("fixed", "100/h", algorithm="fixed_window"),)], ids=["alone", "beside"])
def test_stores_play_its_cases(way: str, beside: tuple[Rule, ...], each_store: Store, clock: FrozenClock) -> None:
    steps = STEPS if not beside else tuple(step for step in STEPS if step.verb != "reset" and step.at < 40)
    case = Case("cooldown", (cooldown(), *beside), steps)
    limiter = Limiter(case.rules, each_store)
    if way == "sync":
        play(case, limiter, clock)
    else:
        asyncio.run(aplay(case, limiter, clock))


def test_a_charge_is_refunded(each_store: Store, clock: FrozenClock) -> None:
    charges = (charge(cooldown(), "user:1", 1),)
    decision = run(decide_charges(BlockingIo(each_store), charges))
    assert decision.allowed and decision.remaining == 0
    assert run(correct(BlockingIo(each_store), decision.ledger.refund()))
    assert run(decide_charges(BlockingIo(each_store), charges, commit=False)).remaining == 5


def test_what_a_process_admitted_alone_is_charged_late(redis_url: str, clock: FrozenClock) -> None:
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    store.fallback.local.clock = clock
    late = BackfillCharge(cooldown(), 1, round(clock() * 1_000_000) - 20_000_000)
    assert store.send([store.fallback.call(PendingBackfill("user:1", "name", (late,)))]) == [1]
    assert Limiter([cooldown()], store).acquire("user:1").retry_after == 40.0


def test_rules_and_overrides_check_it() -> None:
    assert cooldown(burst=3).burst == 3  # an option that only some algorithms have
    with pytest.raises(InvalidRule, match="belongs to sliding window only"):
        cooldown(resolution=2)
    with pytest.raises(InvalidRule, match="the limit of a cooldown is at most 50"):
        Rule("cooldown", "51/min", algorithm="cooldown")
    with pytest.raises(InvalidRule, match="did you mean 'cooldown'"):
        Rule("cooldown", "5/min", algorithm="cooldwon")
    changed = apply_override(cooldown(), Override(subject="user:1", effect="multiply", factor=100.0))
    assert changed is not None and changed.limit == 50


def test_descriptions_header_fields_and_the_admin_tell_of_it(clock: FrozenClock) -> None:
    assert describe(cooldown()) == "each user or address: 5 requests per minute, then none for a minute"
    decision = Limiter([cooldown()], MemoryStore(clock=clock)).acquire("user:1")
    fields = rate_limit(policies(decision.outcomes), "draft-11")
    assert fields == {"RateLimit-Policy": '"cooldown";q=5;w=120', "RateLimit": '"cooldown";r=0;t=60'}
    assert dict(PreviewForm().fields["algorithm"].choices)["cooldown"].startswith("Cooldown")
    assert "cooldown" in preview_options(Rule)["algorithms"]["burst"]


@pytest.mark.django_db
def test_the_database_stores_it() -> None:
    ThrottleRule.objects.all().delete()
    shown = RuleForm()
    typed = {name: shown[name].value() or "" for name in shown.fields}
    form = RuleForm({**typed, "name": "cooldown", "rate": "5/min", "algorithm": "cooldown", "burst": "3"})
    assert form.is_valid(), form.errors
    form.save()
    assert ThrottleRule.objects.get().as_rule() == cooldown(burst=3)
