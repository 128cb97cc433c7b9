"""Every door, sync and async, on every store: the same rules have the same effect."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.doors import BOTH, REDIS, Enforce
from tests.http import site
from tests.http.conftest import CALLABLES, Ask, close
from tests.inside import count_in

pytestmark = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
THREE: dict[str, Any] = {"rate": "3/min", "algorithm": "fixed_window", "key": "everyone"}
ONE_AT_ONCE: dict[str, Any] = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
FAILED: dict[str, Any] = {**THREE, "count_on": [401, 403]}


def left() -> int | None:
    return Limiter([Rule("api", **{**THREE, "count_on": (401,)})], get_store()).peek("everyone").remaining


def free() -> int | None:
    """Slots, as every process sees them."""
    return Limiter([Rule("api", **ONE_AT_ONCE)], get_store()).peek("everyone").remaining


@BOTH
def test_exactly_the_limit_passes(enforce: Enforce, ask: Ask) -> None:
    enforce(api=THREE)
    answers = [ask() for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert 1 <= int(answers[-1]["Retry-After"]) <= 67  # spread upward by a tenth
    assert len(site.seen) == 3


@BOTH
def test_a_slot_is_held_for_as_long_as_the_answer_takes(enforce: Enforce, ask: Ask) -> None:
    enforce(api=ONE_AT_ONCE)
    for doing in ("ok", "template", "stream", "file", "fail", "missing", "denied"):
        for _ in range(2):
            assert ask(doing).status_code != 429, doing
        assert (len(get_store().leases), free()) == (0, 1), doing
    assert site.seen == [1] * 14


@REDIS
def test_until_what_streams_is_closed(enforce: Enforce, ask: Ask) -> None:
    enforce(api=ONE_AT_ONCE)
    for doing in ("stream", "file"):
        response = ask(doing, reads=False)
        assert free() == 0
        assert ask().status_code == 429
        close(response)
        close(response)
        assert free() == 1
        assert ask().status_code == 200


@BOTH
def test_only_the_answers_that_count_are_charged(enforce: Enforce, ask: Ask) -> None:
    enforce(api=FAILED)
    for status in (200, 401, 302, 404, 403, 500):
        assert ask("login", query=f"?status={status}").status_code == status
    assert left() == 1
    assert ask("denied").status_code == 403
    assert [ask("login", query="?status=200").status_code for _ in range(2)] == [429, 429]
    assert left() == 0


@REDIS
def test_errors_count_as_what_becomes_of_them(enforce: Enforce, ask: Ask) -> None:
    enforce(api={**THREE, "count_on": [500, 404]})
    assert [ask(doing).status_code for doing in ("fail", "denied", "missing")] == [500, 403, 404]
    assert left() == 1


@REDIS
def test_a_shadow_refuses_nothing(enforce: Enforce, ask: Ask) -> None:
    enforce(api={**THREE, "action": "shadow"}, slots={**ONE_AT_ONCE, "action": "shadow"})
    assert [ask().status_code for _ in range(4)] == [200] * 4


def test_a_queue_has_each_wait_for_its_turn(enforce: Enforce, ask: Ask) -> None:
    enforce(api={"rate": "20/s", "burst": 3, "algorithm": "leaky_bucket", "action": "delay", "key": "everyone"})
    began = time.monotonic()
    assert [ask().status_code for _ in range(3)] == [200] * 3  # the clock of the store stands still
    assert time.monotonic() - began >= 0.05 + 0.1
    assert ask().status_code == 429


def test_a_store_that_fails_is_a_503_where_the_rule_says_so(
    enforce: Enforce, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(api={**THREE, "on_store_failure": "deny"})
    count_in(RedisStore("redis://127.0.0.1:1/0"), monkeypatch)
    answer = ask()
    assert (answer.status_code, int(answer["Retry-After"]) >= 1, site.seen) == (503, True, [])


@BOTH
@pytest.mark.parametrize(
    ("events", "statuses"),
    [
        (None, [200, 200]),
        (["connection"], [200, 200]),
        (["inflight"], [429, 429]),
        (["connection", "inflight"], [429, 429]),
    ],
)
@pytest.mark.parametrize("door", ["middleware", "drf", "async-middleware"])
def test_open_sockets_and_requests_in_flight_are_two_events(
    enforce: Enforce, client: Ask, settings: Any, door: str, events: list[str] | None, statuses: list[int]
) -> None:
    """Somebody with all the sockets that they may have open asks for a page."""
    settings.MIDDLEWARE = site.MIDDLEWARE if "middleware" in door else []
    rule = {"limit": 1, "algorithm": "concurrency", "key": "everyone", **({"events": events} if events else {})}
    store = enforce(tabs=rule)
    with Limiter([Rule("tabs", **rule)], store).lease("everyone"):
        assert [client(f"/{door}/ok").status_code for _ in range(2)] == statuses
    assert client(f"/{door}/ok").status_code == 200


@BOTH
@pytest.mark.parametrize("door", CALLABLES)
class TestCallables:
    """What gets no request raises Refused; a slot is held until it returns."""

    def test_exactly_the_limit_passes(self, enforce: Enforce, client: Ask, door: str) -> None:
        enforce(api=THREE)
        assert [client(CALLABLES[door].format("ok")).status_code for _ in range(4)] == [200, 200, 200, 429]

    def test_a_queue_has_each_wait_for_its_turn(self, enforce: Enforce, client: Ask, door: str) -> None:
        enforce(api={"rate": "20/s", "burst": 3, "algorithm": "leaky_bucket", "action": "delay", "key": "everyone"})
        began = time.monotonic()
        assert [client(CALLABLES[door].format("ok")).status_code for _ in range(4)] == [200, 200, 200, 429]
        assert time.monotonic() - began >= 0.05 + 0.1

    def test_a_slot_is_given_back(self, enforce: Enforce, client: Ask, door: str) -> None:
        enforce(api=ONE_AT_ONCE)
        statuses = [client(CALLABLES[door].format(doing)).status_code for doing in ("ok", "no such", "ok")]
        assert statuses == [200, 500, 200]
        assert (site.seen, free()) == ([1, 1, 1], 1)


@BOTH
@pytest.mark.parametrize(
    "door", ["decorated", "async-decorated", "class", "method", "drf", "ninja/sync", "ninja/async"]
)
def test_with_the_middleware_in_front_each_rule_is_charged_once(
    enforce: Enforce, client: Ask, settings: Any, door: str
) -> None:
    settings.MIDDLEWARE = [*site.MIDDLEWARE, *site.MIDDLEWARE]  # twice, by mistake
    enforce(api=FAILED, slots=ONE_AT_ONCE)
    assert client(f"/{door}/login?status=401").status_code == 401
    assert client(f"/{door}/ok").status_code == 200
    assert (left(), site.seen, len(get_store().leases)) == (2, [1, 1], 0)


def test_what_ninja_makes_a_response_of_counts_by_its_status(enforce: Enforce, client: Ask) -> None:
    enforce(api=FAILED)
    assert [client(f"/ninja/plain/x{query}").status_code for query in ("", "?status=401", "")] == [200, 401, 200]
    assert left() == 2
