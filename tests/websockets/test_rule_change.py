"""Rules change, budgets are given back and callers log in while sockets are open, whatever these remember."""

import asyncio
from typing import Any

import pytest
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser, User
from django.urls import re_path

from django_throttle import limiter, rulebook
from django_throttle.channels import ThrottleMiddleware
from django_throttle.conf import conf
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core import Override, Rule
from django_throttle.core.commands import Charge
from django_throttle.core.io import run
from django_throttle.limiter import Limiter, decide_fully
from django_throttle.local.open_sockets import open_sockets
from django_throttle.rulebook import current_rules
from django_throttle.stores import RedisStore
from django_throttle.stores.base import BlockingIo
from django_throttle.websockets import rule_change
from django_throttle.websockets.rule_change import LoweredLimit
from tests.clock import FrozenClock
from tests.consumers import AsyncEcho, held
from tests.doors import BOTH, Enforce
from tests.websockets.guarded import IDENT, SOCKETS, Line, Live, becomes, blocked, only, texts

CHAT = {"rate": "5/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}


def sockets(limit: int, **options: Any) -> Rule:
    return Rule("sockets", limit=limit, **{**SOCKETS, **options})


async def test_a_block_that_comes_while_a_handshake_waits_reaches_it_too(
    enforce: Enforce, change: Any, monkeypatch: Any
) -> None:
    decide = limiter.adecide

    async def slow(call: Any, **options: Any) -> Any:
        decision = await decide(call, **options)
        change(overrides=(blocked(),))
        return decision

    enforce()
    monkeypatch.setattr(limiter, "adecide", slow)
    line = await Line().open()
    await line.closing()
    await line.ended()


class TestLowerLimits:
    @BOTH
    @pytest.mark.parametrize(("at_limit", "gone"), [("reject", [2, 3]), ("evict_oldest", [0, 1])])
    async def test_those_beyond_a_lower_limit_are_closed(
        self, enforce: Enforce, change: Any, clock: FrozenClock, at_limit: str, gone: list[int]
    ) -> None:
        store = enforce(sockets={**SOCKETS, "limit": 4, "at_limit": at_limit})
        lines = []
        for second in range(4):
            clock.to(second)
            lines.append(await Line(on_rule_change="close").open())
        async with Line(address="198.51.100.7", on_rule_change="close") as other:
            change(sockets(2, at_limit=at_limit))
            await lines[0].until(lambda: all(lines[number].closed for number in gone))
            assert [number for number, line in enumerate(lines) if line.closed] == gone
            error = lines[gone[-1]].told("error")[0]
            assert (error["code"], error["rule"], error["limit"]) == ("connection_limit", "sockets", 2)
            assert {lines[number].closed["code"] for number in gone} == {4430}
            await becomes(lambda: held(store) == 3)
            assert other.closed is None
        for number in {0, 1, 2, 3} - {*gone}:
            await lines[number].close()

    async def test_of_all_processes_together(
        self, enforce_live: Live, redis_url: str, change: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enforce_live(sockets={**SOCKETS, "limit": 6})
        elsewhere = RedisStore(redis_url, secret=conf().KEY_SECRET, deadline=5.0)
        rule = rulebook.current().rules[0]

        def take_elsewhere() -> Any:
            return run(decide_fully(BlockingIo(elsewhere), (Charge(rule, IDENT, 1),), socket=True)).lease

        lines = [await Line(on_rule_change="close").open()]
        leases = [await asyncio.to_thread(take_elsewhere)]
        lines += [await Line(on_rule_change="close").open() for _ in range(2)]
        leases.append(await asyncio.to_thread(take_elsewhere))
        change(sockets(3))
        await lines[2].closing()
        assert [line.closed is None for line in lines] == [True, True, False]
        limit = LoweredLimit(rule.id, IDENT, "sockets", 3)
        monkeypatch.setattr(rule_change, "get_store", lambda: elsewhere)
        assert rule_change.excess_leases([limit]) == {limit: frozenset([leases[1].id])}
        monkeypatch.undo()
        for line in lines[:2]:
            await line.close()

    @pytest.mark.parametrize("code", [None, 4430])
    async def test_a_consumer_that_says_nothing_has_its_clients_warned(
        self, enforce: Enforce, change: Any, code: int | None
    ) -> None:
        enforce(sockets={**SOCKETS, "limit": 2})
        consumer = type("Closing", (AsyncEcho,), {"throttle_on_rule_change": "close"} if code else {})
        async with Line(consumer.as_asgi()) as first, Line(consumer.as_asgi()) as second:
            change(sockets(1))
            await second.until(lambda: second.told("error") and (second.closed or not code))
            assert (first.told("error"), first.closed) == ([], None)
            assert (second.closed and second.closed["code"]) == code


@pytest.fixture
def nothing_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a socket or its process remembers."""
    for name in (
        "core.prepaid.MAX_REFUSAL_SECONDS",
        "websockets.limits.MATCH_LIFETIME",
        "stores.refusal_cache.MAX_CACHED_SECONDS",
    ):
        monkeypatch.setattr(f"django_throttle.{name}", 3600.0)
    open_sockets.clear()


@pytest.mark.usefixtures("nothing_ends_by_itself")
@pytest.mark.parametrize("counts_denied", [False, True], ids=["remembered", "counted"])
@pytest.mark.usefixtures("never_closed")
async def test_a_reset_elsewhere_reaches_a_flooded_socket(
    enforce_live: Live, redis_url: str, counts_denied: bool
) -> None:
    store = enforce_live(chat={**CHAT, "count_denied": counts_denied})
    Reconciler(store).beat()
    async with Line(answers="once") as line:
        line.send(*["x"] * 40)
        await line.until(lambda: only().refused == 35)
        duties = SocketControl(store)
        await asyncio.to_thread(duties)
        elsewhere = RedisStore(redis_url, secret=conf().KEY_SECRET, deadline=5.0)
        assert await Limiter(rulebook.current().rules, elsewhere).areset(IDENT) == 1
        await asyncio.to_thread(duties)
        line.send(*["again"] * 9)
        await line.until(lambda: only().received == 49 and len(texts(line)) == 10)


@pytest.mark.usefixtures("nothing_ends_by_itself")
@pytest.mark.parametrize("prepaid", [False, True], ids=["asked", "prepaid"])
@pytest.mark.usefixtures("never_closed")
async def test_an_override_that_runs_out_ends_what_was_refused_under_it(
    enforce_live: Live, change: Any, prepaid: bool, clock: FrozenClock
) -> None:
    enforce_live(chat={**CHAT, "prepaid": prepaid})
    stricter = Override(subject=IDENT, effect="multiply", factor=0.2, until=clock() + 60)
    change(*rulebook.current().rules, overrides=(stricter,), now=clock)
    async with Line() as line:
        line.send(*["x"] * 9)
        await line.until(lambda: only().refused == 8)
        clock.tick(61)
        current_rules.end_overrides()
        line.send(*["x"] * 9)
        await line.until(lambda: only().refused == 8 + 5)
        assert len(texts(line)) == 5


TABS = {**SOCKETS, "key": "user", "limit": 2}


class LoginConsumer(AsyncEcho):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        word, _, pk = (text_data or "").partition(" ")
        if word in ("login", "logout"):
            self.scope["user"] = User(pk=int(pk)) if pk else AnonymousUser()
        await self.send(text_data)


APP = LoginConsumer.as_asgi()
ROUTED = ThrottleMiddleware(URLRouter([re_path("", APP)]), "chat")  # the scope of a router is a copy


async def says(client: Line, text: str) -> None:
    number = len(client.frames)
    client.send(text)
    await client.until(lambda: len(client.frames) > number)
    assert client.frames[-1] == text


@pytest.mark.parametrize("app", [APP, ROUTED], ids=["consumer", "routed"])
@BOTH
async def test_one_too_many_of_a_user_is_closed(enforce: Enforce, app: Any) -> None:
    store = enforce(tabs=TABS)
    first, second, third = [await Line(app).open() for _ in range(3)]
    assert held(store) == 0, "nobody has logged in"
    for number, client in enumerate((first, second), 1):
        await says(client, "login 42")
        await becomes(lambda number=number: held(store) == number)
        await says(client, "again")
    third.send("login 42")
    assert (await third.closing())["code"] == 4430
    assert third.told("error")[0]["rule"] == "tabs"
    await says(first, "still here")
    await first.close()
    await becomes(lambda: held(store) == 1)
    await second.close()
    assert held(store) == 0


@BOTH
async def test_the_slot_of_an_address_becomes_one_of_the_user(enforce: Enforce) -> None:
    store = enforce(sockets={**TABS, "key": "user_or_ip", "limit": 1}, house={**TABS, "key": "ip"})
    async with Line(APP) as client:
        assert pairs() == {("house", IDENT), ("sockets", IDENT)}
        await says(client, "login 42")
        await becomes(lambda: ("sockets", "user:42") in pairs())
        assert pairs() == {("house", IDENT), ("sockets", "user:42")}
        assert held(store) == 2
        async with Line(APP):
            assert held(store) == 4
        await says(client, "logout")
        await becomes(lambda: ("sockets", IDENT) in pairs())
        assert (held(store), len(pairs())) == (2, 2)
    assert held(store) == 0


async def test_who_is_blocked_is_closed_at_once(enforce: Enforce, change: Any) -> None:
    enforce(tabs=TABS)
    change(*rulebook.current().rules, overrides=(blocked("user:42"),))
    client = await Line(APP).open()
    client.send("login 42")
    assert (await client.closing())["code"] == 4403
    assert client.told("error")[0]["rule"] == "tabs"


async def test_a_client_that_leaves_meanwhile_leaves_no_slot(enforce: Enforce) -> None:
    store = enforce(tabs=TABS)
    for _ in range(5):
        client = await Line(APP).open()
        client.send("login 42")
        await client.close()
    await becomes(lambda: held(store) == 0)


async def test_messages_follow_at_once(enforce: Enforce) -> None:
    enforce(
        visitors={"rate": "2/min", "events": ["message"], "key": "ip", "audience": ["anonymous"]},
        users={"rate": "4/min", "events": ["message"], "key": "user"},
    )
    async with Line(APP) as client:
        for text in ("login 42", "word a", "word b", "word c", "word d"):
            await says(client, text)
        client.send("e")
        assert (await client.error())["rule"] == "users"


def pairs() -> set[tuple[str, str]]:
    """The names of rules, and idents, of which the only open socket holds slots."""
    names = {rule.id: rule.name for rule in rulebook.current().rules}
    return {(names[rule], ident) for lease in only().leases for rule, ident in lease.lease_keys}
