"""The user of Redis that docs/howto/redis.rst makes can do all that this package does, and nothing else."""

import re
import shlex
from collections.abc import Iterator

import pytest
from django.test import override_settings
from redis.exceptions import NoPermissionError, ResponseError

from django_throttle.connections.overview import get_overview
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.commands import (
    Charge,
    CountMembers,
    DedupKey,
    Evict,
    LedgerEntry,
    Pause,
    SetDedupKeys,
    charge,
)
from django_throttle.core.decide import release_lease
from django_throttle.core.io import run
from django_throttle.limiter import Limiter, decide_fully
from django_throttle.local.limits import flush
from django_throttle.management.commands.refresh_connections import HostRefresher
from django_throttle.rulebook import current_rules
from django_throttle.stores import RedisStore
from django_throttle.stores.base import BlockingIo
from django_throttle.stores.redis.commands import refund_call, store_members_calls
from docs.scripts import FOLDERS
from tests.pages import DOCS
from tests.servers import RedisServer

PAGE = (DOCS / "howto" / "redis.rst").read_text(encoding="utf-8")
SCRIPTS = [path for folder in FOLDERS for path in sorted(folder.glob("*.lua"))]
WORD = re.compile(r"\bp?call\('([A-Z]+)'")
COMMAND = re.search(r"redis-cli (ACL SETUSER (?:.*\\\n)*.*)", PAGE)
assert COMMAND is not None
PRINTED = shlex.split(COMMAND[1].replace("\\\n", " "))
PASSWORD = next(word[1:] for word in PRINTED if word.startswith(">"))
#: A rule of each algorithm, and of what scripts do besides.
RULES = (
    *(
        Rule(name, **({"limit": 100} if name == "concurrency" else {"rate": "100/s"}), algorithm=name)
        for name in ALGORITHMS
    ),
    Rule("month", "100/month", algorithm="fixed_window", timezone="UTC"),
    Rule("strict", "100/min", resolution=3, strict=True, count_denied=True),
    Rule("interval", "100/min", algorithm="token_bucket", refill="interval"),
    Rule("queue", "100/min", algorithm="leaky_bucket", action="delay"),
)


@pytest.fixture
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as started, started.client() as client:
        assert client.execute_command(*PRINTED)
        yield started
        log = client.acl_log()
    # What a client says of itself, it does not mind being refused.
    refused = [line for line in log if line["object"] not in ("client", "client|setinfo")]
    assert [f"{line['reason']} {line['object']}" for line in refused] == []


def store_of(server: RedisServer, database: int = 1) -> RedisStore:
    return RedisStore(f"redis://throttle:{PASSWORD}@127.0.0.1:{server.port}/{database}", deadline=5.0)


@pytest.mark.row("A59")
def test_it_names_every_command_of_every_script_and_each_can_be_read() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SCRIPTS]
    used = {word.lower() for text in texts for word in WORD.findall(text)}
    granted = {word[1:] for word in PRINTED if word.startswith("+")}
    assert used | {"eval", "evalsha", "select"} == granted | {"scan"}
    assert "``+cluster|slots +asking +scan``" in PAGE, "which a Cluster takes as well"
    assert [len(re.findall(r"\bp?call\(", text)) for text in texts] == [len(WORD.findall(text)) for text in texts]


@pytest.mark.row("A60")
def test_decisions(server: RedisServer) -> None:
    store = store_of(server, database=0)
    for rules in (*((rule,) for rule in RULES), RULES):
        with server.client() as client:
            client.flushall()
            for each in rules:  # which is mended
                client.hset(store.counter_key(each, "user:1"), "field", "value")
        limiter = Limiter(rules, store)
        for _ in range(3):
            decision = limiter.acquire("user:1", cost=2)
            assert decision.allowed and not decision.degraded
        assert not limiter.peek("user:1").degraded
        assert not limiter.acquire("user:1", cost=99).degraded
        flush(store.local_limits, store.aggregator)
        limiter.reset("user:1")
        limiter.release(decision.lease)
        for each in rules:
            if each.params.wire_id and not each.holds_slots:
                limiter.acquire("user:1")
                store.send([refund_call(store, [LedgerEntry(Charge(each, "user:1", 1), 0, 0)])])


@override_settings(DJANGO_THROTTLE={"DATABASE_RULES": False})
def test_what_processes_tell_each_other(server: RedisServer) -> None:
    store, other = store_of(server), store_of(server)
    rule = Rule("sockets", limit=1, algorithm="concurrency", at_limit="evict_idle")
    for one in (store, other):
        decision = run(decide_fully(BlockingIo(one), (charge(rule, "user:1", 1),), socket=True))
        assert decision.allowed and not decision.degraded
        reconciler = Reconciler(one)
        for work in (reconciler.beat, reconciler.resend, reconciler.extend):
            work()
    assert decision.lease is not None
    other.call("touch", (other.key(rule.id, "user:1"),), ("", other.leases.uid, decision.lease.id, 0))
    other.evictions.add(Evict(charge(rule, "user:1", 1), "~another"), withdraws=True)
    other.evictions.resolve()
    get_overview(other)
    SocketControl(store)()
    assert get_overview(other).processes
    assert HostRefresher(other).refresh().alive == 2
    Limiter(RULES, other).reset("user:1")
    run(release_lease(BlockingIo(other), decision.lease))
    reconciler.release_all()
    assert store.execute(SetDedupKeys((DedupKey("rule", "user:1", "0.8", 60_000_000),))) == (True,)
    assert store.execute(Pause("name", "host:a", 60_000_000)) == 60_000_000
    seen = CountMembers("group:default:news", "another", 20.0)
    for members in (3, 0):
        store.send(store_members_calls(store, "process", {seen.group: members}, 20.0))
        assert store.execute(seen) == members
    assert current_rules.fetch(store) is not None
    store.call("publish_rules", [store.process_key("rules")], ["another", 60_000])
    assert current_rules.fetch(store) == "another"


@pytest.mark.row("A60")
def test_it_can_do_nothing_else(server: RedisServer) -> None:
    with server.client(username="throttle", password=PASSWORD) as client:
        for command in (["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["GET", "session:1"], ["SCAN", "0"]):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)
        with pytest.raises(ResponseError, match=r"(?i)permission|can't access|ACL failure"):
            client.eval("return redis.call('GET', 'session:1')", 0)
    with server.client() as client:
        client.acl_log_reset()
