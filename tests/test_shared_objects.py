"""Objects that threads share and fill when they are read: no thread meets what another has half done.

Threads change places after a few instructions here. Most shows on Python 3.12 and newer, whose ``cached_property`` has
no lock.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_throttle.core import Override, Rule
from django_throttle.core.commands import Decide, charges_of
from django_throttle.drf import RuleThrottle
from django_throttle.limiter import Limiter
from django_throttle.meter import Meter
from django_throttle.observe.route_costs import SUM, RouteCosts
from django_throttle.recording import own_records, read
from django_throttle.rulebook import Snapshot, carry_over, snapshot
from django_throttle.rulebook.snapshot import Overrides
from django_throttle.store_time import Calendar
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.addresses import find_address
from django_throttle.stores.base import drive
from django_throttle.stores.clients import KnownPrimary, PrimarySearch
from django_throttle.stores.cluster import ClusterTransport
from tests.clock import FrozenClock
from tests.doors import REDIS, Enforce, enforcer
from tests.recording.calls import call
from tests.threads import THREADS, at_once

enforce = pytest.fixture(enforcer)
RULE = Rule("api", "1/hour")
DAY_US = 86_400_000_000


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return RedisStore(redis_url, deadline=30.0)


def test_a_refusal_that_was_just_remembered(store: RedisStore) -> None:
    """Each thread asks for it, takes off the time that has passed, and reads other parts of it."""
    limiter = Limiter([RULE, Rule("hourly", "5/hour", algorithm="gcra")], store)
    names = ("retry_after", "outcomes", "rule", "is_ordinary", "limit", "unavailable")
    for turn in range(40):
        ident = f"user:{turn}"
        assert [limiter.acquire(ident).allowed for _ in range(2)] == [True, False]

        def refused(number: int, ident: str = ident) -> None:
            for _ in range(20):
                decision = limiter.acquire(ident)
                assert not decision.allowed
                assert getattr(decision, names[number % len(names)]) is not None
                assert repr(decision.later(0.5)).startswith("Decision(allowed=False, limit=1, remaining=0,")

        at_once(refused)


class OnceView(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    throttle_scope = "once"

    def get(self, request: Request) -> Response:
        return Response({})


@REDIS
def test_requests_that_meet_it_are_answered_with_429(enforce: Enforce) -> None:
    enforce(once={"rate": "1/hour", "key": "ip"})
    view = OnceView.as_view()
    for turn in range(30):
        address = {"REMOTE_ADDR": f"192.0.2.{turn}"}
        assert [view(APIRequestFactory().get("/", **address)).status_code for _ in range(2)] == [200, 429]

        def get(number: int, address: dict[str, str] = address) -> None:
            response = view(APIRequestFactory().get("/", **address))
            assert response.status_code == 429
            assert int(response["Retry-After"]) > 0

        at_once(get)


def test_the_decision_that_a_damper_keeps() -> None:
    for _ in range(20):
        limiter = Limiter([Rule("damped", "1000/s", algorithm="damper")], MemoryStore())

        def passes(number: int, limiter: Limiter = limiter) -> None:
            decision = limiter.acquire("user:1")
            assert decision.is_ordinary
            assert [outcome.rule for outcome in decision.later(0.1).outcomes] == ["damped"]

        at_once(passes)


def test_rules_as_overrides_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which there are more than are remembered."""
    monkeypatch.setattr(snapshot, "MAX_REMEMBERED", 2)
    changed = Override(subject="user:1", effect="multiply", factor=2.0)
    overrides = Overrides([changed])
    rules = [Rule(f"rule {number}", "5/min") for number in range(8)]

    def read(number: int) -> None:
        for turn in range(300):
            rule = overrides.rule(rules[(turn + number) % len(rules)], [changed])
            assert rule is not None
            assert rule.plan.limit == 10

    at_once(read)


def test_the_bounds_of_calendars() -> None:
    """While the store's time moves to other days."""
    calendar, zones = Calendar(), ("UTC", "Europe/Berlin", "Asia/Tokyo", "America/Lima", "Asia/Kolkata")
    rules = [Rule(zone, "10/day", algorithm="fixed_window", timezone=zone) for zone in zones]
    calendar.learn(DAY_US)

    def read(number: int) -> None:
        for turn in range(600):
            if number % 4:
                assert calendar.plan(rules[(turn + number) % len(rules)]).finish > 0
            else:
                calendar.learn(DAY_US * (2 + turn + number))

    at_once(read)


