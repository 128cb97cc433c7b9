"""Clocks that are set, or differ: decisions go by Redis' clock alone, and survive its being wrong."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.refusal_cache import NoRefusalCache
from tests.fleet import SYNC
from tests.proxy import Proxy
from tests.servers import RedisServer, slack, wait_until
from tests.steps import Clock, SteppingServer

HOUR, LIMIT = 3600, 20
ALGORITHMS = ("fixed_window", "sliding_window", "sliding_log", "gcra", "token_bucket", "leaky_bucket")
Step = Callable[[int], None]


def rules(window: str) -> list[Rule]:
    every = [Rule(algorithm, f"{LIMIT}/{window}", algorithm=algorithm) for algorithm in ALGORITHMS]
    return [*every, Rule("interval", f"{LIMIT}/{window}", algorithm="token_bucket", refill="interval")]


@pytest.fixture
def stepping(servers: None) -> Iterator[tuple[str, Step]]:
    """Where to count, and what sets the clock: a replica takes over, whose clock is so many seconds ahead."""
    with ExitStack() as stack:
        old = stack.enter_context(RedisServer(*SYNC))
        new = stack.enter_context(SteppingServer(*SYNC, "--replicaof", "127.0.0.1", str(old.port)))
        proxy, primary, replica = map(stack.enter_context, (Proxy(old.port), old.client(), new.client()))
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up")

        def take_over(seconds: int) -> None:
            assert primary.wait(1, 5000) == 1
            replica.replicaof("NO", "ONE")
            new.step(seconds)
            proxy.target = new.port
            proxy.cut()

        yield proxy.url, take_over


def store_of(url: str) -> RedisStore:
    store = RedisStore(url, deadline=5.0)
    store.refusal_cache = NoRefusalCache()  # every call is to reach Redis
    return store


def connect(limiters: list[Limiter]) -> None:
    for limiter in limiters:
        wait_until(lambda limiter=limiter: not limiter.peek("user:1").degraded)  # type: ignore[misc]


def use_up(limiter: Limiter) -> int:
    passed = 0
    while limiter.acquire("user:1").allowed:
        passed += 1
    return passed


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F35", "F39")
def test_an_hour_back_nobody_is_locked_out(stepping: tuple[str, Step], figure: Any) -> None:
    url, step = stepping
    limiters = [Limiter([rule], store_of(url)) for rule in rules("1s")]
    assert all(use_up(limiter) >= LIMIT for limiter in limiters)
    step(-HOUR)
    connect(limiters)
    began, passed = time.monotonic(), dict[str, float]()
    while len(passed) < len(limiters):
        assert time.monotonic() - began < slack(1.0 + 1.0), f"only {sorted(passed)} are admitted"
        for limiter in limiters:
            decision = limiter.acquire("user:1")
            assert not decision.degraded
            wait = decision.retry_after
            assert wait is not None and wait <= 1.1  # a twentieth more where windows slide
            if decision.allowed:
                passed.setdefault(limiter.rules[0].name, time.monotonic() - began)
        time.sleep(0.005)
    for seconds in passed.values():
        figure("admitted again after, with a window of 1 s,", seconds, "s")


@pytest.mark.row("F35", "F40")
def test_an_hour_ahead_one_more_limit_passes(stepping: tuple[str, Step], figure: Any) -> None:
    url, step = stepping
    limiters = [Limiter([rule], store_of(url)) for rule in rules("20min")]
    assert [use_up(limiter) for limiter in limiters] == [LIMIT] * len(limiters)
    step(HOUR)
    connect(limiters)
    for limiter in limiters:
        passed = use_up(limiter)
        figure(f"passed of {LIMIT} after the step", passed)
        assert passed == LIMIT, limiter.rules[0].name


CLIENT = """
import json, sys, time
from django.conf import settings
settings.configure(SECRET_KEY="a key", DJANGO_THROTTLE={})
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
limiter = Limiter([Rule("hundred", "100/h", algorithm="gcra", burst=100)], RedisStore(sys.argv[1], deadline=5.0))
decisions = [limiter.acquire("user:1") for _ in range(60)]
waits = [decision.retry_after for decision in decisions if not decision.allowed]
print(json.dumps([time.time(), 60 - len(waits), max(waits, default=0)]))
"""


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F42")
def test_hosts_with_other_clocks_share_a_limit(redis_url: str, servers: None, figure: Any) -> None:
    told = []
    for seconds in (-300, 0, 300):
        command = [sys.executable, "-c", CLIENT, redis_url]
        environment = {**os.environ, **Clock(seconds).environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        now, *found = json.loads(done.stdout)
        assert abs(now - time.time() - seconds) < slack(30), "its clock is not set"
        told.append(found)
    passed, waits = sum(each[0] for each in told), max(each[1] for each in told)
    figure("passed of 100, with clocks five minutes slow, right and fast", passed)
    assert [each[0] for each in told] == [60, 40, 0] and 0 < waits <= 36
