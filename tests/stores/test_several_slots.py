"""A decision over several slots of a Cluster: all or nothing, and what is taken in vain goes back."""

from __future__ import annotations

import asyncio
import time

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Charge, Reset
from django_throttle.core.decide import refund_charges
from django_throttle.core.io import run
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import BlockingIo, LoopIo
from testproject.check.standstill import elapsed
from tests.clock import FrozenClock
from tests.failover import DEADLINE
from tests.fleet import RedisCluster
from tests.servers import slack
from tests.stores.conftest import decide, different_nodes, different_slots

EVERY_KIND = [
    Rule("fixed", "10/h", algorithm="fixed_window"),
    Rule("calendar", "10/month", algorithm="fixed_window", timezone="UTC"),
    Rule("sliding", "10/h"),
    Rule("in 6", "10/h", resolution=6),
    Rule("gcra", "10/h", algorithm="gcra"),
    Rule("fine", "7/s", algorithm="gcra"),
    Rule("leaky", "10/h", algorithm="leaky_bucket", action="delay"),
    Rule("interval", "10/h", algorithm="token_bucket", refill="interval"),
    Rule("log", "10/h", algorithm="sliding_log"),
    Rule("sockets", limit=10, algorithm="concurrency"),
]


NARROW = Rule("narrow", "1/366d", algorithm="fixed_window")


@pytest.mark.row("F38")
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("rule", EVERY_KIND, ids=lambda rule: rule.name)
def test_what_another_slot_refuses_charges_nothing(
    rule: Rule, on_loop: bool, cluster: RedisCluster, clock: FrozenClock
) -> None:
    """Told and left exactly as the memory store tells and leaves it."""
    ours, oracle = RedisStore(cluster.url, clock=clock, deadline=5.0), MemoryStore(clock=clock)
    idents = different_slots(ours, 3)
    charges = tuple(Charge(rule, ident, 1) for ident in idents[:2])
    for step in range(6):
        lease = f"lease{step}" if rule.is_concurrency else None
        narrow = (Charge(NARROW, idents[2], 1),) if step in (1, 3, 4) else ()
        told = [decide(store, on_loop, *charges, *narrow, lease=lease) for store in (ours, oracle)]
        assert told[0] == told[1], step
        assert told[0].allowed is (step not in (3, 4))
        clock.step(0.05)
    stands = [decide(store, on_loop, *charges, commit=False) for store in (ours, oracle)]
    assert stands[0] == stands[1]


@pytest.mark.usefixtures("stopwatch")
def test_a_failed_slot_gives_back_what_the_others_granted(cluster: RedisCluster) -> None:
    store, witness = RedisStore(cluster.url, deadline=5.0), RedisStore(cluster.url, deadline=5.0)
    first, second = different_nodes(store, cluster, 2)
    charges = [Charge(Rule("hour", "10/h", on_store_failure="allow"), ident, 1) for ident in (first, second)]
    assert not decide(store, False, *charges).degraded
    assert not decide(witness, False, *charges, commit=False).degraded
    stopped = cluster.owner(store.key(charges[1].rule.id, second))
    stopped.pause()
    store.transport.seconds = DEADLINE
    try:
        for on_loop in (False, True):
            started = time.monotonic()
            assert decide(store, on_loop, *charges).degraded
            assert elapsed(started) < slack(DEADLINE + 0.05)
        stands = decide(witness, False, charges[0], commit=False)
    finally:
        stopped.resume()
    assert stands.remaining == 9


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_what_does_not_count_goes_back_to_each_and_a_reset_reaches_all(on_loop: bool, cluster: RedisCluster) -> None:
    store = RedisStore(cluster.url, deadline=5.0)
    first, second, *_ = idents = different_slots(store, 5)
    rule = Rule("logins", "10/h", count_on=(401,))
    paid = decide(store, on_loop, Charge(rule, first, 2), Charge(rule, second, 3)).receipt
    if on_loop:
        assert asyncio.run(refund_charges(LoopIo(store), paid))
    else:
        assert run(refund_charges(BlockingIo(store), paid))
    charges = tuple(Charge(rule, ident, 1) for ident in idents)
    assert [outcome.remaining for outcome in decide(store, on_loop, *charges).outcomes] == [9] * 5
    resets = [asyncio.run(store.aexecute(Reset(charges))) if on_loop else store.execute(Reset(charges)) for _ in "12"]
    assert resets == [5, 0]