def test_sentinels_are_all_asked() -> None:
    """While others put the one first that answered best."""
    sentinels = ["one", "two", "three", "four", "five"]
    search = PrimarySearch(sentinels, "primary", KnownPrimary(lambda: None))

    def answer(asked: list[str], name: str) -> list[str]:
        asked.append(name)
        epoch = str(sentinels.index(name))
        return ["flags", "master", "config-epoch", epoch, "ip", "192.0.2.1", "port", "6379"]

    def ask(number: int) -> None:
        for _ in range(100):
            asked: list[str] = []
            assert drive(search.search(everyone=True), partial(answer, asked)) == ("192.0.2.1", 6379)
            assert sorted(asked) == sorted(sentinels)

    at_once(ask)


def test_nodes_of_a_cluster_that_come_and_go() -> None:
    transport = ClusterTransport(find_address("redis+cluster://127.0.0.1:1"), 0.1, 2)
    hosts = [("127.0.0.1", port) for port in range(1, 7)]
    slots = transport._router.slots

    def ask(number: int) -> None:
        for turn in range(200):
            host = hosts[(turn + number) % len(hosts)]
            first, last = sorted((host, hosts[turn % len(hosts)]))
            slots.learn([(0, 8191, first), (8192, 16383, last)], host)
            assert transport._node(host).breaker is not None
            transport._is_failing(host)
            assert all(not breaker.is_open for breaker in transport.breakers)

    at_once(ask)


def test_one_node_is_made_for_a_host() -> None:
    """Else a call would note its failure at a breaker that nobody asks."""
    for _ in range(50):
        transport, made = ClusterTransport(find_address("redis+cluster://127.0.0.1:1"), 0.1, 2), []
        at_once(lambda _, transport=transport, made=made: made.append(transport._node(("127.0.0.1", 1))))  # type: ignore[misc]
        assert len(set(map(id, made))) == 1


def test_what_is_owed_after_an_outage(store: RedisStore) -> None:
    """Each of those who call charges it first, and one of them confirms it."""
    rule = Rule("api", "100/hour")
    limiter = Limiter([rule], store)
    for turn in range(100):
        ident = f"user:{turn}"
        store.fallback.decide(Decide(charges_of(rule, ident, 1)))
        at_once(lambda _, ident=ident: limiter.acquire(ident))  # type: ignore[misc]
        decision = limiter.peek(ident, cost=0)
        assert (decision.degraded, decision.remaining) == (False, 100 - 1 - THREADS)


def test_records_that_are_read_while_calls_are_recorded() -> None:
    memory = MemoryStore()
    own_records.forget()

    def record_and_read(number: int) -> None:
        for turn in range(15):
            rules = [Rule(f"rule {number}.{turn}.{each}", "2/hour", algorithm="sliding_log") for each in range(5)]
            call(memory, rules, f"user:{turn}", 3)
            now = timezone.now()
            names = read.recorded_rules(memory, now - timedelta(hours=2))
            assert {rule.name for rule in rules} <= set(names)
            assert read.minutes(memory, now - timedelta(hours=1), now + timedelta(hours=1))
            assert read.sample(memory, now - timedelta(hours=1), now + timedelta(hours=1)).records
            assert read.most_refused(memory, rules[0].name)

    at_once(record_and_read, 8)


def test_no_cost_of_a_request_is_lost() -> None:
    costs, calls = RouteCosts(), 1000

    def add(number: int) -> None:
        for _ in range(calls):
            costs.add("search", Meter())

    at_once(add)
    counted = sum(number for field, number in costs.take().items() if field.startswith("queries:") and SUM not in field)
    assert counted == THREADS * calls


def test_no_edit_of_a_rule_is_forgotten() -> None:
    carry_over.forget()
    rules = [(Rule(f"rule {number}", "10/min"), Rule(f"rule {number}", "20/hour")) for number in range(THREADS)]
    try:
        for _ in range(20):
            carry_over.forget()

            def edit(number: int) -> None:
                before, after = rules[number]
                carry_over.note({before.name: before}.get, [after])

            at_once(edit)
            assert sorted(carry_over.edits) == sorted(after.id for _, after in rules)
    finally:
        carry_over.forget()


def test_what_covers_a_scope_is_prepared_once_it_is_whole(clock: FrozenClock) -> None:
    """Of many new scopes at once, where some rules apply to some callers alone."""
    rules = [Rule(f"rule {number}", "500/hour", scopes=(f"scope {number}", "*")) for number in range(10)]
    rules.append(Rule("plans", "500/hour", plans={"authenticated": "1000/hour"}))
    memory = MemoryStore(clock)
    for turn in range(5):
        known = Snapshot(rules)

        def decide(number: int, known: Snapshot = known, turn: int = turn) -> None:
            for scope in range(10):
                facts = {"scope": f"scope {scope}", "method": "GET"}
                assert call(memory, known.rules, f"user:{turn}.{number}", 1, **facts) == 1

        at_once(decide, 8)
