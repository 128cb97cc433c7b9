"""Evictions take one socket each, never one too many; whoever lost its slot is closed, whatever fails."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Evict
from django_throttle.core.decide import release_lease
from django_throttle.core.io import run
from django_throttle.exceptions import Cause, StoreError
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.base import BlockingIo
from django_throttle.stores.redis import control_messages
from tests.connections.evictions import Door, lease_of, lose, redis_store

OLDEST = Rule("sockets", limit=3, algorithm="concurrency", at_limit="evict_oldest")
IDLE = Rule("sockets", limit=3, algorithm="concurrency", at_limit="evict_idle")
MakeDoor = Callable[..., Door]


@pytest.fixture
def site(redis_url: str) -> MakeDoor:
    def make(*rules: Rule) -> Door:
        door = Door(redis_store(redis_url), *(rules or (OLDEST,)))
        door.reconciler().beat()
        return door

    return make


def full(door: Door) -> list[str]:
    return [lease_of(door.open()) for _ in range(3)]


def heard(door: Door, *leases: str) -> None:
    store = redis(door)
    for number, lease in enumerate(leases if IDLE in door.rules else ()):
        args = (store.now_arg(), store.leases.uid, lease, -number)
        store.call("touch", (store.key(IDLE.id, "user:1"),), args)


@pytest.mark.parametrize(("rule", "order"), [(OLDEST, [0, 1, 2]), (IDLE, [2, 0, 1])], ids=["oldest", "idle"])
def test_of_several_processes_the_holder_hears_of_it_and_nobody_else(
    rule: Rule, order: list[int], site: MakeDoor
) -> None:
    doors = one, two, three = site(rule), site(rule), site(rule)
    held = [one, two, two]
    leases = [lease_of(door.open()) for door in held]
    heard(one, leases[0])
    heard(two, leases[1])
    for gone in order:
        newcomer = lease_of(three.open())
        heard(three, newcomer)
        messages = [door.messages() for door in doors]
        wanted = [(leases[gone], "evicted", "sockets", 3)]
        sent = [[(message.lease, message.reason, message.rule, message.limit) for message in row] for row in messages]
        assert sent == [wanted if door is held[gone] else [] for door in doors]
        assert one.count() == 3 and three.store.leases.is_held(rule.id, "user:1", newcomer)


def test_its_process_does_not_bring_it_back(site: MakeDoor) -> None:
    one, two = site(), site()
    leases = full(one)
    two.open()
    one.messages()
    reconciler = one.reconciler()
    one.store.leases.send_again([(OLDEST.id, "user:1")])
    for work in (reconciler.resend, reconciler.beat, reconciler.extend, reconciler.resend):
        work()
        assert one.count() == 3
    assert set(one.gone) == {leases[0]}


def test_what_another_rule_refuses_after_all_is_given_back(each_store: AnyStore, monkeypatch: Any) -> None:
    four = Rule("four", "4/min", algorithm="fixed_window")
    door = Door(each_store, OLDEST, four)
    full(door)
    rate, execute = Door(door.store, four), door.store.execute

    def overtaken(command: Any) -> Any:
        reply = execute(command)
        if isinstance(command, Evict):
            assert rate.open().allowed
        return reply

    with monkeypatch.context() as overtaking:
        overtaking.setattr(door.store, "execute", overtaken)
        assert not door.open().allowed
    assert (door.count(), len(door.store.leases)) == (2, 2 + isinstance(door.store, RedisStore))


async def test_two_hundred_at_once_are_never_above_the_cap(site: MakeDoor) -> None:
    doors, onlooker = [site() for _ in range(4)], site()
    counts, stopped = [], threading.Event()

    def watch() -> None:
        while not stopped.is_set():
            counts.append(onlooker.count())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        decisions = await asyncio.gather(*(doors[number % 4].aopen() for number in range(200)))
    finally:
        stopped.set()
        watching.join()
    allowed = {lease_of(decision): decision.lease for decision in decisions if decision.allowed}
    closed = [lease for door in doors for lease in door.closed()]
    assert max(counts) == onlooker.count() == 3
    assert len(closed) == len(set(closed)), "nobody is evicted twice"
    for lease in allowed.keys() & set(closed):
        for door in doors:
            run(release_lease(BlockingIo(door.store), allowed[lease]))
    assert onlooker.count() == len(allowed.keys() - set(closed)) > 0


def redis(door: Door) -> RedisStore:
    assert isinstance(door.store, RedisStore)
    return door.store


def unavailable(*_: Any) -> Any:
    raise StoreError(Cause.UNAVAILABLE)


def test_an_eviction_of_which_the_reply_is_lost_is_asked_about_until_redis_answers(
    site: MakeDoor, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = site(), site()
    leases = full(one)
    with monkeypatch.context() as broken:
        lose(two, broken)
        assert not two.open().allowed
    with monkeypatch.context() as away:
        away.setattr(redis(two), "send", unavailable)
        for _ in range(3):
            with pytest.raises(StoreError):
                two.reconciler().resend()
    two.reconciler().resend()
    (withdrawn,) = [key for key in client.keys("*") if ":~" in key]
    assert 0 < client.pttl(withdrawn) <= 60_000
    assert one.closed() == leases[:1]
    assert one.count() == 2, "the newcomer's slot is free again"
    assert two.open().allowed and two.open().allowed
    monkeypatch.setattr(redis(two), "send", unavailable)
    two.reconciler().resend()  # nothing is asked after one that was heard of


@pytest.mark.parametrize("seconds", [60.0, 0.0], ids=["kept", "no longer kept"])
def test_a_message_that_was_not_sent_is_sent_later(seconds: float, site: MakeDoor, monkeypatch: Any) -> None:
    one, two = site(), site()
    leases = full(one)
    with monkeypatch.context() as broken:
        broken.setattr("django_throttle.stores.redis.evictions.EvictCommand._message_calls", lambda command: 1 / 0)
        broken.setattr(control_messages, "RESEND_SECONDS", seconds)
        assert two.open().allowed
    assert one.closed() == []
    for _ in range(2):
        two.store.control.resend()
    assert one.closed() == (leases[:1] if seconds else [])
    two.reconciler().resend()
    assert seconds or one.closed() == leases[:1]
    assert (one.count(), len(redis(two).leases)) == (3, 1), "the newcomer stays"
