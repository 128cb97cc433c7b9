"""The admin's page of open connections: who may see and close what, and that nobody suffers from looking."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.core.management import call_command
from django.test import Client
from django.urls import NoReverseMatch, reverse

from django_throttle.connections import overview
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.models import ThrottleConnection
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import user
from tests.admin.test_rules import NASTY, Scripts, text
from tests.connections.evictions import redis_store
from tests.connections.recorder import sockets
from tests.doors import BOTH, REDIS, Enforce, Store
from tests.servers import RedisServer

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)

PAGE = reverse("admin:django_throttle_throttleconnection_changelist")
CLOSE = reverse("admin:django_throttle_throttleconnection_close")


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


def said(answer: Any) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


class TestPermissions:
    MATRIX = [
        ("anonymous", None, 302, 302),
        (
            "no staff",
            {"staff": False, "permissions": ["view_throttleconnection", "close_throttleconnection"]},
            302,
            302,
        ),
        ("staff", {}, 403, 403),
        ("view", {"permissions": ["view_throttleconnection"]}, 200, 403),
        ("close", {"permissions": ["close_throttleconnection"]}, 403, 403),
        ("both", {"permissions": ["view_throttleconnection", "close_throttleconnection"]}, 200, 302),
        ("superuser", {"superuser": True}, 200, 302),
    ]

    @pytest.mark.row("A55")
    @pytest.mark.parametrize(("who", "options", "seen", "closed"), MATRIX, ids=[row[0] for row in MATRIX])
    def test_matrix(self, client: Client, enforce: Enforce, who: str, options: Any, seen: int, closed: int) -> None:
        store = enforce()
        (one,) = sockets(("a", "user:1"))
        if options is not None:
            given = dict(options)
            client.force_login(user(*given.pop("permissions", ()), **given))
        assert client.get(PAGE).status_code == seen
        rows = client.get(PAGE, {"part": "rows"})
        assert rows.status_code == seen
        answer = client.post(CLOSE, {"uid": store.leases.uid, "socket": "a"})
        assert answer.status_code == closed
        SocketControl(store)()
        may = who in ("both", "superuser")
        assert (one.closed is not None) == (LogEntry.objects.count() == 1) == may
        assert ("<button" in rows.content.decode()) == may

    def test_it_is_in_the_index_of_whoever_may_see_it(self, client: Client, enforce: Enforce) -> None:
        enforce()
        client.force_login(user("view_throttleconnection"))
        page = client.get(reverse("admin:index"))
        assert f'href="{PAGE}"' in page.content.decode()

    @pytest.mark.row("A54")
    def test_nothing_is_done_by_get_or_without_a_token(self, enforce: Enforce) -> None:
        store = enforce()
        (one,) = sockets(("a", "user:1"))
        client = Client(enforce_csrf_checks=True)
        client.force_login(user(superuser=True))
        given = {"uid": store.leases.uid, "socket": "a"}
        assert client.get(CLOSE, given).status_code == 405
        assert client.post(CLOSE, given).status_code == 403
        assert client.post(PAGE, given).status_code == 403
        SocketControl(store)()
        assert one.closed is None

    @pytest.mark.parametrize("name", ["add", "change", "delete", "history"])
    def test_there_is_no_other_page(self, name: str) -> None:
        with pytest.raises(NoReverseMatch):
            reverse(f"admin:django_throttle_throttleconnection_{name}", args=() if name == "add" else ("1",))


@BOTH
class TestPage:
    def test_it_reads_well(self, operator: Client, enforce: Enforce) -> None:
        store = enforce()
        sockets(("a", "user:1"), ("b", "user:1"), ("c", "user:2"))
        for one in open_sockets.everyone():
            one.opened -= 1000
        first = open_sockets.everyone()[0]
        first.received, first.last_received = 3, first.last_received - 330
        process(store)
        shown = text(operator.get(PAGE))
        for words in ("3 open connections", "user:1 2 1 Close all", "user:2 1 1 Close all", "user:1 192.0.2.7 chat"):
            assert words in shown, words
        assert "16 min 5 min ago 3" in shown and "16 min none 0" in shown
        assert ("in memory, so only what this process holds" in shown) == (not isinstance(store, RedisStore))

    def test_nobody_is_there(self, operator: Client, enforce: Enforce) -> None:
        process(enforce())
        assert "0 open connections" in text(operator.get(PAGE))

    def test_the_first_render_does_not_say_nobody(self, operator: Client, enforce: Enforce) -> None:
        """No process has been heard, whose sockets are under no rule of concurrency besides."""
        store = enforce()
        sockets(*((f"s{number}", "user:1") for number in range(4)))
        if isinstance(store, RedisStore):
            Reconciler(store).beat()
            assert "0 open connections, not all processes have answered yet" in text(operator.get(PAGE))
            process(store)
        shown = text(operator.get(PAGE))
        assert "4 open connections" in shown and "not all processes have answered" not in shown

    def test_a_search(self, operator: Client, enforce: Enforce) -> None:
        store = process(enforce())
        sockets(("a", "user:1"), ("b", "user:11"), ("c", "user:2"))
        for search, number in (("user:1", 2), ('"user:1"', 1), ("192.0.2", 3), ("nobody", 0)):
            process(store, search)
            assert f"{number} open connection" in text(operator.get(PAGE, {"q": search})), search

    @pytest.mark.row("A53")
    def test_what_clients_say_never_runs(self, operator: Client, enforce: Enforce) -> None:
        store = enforce()
        sockets((f"a{NASTY}", f"user:{NASTY}"), scope=f"chat{NASTY}", path=f"/{NASTY}</script><script>alert(1)")
        process(store)
        page = operator.get(PAGE, {"q": ""}).content.decode()
        assert Scripts(page).found == []
        assert page.count("&lt;img src=x") >= 4
        assert "<script>alert" not in page
        searched = operator.get(PAGE, {"q": f'"{NASTY}</script>'}).content.decode()
        assert Scripts(searched).found == []

    def test_one_is_closed_and_the_log_says_by_whom(self, operator: Client, enforce: Enforce) -> None:
        store = enforce()
        first, second = sockets(("a", "user:1"), ("b", "user:1"))
        process(store, "user")
        answer = operator.post(CLOSE, {"uid": store.leases.uid, "socket": "a", "q": "user"})
        assert said(answer) == ["The connection of user:1 (chat, /ws/chat) is being closed."]
        assert answer["Location"] == f"{PAGE}?q=user"
        SocketControl(store)()
        assert first.closed is not None and second.closed is None
        assert (first.closed.code, first.closed.payload["code"]) == (4410, "closed")  # type: ignore[index]
        row = LogEntry.objects.get()
        assert (row.object_repr, row.get_change_message(), row.user.get_username()) == (
            "user:1 (chat, /ws/chat)",
            "Closed.",
            "somebody",
        )
        assert row.get_admin_url() is None
        assert "user:1 (chat, /ws/chat)" in text(operator.get(reverse("admin:index")))

    def test_the_log_has_no_control_characters(self, operator: Client, enforce: Enforce) -> None:
        """A path may have any, and PostgreSQL refuses a NUL after the order was given."""
        store = enforce()
        (one,) = sockets(("a", "user:\x1b[1m"), path="/ws/\x00\n\u202e\ud800")
        process(store)
        answer = operator.post(CLOSE, {"uid": store.leases.uid, "socket": "a"})
        SocketControl(store)()
        assert one.closed is not None
        assert LogEntry.objects.get().object_repr == r"user:\x1b[1m (chat, /ws/\x00\n\u202e\ud800)"
        assert all(map(str.isprintable, said(answer)))

    def test_all_of_an_identity(self, operator: Client, enforce: Enforce) -> None:
        store = enforce()
        found = sockets(("a", "user:1"), ("b", "user:1"), ("c", "user:11"))
        process(store)
        answer = operator.post(CLOSE, {"tag": store.control.tag("user:1")})
        assert said(answer) == ["All 2 connections of user:1 are being closed."]
        SocketControl(store)()
        assert [one.closed is not None for one in found] == [True, True, False]
        assert LogEntry.objects.get().object_repr == "user:1"

    @pytest.mark.row("A57")
    @pytest.mark.parametrize(
        "typed",
        [{"tag": "*"}, {"tag": "user:1"}, {"tag": ""}, {}, {"uid": "{p}", "socket": "../a"}, {"socket": "a"}],
        ids=str,
    )
    def test_what_is_not_on_the_page_is_not_touched(
        self, operator: Client, enforce: Enforce, typed: dict[str, str]
    ) -> None:
        store = enforce()
        (one,) = sockets(("a", "user:1"))
        process(store)
        assert said(operator.post(CLOSE, typed)) == ["It has gone already."]
        SocketControl(store)()
        assert one.closed is None
        assert LogEntry.objects.count() == 0


class TestBurden:
    @pytest.mark.row("A56")
    @REDIS
    def test_a_crowd_on_the_page_costs_next_to_nothing(
        self,
        operator: Client,
        enforce: Enforce,
        redis_server: RedisServer,
        monkeypatch: Any,
        figure: Callable[..., None],
    ) -> None:
        """A56: ten times in a moment, with a hundred thousand keys beside."""
        store = enforce()
        sockets(*((f"s{number}", f"user:{number}") for number in range(1000)))
        process(store)
        monkeypatch.setattr(overview, "FRESH_SECONDS", 60.0)
        with redis_server.client() as client:
            client.eval("for i = 1, 100000 do redis.call('SET', 'other:' .. i, 1, 'EX', 600) end", 0)
            client.config_set("slowlog-log-slower-than", 10_000)
            client.slowlog_reset()
            client.config_resetstat()
            pages = [operator.get(PAGE, {"part": "rows"}) for _ in range(10)]
            SocketControl(store)()
            stats = client.info("commandstats")
            asked = stats["cmdstat_evalsha"]["calls"]
            figure("scripts for ten looks at 1,000 sockets", asked)
            assert asked <= 8
            assert client.slowlog_get() == []
            assert not {"cmdstat_keys", "cmdstat_scan"} & set(stats)
            client.flushall()
        assert "1000 open connections" in text(pages[-1])
        assert "And 800 more" in text(pages[-1])

    def test_redis_is_away(self, operator: Client, settings: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr("django_throttle.admin.connections.get_store", lambda: redis_store("redis://127.0.0.1:1/0"))
        page = text(operator.get(PAGE))
        assert "Redis does not answer" in page
        assert "open connections" not in page.partition("nobody knows")[2], "nobody knows"
        assert said(operator.post(CLOSE, {"socket": "a"}))[0].startswith("Redis does not answer")

    def test_a_setting_is_wrong(self, operator: Client, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"STORE": "disk", "AGENT": False}
        assert "STORE is" in text(operator.get(PAGE))

    @pytest.mark.parametrize("options", [{}, {"use_base_manager": True}])
    def test_dumpdata_finds_no_table_missing(self, options: dict[str, Any]) -> None:
        out = io.StringIO()
        call_command("dumpdata", "django_throttle", stdout=out, **options)
        assert out.getvalue().strip() == "[]"
        assert not ThrottleConnection.objects.exists()
