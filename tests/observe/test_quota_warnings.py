"""A share of a quota is told of once in a window, whoever reaches it, and costs nobody else anything."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import RequestFactory

from django_throttle import limiter, stores
from django_throttle.core import Decision
from django_throttle.core.commands import Decide, DedupKey, Release, SetDedupKeys, StoreCommand
from django_throttle.exceptions import Cause, StoreError
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Call
from django_throttle.signals import quota_warning
from django_throttle.stores import MemoryStore, RedisStore
from tests.callers import SameByEveryKey
from tests.clock import FrozenClock
from tests.servers import RedisServer

QUOTA = {"rate": "10/hour", "algorithm": "fixed_window", "warn_at": [0.8, 1.0], "enforce_at": 2}
QUIET = {"DATABASE_RULES": False, "DEADLINE": 5.0}

CALL = Call("search", ("request",), SameByEveryKey())


@pytest.fixture
def told() -> Iterator[list[tuple[str, str, float]]]:
    found: list[tuple[str, str, float]] = []

    def hear(call: Call, outcome: Any, share: float, **_: Any) -> None:
        assert call is CALL or call.cost
        found.append((outcome.rule, outcome.ident, share))

    quota_warning.connect(hear)
    yield found
    quota_warning.disconnect(hear)


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, settings: Any, clock: FrozenClock) -> Iterator[Any]:
    """The store of every door, with the quota in force and a clock that stands still."""
    settings.DJANGO_THROTTLE = {"RULES": {"quota": QUOTA, "other": {"rate": "100/min"}}, **QUIET}
    if request.param == "memory":
        made: Any = MemoryStore(clock=clock)
    else:
        made = RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)
    before = stores.pin(made)
    yield made
    stores.pin(before)


@pytest.fixture(params=["sync", "async"])
def decide(request: pytest.FixtureRequest) -> Callable[..., Decision]:
    return limiter.decide if request.param == "sync" else async_to_sync(limiter.adecide)


def test_each_share_is_told_once_by_its_call(store: Any, decide: Any, told: list[Any], clock: FrozenClock) -> None:
    heard = [(decide(CALL), len(told))[1] for _ in range(25)]
    assert heard == [0] * 7 + [1, 1] + [2] * 16
    assert told == [("quota", "user:1", 0.8), ("quota", "user:1", 1.0)]
    clock.to(3600)
    for _ in range(10):
        decide(CALL)
    assert len(told) == 4, "and afresh in the next window"


@pytest.mark.parametrize(("key", "attribute"), [("user", "user"), ("api_key", "auth"), ("tenant", "shop")])
def test_a_warning_has_the_row_that_is_counted(
    store: Any, decide: Any, settings: Any, key: str, attribute: str
) -> None:
    rules = {"quota": {**QUOTA, "key": key}}
    settings.DJANGO_THROTTLE = {"RULES": rules, "TENANT": "shop", **QUIET}
    request = RequestFactory().get("/")
    setattr(request, attribute, row := User(pk=7))
    rows: list[Any] = []

    def hear(row: Any, **_: Any) -> None:
        rows.append(row)

    quota_warning.connect(hear)
    for _ in range(8):
        decide(Call("search", ("request",), RequestCaller(request)))
    assert rows == [row]


def test_a_store_that_fails_fails_nobody(store: Any, decide: Any, told: list[Any], monkeypatch: Any) -> None:
    execute, aexecute = store.execute, store.aexecute

    def fails(command: StoreCommand) -> Any:
        if isinstance(command, SetDedupKeys):
            raise StoreError(Cause.UNAVAILABLE)
        return execute(command)

    async def afails(command: StoreCommand) -> Any:
        return fails(command) if isinstance(command, SetDedupKeys) else await aexecute(command)

    monkeypatch.setattr(store, "execute", fails)
    monkeypatch.setattr(store, "aexecute", afails)
    decision = decide(Call("search", ("request",), SameByEveryKey(), 8))
    assert decision.allowed and not decision.degraded
    assert [share for *_, share in told] == [0.8], "rather twice than never"


async def test_a_caller_who_goes_away_meanwhile_leaves_no_lease_behind(settings: Any, clock: FrozenClock) -> None:
    settings.DJANGO_THROTTLE = {
        "RULES": {"knocks": {**QUOTA, "events": ["connect"]}, "sockets": {"limit": 5, "algorithm": "concurrency"}},
        **QUIET,
    }
    asking = asyncio.Event()
    commands: list[StoreCommand] = []

    class Slow(MemoryStore):
        async def aexecute(self, command: StoreCommand) -> Any:
            commands.append(command)
            if isinstance(command, SetDedupKeys):
                asking.set()
                await asyncio.Event().wait()
            return self.execute(command)

    before = stores.pin(Slow(clock=clock))
    try:
        task = asyncio.create_task(limiter.adecide(Call("chat", ("connect", "connection"), SameByEveryKey(), 8)))
        await asking.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        stores.pin(before)
    assert [type(command) for command in commands] == [Decide, SetDedupKeys, Release]


def test_a_once_key_is_set_until_it_has_lasted_even_where_the_clock_steps_back(store: Any, clock: FrozenClock) -> None:
    keys = (DedupKey("rule", "user:1", "0.8", 60_000_000), DedupKey("rule", "user:1", "1.0", 60_000_000))
    clock.to(86_400)
    assert store.execute(SetDedupKeys(keys[:1])) == (True,)
    clock.to(0)
    assert store.execute(SetDedupKeys(keys)) == (False, True)
    clock.to(59.999_999)
    assert store.execute(SetDedupKeys(keys)) == (False, False)
    clock.to(60)
    assert store.execute(SetDedupKeys(keys)) == (True, True)


@pytest.mark.parametrize("value", ["nonsense", "nan", "", "1e400", "-5"])
def test_what_somebody_else_has_put_there_is_replaced(redis_server: RedisServer, value: str) -> None:
    store = RedisStore(redis_server.url, prefix="marks", deadline=5.0)
    mark = DedupKey("foreign", "user:1", value, 60_000_000)
    key = store.key(f"foreign:{value}", "user:1")
    with redis_server.client() as client:
        client.set(key, value)
        assert store.execute(SetDedupKeys((mark,))) == (True,)
        client.delete(key)
        client.hset(key, "a", "b")
        assert store.execute(SetDedupKeys((mark,))) == (True,)
        assert 0 < client.pttl(key) <= 60_000
