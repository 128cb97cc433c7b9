"""Control messages reach their process once, whatever fails on the way."""

import json
from typing import Any

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core import Rule
from django_throttle.core.control_messages import CLOSE, CLOSED, RESET, ControlMessage
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.connections.evictions import redis_store
from tests.stores.conftest import evaluations

Pair = tuple[RedisStore, RedisStore]


@pytest.fixture
def pair(redis_url: str) -> Pair:
    stores = redis_store(redis_url), redis_store(redis_url)
    for store in stores:
        Reconciler(store).beat()
    return stores


def close(store: RedisStore, lease: str = "~abc") -> ControlMessage:
    return ControlMessage(CLOSE, uid=store.leases.uid, lease=lease, reason=CLOSED)


def inbox(store: RedisStore) -> str:
    return store.process_key(f"orders:{store.leases.uid}")


def leases(store: RedisStore) -> list[str]:
    return [message.lease for message in store.control.fetch()]


def test_those_for_a_process_and_for_all_come_once(pair: Pair, client: Any) -> None:
    one, two = pair
    one.control.dispatch((close(two),))
    Limiter([Rule("api", "5/min")], one).reset("user:canary")
    inboxes = [client.lrange(inbox(store), 0, -1) for store in pair]
    assert list(map(len, inboxes)) == [1, 2] and "canary" not in str(inboxes)
    (for_all,) = one.control.fetch()
    assert (for_all.kind, for_all.ident, for_all.ident_hash) == (RESET, "", one.control.ident_hash("user:canary"))
    assert list(two.control.fetch()) == [close(two)._replace(uid=""), for_all]
    assert not one.control.fetch() and not two.control.fetch()


@pytest.mark.parametrize(("number", "fails_at"), [(1, 1), (1100, 2)], ids=["the reply is lost", "there is more"])
def test_a_failure_while_they_are_fetched_loses_none(number: int, fails_at: int, pair: Pair, monkeypatch: Any) -> None:
    one, two = pair
    wanted = [f"~{n}" for n in range(number)]
    one.control.dispatch(close(two, lease) for lease in wanted)
    call, calls = two.call, []

    def flaky(*args: Any) -> Any:
        calls.append(call(*args))
        if len(calls) == fails_at:
            raise StoreError(Cause.UNAVAILABLE)
        return calls[-1]

    monkeypatch.setattr(two, "call", flaky)
    if fails_at == 1:
        with pytest.raises(StoreError):
            two.control.fetch()
    assert leases(two) + leases(two) == wanted


def test_nobody_s_list_grows_without_end(pair: Pair, client: Any, caplog: Any) -> None:
    one, two = pair
    caplog.set_level("INFO", "django_throttle")
    client.rpush(inbox(two), *(json.dumps({"kind": "reset", "ident_hash": str(number)}) for number in range(10_000)))
    one.control.dispatch(close(two, f"~{number}") for number in range(10))
    one.control.dispatch((ControlMessage(RESET, ident="user:1"),))
    assert [line.split()[:3] for line in caplog.messages] == [["process", two.leases.uid, "reads"]] * 10
    assert client.llen(inbox(two)) == 10_000
    assert len(two.control.fetch()) == 10_000
    assert not two.control.fetch()


@pytest.mark.parametrize("nonsense", ["", "{", "[]", "5", '{"kind": "close"}', '{"a": 1}', '{"kind": "dance"}'])
def test_nonsense_is_passed_over(pair: Pair, nonsense: str, client: Any) -> None:
    one, _ = pair
    one.leases.hold("rule", "user:1", "~abc")
    client.rpush(inbox(one), nonsense)
    for _ in range(2):
        SocketControl(one)()
    assert not one.control.fetch()


def test_only_where_a_socket_is_open_redis_is_asked(pair: Pair, client: Any) -> None:
    one, _ = pair
    work, before = SocketControl(one), evaluations(client)
    work()
    assert evaluations(client) == before
    one.leases.hold("rule", "user:1", "~abc")
    work()
    assert evaluations(client) == before + 1
