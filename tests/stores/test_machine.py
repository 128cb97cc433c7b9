"""Whatever happens, in whatever order: memory and Redis say the same on both drivers, and the invariants hold.

One clock, which is set forward and back, and two stores on it. After every step: equal decisions; a refused call has
changed no key, but for a clock's repair; ``retry_after`` is exact; every key has a time to live; nobody else's key has
changed.
"""

import asyncio
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from django_throttle.core import Decision, Rule, decide
from django_throttle.core.io import run
from django_throttle.core.ledger import corrections, settlement
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import BlockingIo
from django_throttle.stores.redis.scripts import OWN_KEY
from tests.cases import MEASURED_BUCKETS, MEASURED_WINDOWS
from tests.clock import FrozenClock
from tests.inside import counters
from tests.records import kept_id, records, written
from tests.servers import RedisServer
from tests.strategies import rate_rules, rates

STEPS = 25
IDENTS = ("user:1", "user:1\x00", "{user:1}:\ud800")
LIMITS = st.integers(1, 6) | st.integers(1, 5000)
ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
HOUR = 3_600_000_000
# Microseconds, two years: the clock stays within them. A record says without leading digits when it runs out, and one
# without calls did so 2.2 years before it was made.
SPAN = 2**46
# Shares of a rule's window; microseconds; an hour forth and back.
JUMPS = (
    st.floats(0, 1)
    | st.floats(-3, 1)
    | st.sampled_from([0.5, 1.0, 2.0])
    | st.integers(-2, 2)
    | st.sampled_from([-HOUR, HOUR])
)
COSTS = st.integers(1, 3) | st.integers(0, 6000)
CALLS = st.tuples(st.sampled_from(IDENTS), COSTS)
ACTIONS = st.sampled_from(["reject", "reject", "reject", "shadow"])
STATUSES = st.sampled_from([(), (401, 403)])


@st.composite
def calendar_rules(draw: st.DrawFn, name: str) -> Rule:
    zone, unit = draw(ZONES), draw(st.sampled_from(["h", "day", "w", "month"]))
    zone = zone or (None if unit == "month" else "UTC")
    options = {"timezone": zone, "action": draw(ACTIONS), "count_denied": draw(st.booleans())}
    return Rule(name, f"{draw(LIMITS)}/{unit}", algorithm="fixed_window", **options)


@st.composite
def several_rates(draw: st.DrawFn, name: str) -> Rule:
    found = draw(st.lists(rates(st.integers(1, 9)), min_size=2, max_size=3, unique_by=lambda rate: rate.window))
    algorithm = draw(st.sampled_from(["fixed_window", "sliding_window", "sliding_log", "gcra", "token_bucket"]))
    return Rule(name, rates=tuple(found), algorithm=algorithm, action=draw(ACTIONS), count_on=draw(STATUSES))


@st.composite
def slots(draw: st.DrawFn, name: str) -> Rule:
    return Rule(name, limit=draw(st.integers(1, 3)), algorithm="concurrency", action=draw(ACTIONS))


@st.composite
def any_rule(draw: st.DrawFn, name: str) -> Rule:
    plain = rate_rules(name, rates(LIMITS), {"action": draw(ACTIONS), "count_on": draw(STATUSES)}, LIMITS)
    measured = st.sampled_from([*MEASURED_WINDOWS, *MEASURED_BUCKETS]).map(lambda rule: replace(rule, name=name))
    return draw(st.one_of(plain, plain, plain, calendar_rules(name), several_rates(name), slots(name), measured))


