"""The admin's page of open connections: what it shows and closes, and that nobody suffers from looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_throttle.connections import overview
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.stores import RedisStore
from tests.admin.conftest import messages, text, url, user
from tests.connections.evictions import redis_store
from tests.connections.recorder import sockets
from tests.doors import BOTH, REDIS, Enforce, Store
from tests.servers import RedisServer

pytestmark = pytest.mark.django_db
PAGE, CLOSE = url("throttleconnection_changelist"), url("throttleconnection_close")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sockets.clear()
    overview.look_again()
    monkeypatch.setattr("django_throttle.admin.connections.ANSWER_SECONDS", 0.1)
    yield
    open_sockets.clear()


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(user("view_throttleconnection", "close_throttleconnection"))
    return client


def process(store: Store, search: str = "") -> Store:
    """A process that Redis knows, and that has heard of whoever looks."""
    if isinstance(store, RedisStore):
        Reconciler(store).beat()
    overview.look(store, search)
    SocketControl(store)()
    overview.look_again()
    return store


@BOTH
class TestPage:
    def test_it_reads_well(self, operator: Client, enforce: Enforce) -> None:
        store = enforce()
        sockets(("a", "user:1"), ("b", "user:1"), ("c", "user:2"))
        for socket in open_sockets.everyone():
            socket.opened -= 1000
        first = open_sockets.everyone()[0]
        first.received, first.last_received = 3, first.last_received - 330
        process(store)
        shown = text(operator.get(PAGE))
        for words in ("3 open connections", "user:1 2 1 Close all", "user:2 1 1 Close all", "user:1 192.0.2.7 chat"):
            assert words in shown, words
        assert "16 min 5 min ago 3" in shown and "16 min none 0" in shown
        assert ("in memory, so only what this process holds" in shown) == (not isinstance(store, RedisStore))

    def test_a_socket_is_closed_and_the_log_says_by_whom(self, operator: Client, enforce: Enforce) -> None:
        store = enforce()
        first, second = sockets(("a", "user:1"), ("b", "user:1"))
        process(store, "user")
        answer = operator.post(CLOSE, {"uid": store.leases.uid, "socket": "a", "q": "user"})
        assert messages(answer) == ["The connection of user:1 (chat, /ws/chat) is being closed."]
        assert answer["Location"] == f"{PAGE}?q=user"
        SocketControl(store)()
        assert first.closed is not None and second.closed is None
        assert (first.closed.code, first.closed.payload["code"]) == (4410, "closed")  # type: ignore[index]
        row = LogEntry.objects.get()
        said = (row.object_repr, row.get_change_message(), row.user.get_username(), row.get_admin_url())
        assert said == ("user:1 (chat, /ws/chat)", "Closed.", "somebody", None)
        assert "user:1 (chat, /ws/chat)" in text(operator.get(reverse("admin:index")))

    @pytest.mark.row("A57")
    def test_all_of_an_identity_and_nobody_else(self, operator: Client, enforce: Enforce) -> None:
        store = enforce()
        found = sockets(("a", "user:1"), ("b", "user:1"), ("c", "user:11"))
        process(store)
        for typed in ({"tag": "*"}, {"tag": "user:1"}, {"tag": ""}, {}, {"uid": "{p}", "socket": "../a"}):
            assert messages(operator.post(CLOSE, typed))[-1] == "It has gone already."
        assert LogEntry.objects.count() == 0
        answer = operator.post(CLOSE, {"tag": store.control.tag("user:1")})
        assert messages(answer)[-1] == "All 2 connections of user:1 are being closed."
        SocketControl(store)()
        assert [socket.closed is not None for socket in found] == [True, True, False]
        assert LogEntry.objects.get().object_repr == "user:1"


@pytest.mark.row("A56")
@REDIS
def test_a_crowd_on_the_page_costs_next_to_nothing(
    operator: Client, enforce: Enforce, redis_server: RedisServer, monkeypatch: Any, figure: Callable[..., None]
) -> None:
    store = enforce()
    sockets(*((f"s{number}", f"user:{number}") for number in range(1000)))
    process(store)
    monkeypatch.setattr(overview, "FRESH_SECONDS", 60.0)
    with redis_server.client() as client:
        client.eval("for i = 1, 10000 do redis.call('SET', 'other:' .. i, 1, 'EX', 600) end", 0)
        client.config_resetstat()
        pages = [operator.get(PAGE, {"part": "rows"}) for _ in range(10)]
        SocketControl(store)()
        stats = client.info("commandstats")
        client.flushall()
    asked = stats["cmdstat_evalsha"]["calls"]
    figure("scripts for ten looks at 1,000 sockets", asked)
    assert asked <= 8
    assert not {"cmdstat_keys", "cmdstat_scan"} & set(stats)
    assert "1000 open connections" in text(pages[-1]) and "And 800 more" in text(pages[-1])


@pytest.mark.usefixtures("redis_server")
def test_redis_is_away_or_a_setting_wrong(operator: Client, settings: Any, monkeypatch: Any) -> None:
    settings.DJANGO_THROTTLE = {"STORE": "disk", "AGENT": False}
    assert "STORE is" in text(operator.get(PAGE))
    monkeypatch.setattr("django_throttle.admin.connections.get_store", lambda: redis_store("redis://127.0.0.1:1/0"))
    page = text(operator.get(PAGE))
    assert "Redis does not answer" in page and "0 open connections" not in page
    assert messages(operator.post(CLOSE, {"socket": "a"}))[0].startswith("Redis does not answer")
