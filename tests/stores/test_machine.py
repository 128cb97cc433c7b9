"""Whatever happens, in whatever order: memory and Redis, sync and async say the same, and the invariants hold.

One clock, which is set forward and back, three stores on it: memory, and Redis asked without and with ``await``.
After every step: equal decisions, equal keys; a refused call has changed no key, but for a clock's repair;
``retry_after`` is exact; every key has a time to live; nobody else's key has changed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isfinite
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

from django_throttle.core import Decision, Rate, Rule
from django_throttle.core.decision import Lease
from django_throttle.exceptions import InvalidRule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.scripts import OWN_KEY, Form
from tests.clock import FrozenClock
from tests.inside import counters
from tests.records import Record, kept_id, records, written
from tests.servers import RedisServer
from tests.strategies import rate_rules, rates

STEPS = 25
IDENTS = ("user:1", "user:1\x00", "{user:1}:\ud800")
LIMITS = st.integers(1, 6) | st.integers(1, 5000)
ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
HOUR = 3_600_000_000
LAST = 2**52  # the year 2112
# Shares of a rule's window; microseconds; an hour forth and back.
JUMPS = st.floats(0, 1) | st.sampled_from([0.5, 1.0, 2.0]) | st.integers(-2, 2) | st.sampled_from([-HOUR, HOUR])
BACK = st.floats(-3, 0)
COSTS = st.integers(1, 3) | st.integers(0, 6000)
CALLS = st.tuples(st.sampled_from(IDENTS), COSTS)
ACTIONS = st.sampled_from(["reject", "reject", "reject", "shadow"])
# Never ours: a text of another shape or version, cut off, and things that are no text.
FOREIGN = st.sampled_from(
    [b"", b"\x00\xff", b"nan", b"\x02", b"\x80", b"\x80" * 11, b"\xff" * 40, {"a": 1}, ["a"], {"a"}]
)
# As if ours, and senseless: when it runs out, and its numbers.
SENSELESS = st.tuples(
    st.sampled_from([0, 1, 2**52, 2**53, 2**56 - 1]) | st.integers(0, 2**52),
    st.lists(st.floats(width=64) | st.sampled_from([0.0, 1.0, 1e15, 2.0**53]), max_size=12),
)


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
    return Rule(name, rates=tuple(found), algorithm=algorithm, action=draw(ACTIONS))


@st.composite
def slots(draw: st.DrawFn, name: str) -> Rule:
    return Rule(name, limit=draw(st.integers(1, 3)), algorithm="concurrency", action=draw(ACTIONS))


@st.composite
def any_rule(draw: st.DrawFn, name: str) -> Rule:
    plain = rate_rules(name, rates(LIMITS), {"action": draw(ACTIONS)}, LIMITS)
    return draw(st.one_of(plain, plain, plain, calendar_rules(name), several_rates(name), slots(name)))


class Histories(RuleBasedStateMachine):
    """One clock and three limiters; ``pairs`` are (rule id, ident)."""

    def __init__(self, server: RedisServer, client: Redis) -> None:
        super().__init__()
        self.client = client
        client.flushall()
        self.loop = asyncio.new_event_loop()
        self.clock = FrozenClock()
        self.memory = MemoryStore(clock=self.clock)
        self.sync, self.twin = (
            RedisStore(server.url, clock=self.clock, prefix=prefix, deadline=5.0) for prefix in ("sync", "twin")
        )
        self.rules: list[Rule] = []
        self.held: list[tuple[Lease | None, Lease | None, Lease | None]] = []
        self.latest = 0
        self.edited = False
        self.leased: set[str] = set()  # the ids of concurrency rules
        self.known: set[str] = set()  # all ids
        self.own: set[str] = set()  # and of all that have keys of their own
        self.immortal: set[bytes] = set()  # keys without a time to live, by our doing
        self.loose: set[tuple[str, str]] = set()  # pairs whose value a refused call may put right

    @initialize(data=st.data(), count=st.integers(1, 3), start=st.integers(0, 24 * HOUR))
    def begin(self, data: st.DataObject, count: int, start: int) -> None:
        self.rules = [data.draw(any_rule(f"rule {number}")) for number in range(count)]
        self.learn_rules()
        self.clock.now_us += start
        self.latest = self.clock.now_us

    # What happens.

    @rule(calls=st.lists(CALLS, min_size=1, max_size=4))
    def acquire(self, calls: list[tuple[str, int]]) -> None:
        told = [self.acquire_in_turn(*call) for call in calls]
        twins = self.wait_for(self.acquire_together(calls))
        for (mine, decision), twin in zip(told, twins, strict=True):
            assert plain(twin) == plain(decision)
            if decision.lease:
                self.held.append((mine.lease, decision.lease, twin.lease))
        (ident, cost), (_, decision) = calls[-1], told[-1]
        if cost and not decision.allowed and decision.retry_after and not self.waits_for_a_slot(decision):
            self.retry_is_exact(ident, cost, decision.retry_after)

    @rule(ident=st.sampled_from(IDENTS), cost=COSTS)
    def peek(self, ident: str, cost: int) -> None:
        before = self.values(self.sync)
        wanted = self.on(self.memory).peek(ident, cost)
        assert self.on(self.sync).peek(ident, cost) == wanted
        assert self.wait_for(self.on(self.twin).apeek(ident, cost)) == wanted
        assert self.values(self.sync) == before

    @rule(ident=st.sampled_from(IDENTS))
    def reset(self, ident: str) -> None:
        removed = self.on(self.memory).reset(ident)
        found = self.on(self.sync).reset(ident)
        assert self.wait_for(self.on(self.twin).areset(ident)) == found
        logs = len(self.own - self.leased)  # their keys are there until the server's clock removes them
        assert removed <= found <= removed + logs or self.is_loose(ident)
        self.loose = {pair for pair in self.loose if pair[1] != ident}

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 99))
    def release(self, at: int) -> None:
        mine, one, other = self.held.pop(at % len(self.held))
        self.on(self.memory).release(mine)
        self.on(self.sync).release(one)
        self.wait_for(self.on(self.twin).arelease(other))

    @rule(of=st.integers(0, 9), jump=JUMPS)
    def clock_goes_on(self, of: int, jump: float) -> None:
        by = jump if isinstance(jump, int) else round(jump * self.window(of))
        self.clock.now_us = min(max(0, self.clock.now_us + by), LAST)
        self.latest = max(self.latest, self.clock.now_us)
        if self.edited:
            self.expire()

    @rule(of=st.integers(0, 9), jump=BACK)
    def clock_goes_back(self, of: int, jump: float) -> None:
        self.clock_goes_on(of, jump)

    @rule(of=st.integers(0, 9), limit=LIMITS)
    def another_limit(self, of: int, limit: int) -> None:
        old = self.rules[of % len(self.rules)]
        rates = tuple(Rate(limit, rate.window) for rate in old.rates)
        with suppress(InvalidRule):  # a burst too long to count, a cost above the limit
            if old.rate is not None:
                self.edit(of, replace(old, rate=replace(old.rate, limit=limit), limit=None))
            else:
                self.edit(of, replace(old, rates=rates, limit=limit if old.is_concurrency else None))

    @rule(of=st.integers(0, 9), data=st.data())
    def another_rule_of_that_name(self, of: int, data: st.DataObject) -> None:
        self.edit(of, data.draw(any_rule(self.rules[of % len(self.rules)].name)))

    @rule()
    def scripts_are_lost(self) -> None:
        self.client.script_flush()

    @rule(at=st.integers(0, 99))
    def a_key_becomes_immortal(self, at: int) -> None:
        for store in (self.sync, self.twin):
            keys = sorted(key for key in self.client.keys(f"{store.prefix}:*") if not self.is_of_leases(key))
            if keys:
                self.client.persist(keys[at % len(keys)])
                self.immortal.add(keys[at % len(keys)])

    @rule(at=st.integers(0, 99), ident=st.sampled_from(IDENTS), value=FOREIGN)
    def a_value_is_foreign(self, at: int, ident: str, value: Any) -> None:
        """It is as if nothing had been there."""
        if of := self.overwritten(at):
            self.overwrite(of, ident, value)
            for pair in [pair for pair in counters(self.memory) if pair[1] == ident]:
                if (pair[0] in self.own) == (of.id in self.own) and (pair[0] == of.id or of.id not in self.own):
                    del counters(self.memory)[pair]

    @rule(at=st.integers(0, 99), ident=st.sampled_from(IDENTS), numbers=SENSELESS)
    def a_value_makes_no_sense(self, at: int, ident: str, numbers: tuple[int, list[float]]) -> None:
        """It may count for something, but no call fails, and nothing is left of it after a reset."""
        of, (expires, state) = self.overwritten(at), numbers
        if of and not self.leased:
            form = Form.of(of.plan)
            fitting = (state + [0.0] * form.kept)[: form.kept]
            if not form.is_large:
                fitting = [int(number) % 2**32 if isfinite(number) else 0 for number in fitting]
            self.overwrite(of, ident, written({kept_id(of.id): Record(expires, tuple(fitting), form.is_large)}))
            decision = self.on(self.sync).acquire(ident)
            assert self.wait_for(self.on(self.twin).aacquire(ident)) == decision
            assert not decision.degraded
        self.memory_and_redis_forget(ident)

    # What holds whatever has happened.

    @invariant()
    def the_stores_agree(self) -> None:
        if not self.rules:
            return
        for ident in IDENTS:
            wanted = self.on(self.memory).peek(ident)
            assert self.on(self.sync).peek(ident) == wanted, ident
            assert self.wait_for(self.on(self.twin).apeek(ident)) == wanted, ident
        one, other = self.without_leases(self.sync), self.without_leases(self.twin)
        assert one == other, f"{one} {other} {self.clock.now_us}"

    @invariant()
    def every_key_has_a_time_to_live(self) -> None:
        keys = self.client.keys()
        with self.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.pttl(key)
            lives = dict(zip(keys, pipeline.execute(), strict=True))
        assert {key for key, left in lives.items() if left == -1} <= self.immortal

    @invariant()
    def nobody_shares_a_key(self) -> None:
        pairs = [(part.id, ident) for part in self.parts() for ident in IDENTS]
        assert len({self.sync.key(*pair) for pair in pairs}) == len(pairs)

    def teardown(self) -> None:
        self.wait_for(self.loop.shutdown_asyncgens())
        self.loop.close()

    # How.

    def acquire_in_turn(self, ident: str, cost: int) -> tuple[Decision, Decision]:
        """Memory's decision and Redis', which may change nothing that is not the ident's, and nothing if refused."""
        before = self.values(self.sync)
        mine, decision = self.on(self.memory).acquire(ident, cost), self.on(self.sync).acquire(ident, cost)
        assert plain(decision) == plain(mine), f"{decision} in Redis, {mine} in memory"
        after = self.values(self.sync)
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert changed <= self.changeable(ident, cost, decision)
        if cost:
            touched = {store.counter_key(part, ident) for store in (self.sync, self.twin) for part in self.parts()}
            self.immortal -= {key.encode() for key in touched}
        return mine, decision

    async def acquire_together(self, calls: list[tuple[str, int]]) -> list[Decision]:
        """All in one turn of the loop, hence in one batch; leases travel alone, in any order."""
        limiter = self.on(self.twin)
        if self.leased:
            return [await limiter.aacquire(*call) for call in calls]
        return await asyncio.gather(*(limiter.aacquire(*call) for call in calls))

    def changeable(self, ident: str, cost: int, decision: Decision) -> set[bytes]:
        """The keys that this decision may have written."""
        mine = {key for key in self.client.keys("sync:*") if tag_of(key) in (self.tag(ident), b"{p}")}
        granted = decision.allowed and cost > 0
        repaired = self.clock.now_us < self.latest and cost > 0
        if granted or repaired:
            return mine | {self.sync.key(rule_id, ident).encode() for rule_id in self.known}
        free = {part.id for part in self.parts() if part.count_denied and cost}
        free |= {rule_id for rule_id, loose in self.loose if loose == ident}
        announced = {key for key in mine if tag_of(key) == b"{p}"}  # by who asks for a lease, in vain or not
        foreign = {self.sync.key("", ident).encode()} if self.is_loose(ident) else set()
        return announced | foreign | {self.sync.key(rule_id, ident).encode() for rule_id in free}

    def retry_is_exact(self, ident: str, cost: int, retry_after: float) -> None:
        asked_at = self.clock.now_us
        for store in (self.memory, self.sync):
            self.clock.now_us = asked_at + round(retry_after * 1_000_000)
            assert self.on(store).peek(ident, cost).allowed
            self.clock.now_us -= 1
            assert not self.on(store).peek(ident, cost).allowed
        self.clock.now_us = asked_at

    def edit(self, of: int, new: Rule) -> None:
        self.rules[of % len(self.rules)] = new
        self.learn_rules()
        self.edited = True
        self.loose |= {(part.id, ident) for part in new.parts for ident in IDENTS}
        self.expire()

    def learn_rules(self) -> None:
        self.known |= {part.id for part in self.parts()}
        self.own |= {part.id for part in self.parts() if part.plan.code >= OWN_KEY}
        self.leased |= {part.id for part in self.parts() if part.is_concurrency}

    def expire(self) -> None:
        """Remove what Redis' own clock would have removed: under another rule it might mean something again."""
        for pair, (_, expires) in list(counters(self.memory).items()):
            if expires <= self.clock.now_us:
                del counters(self.memory)[pair]
                for store in (self.sync, self.twin):
                    self.forget(store, *pair)

    def forget(self, store: RedisStore, rule_id: str, ident: str) -> None:
        """Remove the record of a rule, or its key."""
        key = store.key("", ident)
        if rule_id in self.own:
            self.client.delete(store.key(rule_id, ident))
        elif self.client.type(key) == b"string":
            with suppress(ValueError):
                left = records(self.client.get(key) or b"")
                left.pop(kept_id(rule_id), None)
                self.client.set(key, written(left), keepttl=True)

    def overwritten(self, at: int) -> Rule | None:
        """A rule whose counts something else takes the place of."""
        found = [part for part in self.parts() if not part.is_concurrency]
        return found[at % len(found)] if found else None

    def overwrite(self, of: Rule, ident: str, value: Any) -> None:
        """Put the value where a rate is counted."""
        for store in (self.sync, self.twin):
            key = store.counter_key(of, ident)
            self.client.delete(key)
            match value:
                case bytes():
                    self.client.set(key, value)
                case dict():
                    self.client.hset(key, mapping=value)
                case list():
                    self.client.rpush(key, *value)
                case _:
                    self.client.sadd(key, *value)
            self.immortal.add(key.encode())
        self.loose |= {(part.id, ident) for part in self.parts()}

    def memory_and_redis_forget(self, ident: str) -> None:
        for store in (self.memory, self.sync, self.twin):
            self.on(store).reset(ident)

    def values(self, store: RedisStore) -> dict[bytes, bytes]:
        """What is there: records that have not run out by the keys that they would have, and everything else."""
        keys = self.client.keys(f"{store.prefix}:*")
        with self.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.dump(key)
            found = dict(zip(keys, pipeline.execute(), strict=True))
        for key in [key for key in keys if key.endswith(b":") and self.client.type(key) == b"string"]:
            with suppress(ValueError):
                inside = records(self.client.get(key) or b"", self.clock.now_us)
                del found[key]
                names = {kept_id(rule_id): rule_id for rule_id in self.known}
                for own_id, one in inside.items():
                    if one.expires > self.clock.now_us:
                        found[key + names.get(own_id, own_id.hex()).encode()] = repr(one).encode()
        return found

    def without_leases(self, store: RedisStore) -> dict[bytes, bytes]:
        """Everything but the leases, whose names differ, without the prefix."""
        found = self.values(store).items()
        return {key.partition(b":")[2]: value for key, value in found if not self.is_of_leases(key)}

    def is_of_leases(self, key: bytes) -> bool:
        _, tag, rule_id, *_ = key.split(b":")
        return tag == b"{p}" or rule_id.decode() in self.leased

    def is_loose(self, ident: str) -> bool:
        return any(loose == ident for _, loose in self.loose)

    def waits_for_a_slot(self, decision: Decision) -> bool:
        slots = {part.name for part in self.parts() if part.is_concurrency}
        return any(outcome.rule in slots and not outcome.allowed for outcome in decision.outcomes)

    def on(self, store: Any) -> Limiter:
        return Limiter(self.rules, store)

    def parts(self) -> list[Rule]:
        return [part for each in self.rules for part in each.parts]

    def window(self, of: int) -> int:
        rate = self.parts()[of % len(self.parts())].rate
        return rate.window_us if rate else 60_000_000

    def tag(self, ident: str) -> bytes:
        return tag_of(self.sync.key("", ident).encode())

    def wait_for(self, asked: Any) -> Any:
        return self.loop.run_until_complete(asked)


def tag_of(key: bytes) -> bytes:
    return key.split(b":")[1]


def plain(decision: Decision) -> Decision:
    """Without the lease, whose name is drawn."""
    return decision._replace(lease=None, paid=None)


@pytest.mark.row("F55")
def test_histories(redis_server: RedisServer) -> None:
    with redis_server.client(decode_responses=False) as client:
        machine = partial(Histories, redis_server, client)
        run_state_machine_as_test(machine, settings=settings(stateful_step_count=STEPS))
