"""Sockets that are open while Redis fails: held to the policy meanwhile, and counted as they are soon afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.fleet import READY, Sentinels
from tests.servers import RedisServer, wait_until
from tests.sockets.worker import GROUP, SECRET, Worker, started

CAP = 6
HELD: dict[str, Any] = {"algorithm": "concurrency", "events": ["connection"], "key": "user", "limit": CAP}
NEWS: dict[str, Any] = {"rate": "1000/h", "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"}
POLICIES = ("local", "allow", "deny")
RULES: dict[str, dict[str, Any]] = {
    **{name: {**HELD, "scopes": [name], "on_store_failure": name} for name in POLICIES},
    **{f"news {name}": {**NEWS, "scopes": [name], "on_store_failure": name} for name in POLICIES},
}
pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels() as servers:
        yield servers


@pytest.fixture(scope="module")
def pair(sentinels: Sentinels) -> Iterator[list[Worker]]:
    with started(*(Worker(REDIS=sentinels.url, RULES=RULES, DEADLINE=0.5) for _ in range(2))) as workers:
        yield workers


class Witness:
    """Another process, in which nobody holds anything."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, secret=SECRET, deadline=2.0)

    def counts(self, name: str, user: str = "1") -> int | None:
        """What Redis has of a rule; None while nobody answers."""
        decision = Limiter([Rule.from_options(name, RULES[name])], self.store).peek(f"user:{user}")
        return None if decision.degraded or decision.remaining is None else CAP - decision.remaining


def fail_over(sentinels: Sentinels, witness: Witness, old: RedisServer) -> None:
    """Wait for the next master, and its first answer."""
    wait_until(lambda: sentinels.master() is not old, timeout=READY)
    wait_until(lambda: witness.counts("local") is not None, timeout=READY)


def test_sockets_outlive_a_master(sentinels: Sentinels, pair: list[Worker]) -> None:
    witness, old = Witness(sentinels.url), sentinels.master()
    first, second = pair
    for worker in pair:
        assert worker.ask("open", user="1", scope="local", times=2) == [0, 0]
    assert witness.counts("local") == 4
    for worker in pair:  # each knows by then that there are two
        wait_until(lambda worker=worker: worker.ask("processes") == 2)
    old.kill()
    for name, codes in (("local", [0, 4430]), ("allow", [0, 0]), ("deny", [4503, 4503])):
        assert first.ask("open", user="1", scope=name, times=2) == codes, name
        sent = first.ask("publish", publisher="user:1", group=GROUP, scope=name)
        assert sent == ([False, 0, f"news {name}", True] if name == "deny" else [True])
    second.ask("abandon", times=2)
    fail_over(sentinels, witness, old)
    wait_until(lambda: (witness.counts("allow"), witness.counts("local")) == (2, 3))
    assert [worker.ask("count") for worker in pair] == [5, 0]
    wait_until(lambda: first.ask("publish", publisher="user:1", group=GROUP, scope="deny") == [True])
    assert sorted(first.ask("open", user="1", scope="local", times=5)) == [0, 0, 0, 4430, 4430]
    for worker in pair:
        worker.ask("shut")
    wait_until(lambda: witness.counts("local") == witness.counts("allow") == 0)
    old.start()
    with old.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(sentinels.master().port))


def test_what_the_replica_has_not_got_is_not_lost(sentinels: Sentinels, pair: list[Worker]) -> None:
    """The last that the old master took note of dies with it: a socket that came, another that went."""
    sentinels.settle()
    witness, old = Witness(sentinels.url), sentinels.master()
    first, second = pair
    assert first.ask("open", user="3", scope="local", times=2) == [0, 0]
    assert second.ask("open", user="4", scope="local") == [0]
    (replica,) = (server for server in sentinels.servers if server is not old)
    with old.client() as client:
        assert client.wait(1, 5000) == 1
    with replica.client() as client:
        client.config_set("masterauth", "a master without a password takes none")
        client.client_kill_filter(_type="master")
    assert second.ask("open", user="3", scope="local", times=2) == [0, 0]
    second.ask("close", times=1)  # of user 4
    wait_until(lambda: (witness.counts("local", "3"), witness.counts("local", "4")) == (4, 0))
    old.kill()
    fail_over(sentinels, witness, old)
    assert sentinels.master() is replica
    wait_until(lambda: witness.counts("local", "3") == 4)
    wait_until(lambda: witness.counts("local", "4") == 0, timeout=20)
