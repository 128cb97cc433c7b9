"""``check --deploy`` asks Redis how it is set, and says what lets limits be exceeded."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import CheckMessage

from django_throttle.checks import check_server
from django_throttle.stores import RedisStore, pin
from tests.fleet import Sentinels
from tests.servers import RedisServer, free_port


@pytest.fixture(autouse=True)
def production(settings: Any) -> Any:
    settings.DEBUG = False
    yield
    pin(None)


def messages(url: str) -> list[str]:
    pin(RedisStore(url, deadline=5.0))
    found: list[CheckMessage] = check_server(None)
    return [str(one.id) for one in found]


@pytest.mark.row("F17")
@pytest.mark.parametrize(
    ("policy", "memory", "expected"),
    [
        ("noeviction", "100mb", []),
        ("allkeys-lfu", "100mb", []),
        ("allkeys-random", "100mb", ["django_throttle.W038"]),
        ("volatile-ttl", "100mb", ["django_throttle.W038"]),
        ("volatile-lru", "0", []),
    ],
)
def test_w038_what_is_evicted_first(policy: str, memory: str, expected: list[str]) -> None:
    with RedisServer("--maxmemory", memory, "--maxmemory-policy", policy) as server:
        assert messages(server.url) == expected


def test_w037_min_replicas_to_write() -> None:
    with Sentinels() as servers:
        assert messages(servers.url) == ["django_throttle.W037"]
        with servers.master().client() as client:
            client.config_set("min-replicas-to-write", 1)
        assert messages(servers.url) == []


def test_nothing_is_said_of_a_server_that_does_not_answer(settings: Any) -> None:
    assert messages(f"redis://127.0.0.1:{free_port()}/0") == []
    settings.DEBUG = True
    assert check_server(None) == []
