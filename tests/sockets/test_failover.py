"""Sockets that are open while Redis fails: held to the policy meanwhile, and counted as they are soon afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.fleet import READY, Sentinels
from tests.servers import wait_until
from tests.sockets.worker import GROUP, SECRET, Worker, started

CAP = 6
HELD: dict[str, Any] = {"algorithm": "concurrency", "events": ["connection"], "key": "user", "limit": CAP}
NEWS: dict[str, Any] = {"rate": "1000/h", "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"}
POLICIES = ("local", "allow", "deny")
RULES: dict[str, dict[str, Any]] = {
    **{name: {**HELD, "scopes": [name], "on_store_failure": name} for name in POLICIES},
    **{f"news {name}": {**NEWS, "scopes": [name], "on_store_failure": name} for name in POLICIES},
}


@pytest.fixture
def sentinels(servers: None) -> Iterator[Sentinels]:
    with Sentinels() as watched:
        yield watched


def test_sockets_outlive_a_master(sentinels: Sentinels) -> None:
    """What its replica has not got dies with it: two sockets that came, another that went."""
    store, old = RedisStore(sentinels.url, secret=SECRET, deadline=2.0), sentinels.master()
    (replica,) = (server for server in sentinels.servers if server is not old)

    def counts(name: str, user: str) -> int | None:
        """Return what Redis counts under a rule; None while nothing answers."""
        decision = Limiter([Rule.from_options(name, RULES[name])], store).peek(f"user:{user}")
        return None if decision.degraded or decision.remaining is None else CAP - decision.remaining

    with started(*(Worker(REDIS=sentinels.url, RULES=RULES, DEADLINE=0.5) for _ in range(2))) as pair:
        first, second = pair
        for worker in pair:
            assert worker.ask("open", user="1", scope="local", times=2) == [0, 0]
        assert first.ask("open", user="3", scope="local", times=2) == [0, 0]
        for worker in pair:  # each knows by then that there are two
            wait_until(lambda worker=worker: worker.ask("processes") == 2)
        with old.client() as client:
            assert client.wait(1, 5000) == 1
        with replica.client() as client:
            client.config_set("masterauth", "a master without a password takes none")
            client.client_kill_filter(_type="master")
        assert second.ask("open", user="3", scope="local", times=2) == [0, 0]
        second.ask("close", times=1)  # of user 1
        wait_until(lambda: (counts("local", "1"), counts("local", "3")) == (3, 4))
        old.kill()
        for name, codes in (("local", [0, 4430]), ("allow", [0, 0]), ("deny", [4503, 4503])):
            assert first.ask("open", user="1", scope=name, times=2) == codes, name
            sent = first.ask("publish", publisher="user:1", group=GROUP, scope=name)
            assert sent == ([False, 0, f"news {name}", True] if name == "deny" else [True])
        second.ask("abandon", times=1)
        wait_until(lambda: sentinels.master() is replica, timeout=READY)
        wait_until(lambda: (counts("local", "1"), counts("allow", "1"), counts("local", "3")) == (3, 2, 4), timeout=20)
        assert [worker.ask("count") for worker in pair] == [7, 2]
        wait_until(lambda: first.ask("publish", publisher="user:1", group=GROUP, scope="deny") == [True])
        assert sorted(first.ask("open", user="1", scope="local", times=5)) == [0, 0, 0, 4430, 4430]
        for worker in pair:
            worker.ask("shut")
        wait_until(lambda: counts("local", "1") == counts("allow", "1") == counts("local", "3") == 0)