class Histories(RuleBasedStateMachine):
    def __init__(self, server: RedisServer, client: Redis) -> None:
        super().__init__()
        self.client = client
        client.flushall()
        self.runner = asyncio.Runner()
        self.clock = FrozenClock()
        self.memory = MemoryStore(clock=self.clock)
        self.redis = RedisStore(server.url, clock=self.clock, deadline=5.0)
        self.rules: list[Rule] = []
        self.passed: list[tuple[Decision, Decision]] = []  # in memory and in Redis
        self.latest = self.first = 0
        self.edited = False
        self.numbers = count()  # of calls that have ended
        self.known: set[str] = set()  # the ids of all rules
        self.own: set[str] = set()  # and of those that have keys of their own

    @initialize(data=st.data(), count=st.integers(1, 3), start=st.integers(0, 24 * HOUR))
    def begin(self, data: st.DataObject, count: int, start: int) -> None:
        self.rules = [data.draw(any_rule(f"rule {number}")) for number in range(count)]
        self.learn_rules()
        self.clock.now_us += start
        self.latest = self.first = self.clock.now_us

    # What happens.

    @rule(calls=st.lists(CALLS, min_size=1, max_size=4), on_loop=st.booleans())
    def acquire(self, calls: list[tuple[str, int]], on_loop: bool) -> None:
        before = self.values()
        wanted = [self.on(self.memory).acquire(*call) for call in calls]
        if on_loop:
            found = self.wait_for(self.acquire_together(calls))
        else:
            found = [self.on(self.redis).acquire(*call) for call in calls]
        assert [plain(decision) for decision in found] == [plain(decision) for decision in wanted]
        after = self.values()
        changed = {tag_of(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        may_repair = self.edited or self.clock.now_us < self.latest or any(part.count_denied for part in self.parts())
        writers = [ident for (ident, _), decision in zip(calls, found, strict=True) if decision.allowed or may_repair]
        assert changed <= {b"{p}", *(tag_of(self.redis.key("", ident).encode()) for ident in writers)}
        self.passed += [pair for pair in zip(wanted, found, strict=True) if pair[0].allowed]
        (ident, cost), decision = calls[-1], found[-1]
        if cost and not decision.allowed and decision.retry_after and not self.waits_for_a_slot(decision):
            self.retry_is_exact(ident, cost, decision.retry_after)

    @rule(ident=st.sampled_from(IDENTS), on_loop=st.booleans())
    def reset(self, ident: str, on_loop: bool) -> None:
        removed, limiter = self.on(self.memory).reset(ident), self.on(self.redis)
        found = self.wait_for(limiter.areset(ident)) if on_loop else limiter.reset(ident)
        assert removed <= found <= removed + len(self.own) or self.edited  # keys that Redis' own clock removes
        self.passed = [pair for pair in self.passed if pair[0].lease]

    @precondition(lambda self: self.passed)
    @rule(at=st.integers(0, 99), used=st.integers(0, 9000))
    def the_call_ends(self, at: int, used: int) -> None:
        """It gives back its lease, what does not count, and what it has not used; or is charged more."""
        name = f"call {next(self.numbers)}"
        for store, decision in zip((self.memory, self.redis), self.passed.pop(at % len(self.passed)), strict=True):
            self.on(store).release(decision.lease)
            settled = [entry for entry in decision.ledger.entries if entry.charge.rule.is_settled]
            run(decide.settle(BlockingIo(store), settlement(settled, lambda _: used, "search", name)))
            run(decide.correct(BlockingIo(store), corrections(settled)))

    @rule(of=st.integers(0, 9), jump=JUMPS)
    def clock_goes_on(self, of: int, jump: float) -> None:
        by = jump if isinstance(jump, int) else round(jump * self.window(of))
        self.clock.now_us = min(max(self.first - SPAN // 2, self.clock.now_us + by), self.first + SPAN // 2)
        self.latest = max(self.latest, self.clock.now_us)
        if self.edited:
            self.expire()

    @rule(of=st.integers(0, 9), data=st.data())
    def another_rule_of_that_name(self, of: int, data: st.DataObject) -> None:
        self.edit(of, data.draw(any_rule(self.rules[of % len(self.rules)].name)))

    @rule()
    def scripts_are_lost(self) -> None:
        self.client.script_flush()

    # What holds whatever has happened.

    @invariant()
    def the_stores_agree(self) -> None:
        before = self.values()
        for ident in IDENTS if self.rules else ():
            wanted = self.on(self.memory).peek(ident)
            assert self.on(self.redis).peek(ident) == wanted, ident
            assert self.wait_for(self.on(self.redis).apeek(ident)) == wanted, ident
        assert self.values() == before, "asking changes nothing"

    @invariant()
    def every_key_has_a_time_to_live(self) -> None:
        keys = self.client.keys("*")
        assert [key for key in keys if self.client.pttl(key) == -1] == []
        for key in keys:  # Redis' own clock goes on: on a slow machine they would run out, while ours stands still
            self.client.expire(key, 86_400)

    def teardown(self) -> None:
        self.runner.close()  # which ends what still runs beside

    # How.

    async def acquire_together(self, calls: list[tuple[str, int]]) -> list[Decision]:
        """All in one turn of the loop, hence in one batch; leases travel alone, in any order."""
        limiter = self.on(self.redis)
        if any(part.holds_slots for part in self.parts()):
            return [await limiter.aacquire(*call) for call in calls]
        return await asyncio.gather(*(limiter.aacquire(*call) for call in calls))

    def retry_is_exact(self, ident: str, cost: int, retry_after: float) -> None:
        asked_at = self.clock.now_us
        for store in (self.memory, self.redis):
            self.clock.now_us = asked_at + round(retry_after * 1_000_000)
            assert self.on(store).peek(ident, cost).allowed
            self.clock.now_us -= 1
            assert not self.on(store).peek(ident, cost).allowed
        self.clock.now_us = asked_at

    def edit(self, of: int, new: Rule) -> None:
        self.rules[of % len(self.rules)] = new
        self.learn_rules()
        self.edited = True
        self.passed = [pair for pair in self.passed if pair[0].lease]
        self.expire()

    def learn_rules(self) -> None:
        self.known |= {part.id for part in self.parts()}
        self.own |= {part.id for part in self.parts() if part.params.wire_id >= OWN_KEY}

    def expire(self) -> None:
        """Remove what Redis' own clock would have removed: under another rule it might mean something again."""
        for pair, (_, expires) in list(counters(self.memory).items()):
            if pair[0] in self.known and expires <= self.clock.now_us:
                del counters(self.memory)[pair]
                self.forget(*pair)

    def forget(self, rule_id: str, ident: str) -> None:
        key = self.redis.key("", ident)
        if rule_id in self.own:
            self.client.delete(self.redis.key(rule_id, ident))
        elif value := self.client.get(key):
            left = records(value)
            left.pop(kept_id(rule_id), None)
            self.client.set(key, written(left), keepttl=True) if left else self.client.delete(key)

    def values(self) -> dict[bytes, bytes]:
        keys = self.client.keys()
        with self.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.dump(key)
            return dict(zip(keys, pipeline.execute(), strict=True))

    def waits_for_a_slot(self, decision: Decision) -> bool:
        slots = {part.name for part in self.parts() if part.holds_slots}
        return any(outcome.rule in slots and not outcome.allowed for outcome in decision.outcomes)

    def on(self, store: Any) -> Limiter:
        return Limiter(self.rules, store)

    def parts(self) -> list[Rule]:
        return [part for each in self.rules for part in each.parts]

    def window(self, of: int) -> int:
        rate = self.parts()[of % len(self.parts())].rate
        return rate.window_us if rate else 60_000_000

    def wait_for(self, asked: Any) -> Any:
        return self.runner.get_loop().run_until_complete(asked)


def tag_of(key: bytes) -> bytes:
    return key.split(b":")[1]


def plain(decision: Decision) -> Decision:
    """Without the lease, whose name is drawn."""
    return decision._replace(lease=None)


@pytest.mark.row("F55")
def test_histories(redis_server: RedisServer) -> None:
    with redis_server.client(decode_responses=False) as client:
        machine = partial(Histories, redis_server, client)
        run_state_machine_as_test(machine, settings=settings(stateful_step_count=STEPS))
