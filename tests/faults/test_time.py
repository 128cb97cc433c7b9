"""No decision takes longer than its deadline and 50 ms, whatever Redis does; then the failure policy answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.stores.redis.failures import MAX_CONSECUTIVE_FAILURES
from tests.faults.conftest import BOUND, KeyedCaller, used
from tests.proxy import Mode, Proxy
from tests.servers import RedisServer, free_port, slack, wait_until

pytestmark = pytest.mark.usefixtures("servers")

Make = Callable[..., KeyedCaller]

ALLOW, DENY, LOCAL = (
    Rule(policy, "100/h", algorithm="fixed_window", on_store_failure=policy) for policy in ("allow", "deny", "local")
)
LEASE = Rule("cap", limit=50, algorithm="concurrency", on_store_failure="allow")


def fail_until_open(call: KeyedCaller) -> int:
    for number in range(1, 4 * MAX_CONSECUTIVE_FAILURES):
        assert call().degraded
        if call.store.breaker.is_open:
            return number
    pytest.fail("the breaker stays closed")


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F03", "R16")
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_redis_hangs(warm: bool, server: RedisServer, caller: Make, figure: Any) -> None:
    call = caller(server.url, ALLOW, LEASE)
    if warm:
        assert not call.surely().degraded
        call.slowest = 0.0
    server.pause()
    assert [call().degraded for _ in range(3)] == [True] * 3
    server.resume()
    figure("longest call", call.slowest * 1000, "ms")
    assert call.slowest <= BOUND
    wait_until(lambda: not call().degraded)


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("swallow_reply", marks=pytest.mark.row("F04")),
        pytest.param("delay", marks=pytest.mark.row("F07")),
        pytest.param("trickle", marks=pytest.mark.row("F08")),
        *("dead", "refuse", "swallow_and_close"),
    ],
)
def test_replies_are_lost_or_late(mode: Mode, proxy: Proxy, caller: Make, figure: Any) -> None:
    call = caller(proxy.url, LOCAL)
    assert call.surely().remaining == 99
    call.slowest = 0.0
    proxy.set(mode, 2.0)
    assert [call().degraded for _ in range(3)] == [True] * 3
    figure("longest call", call.slowest * 1000, "ms")
    assert call.slowest <= BOUND
    proxy.set("pass")
    wait_until(lambda: not call("peek").degraded)
    if mode == "refuse":
        assert call.surely().remaining == 95, "what passed meanwhile is charged"


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F01")
def test_redis_was_never_there(caller: Make, figure: Any) -> None:
    call = caller(f"redis://127.0.0.1:{free_port()}/0", LOCAL)
    call.store.processes.live_count = 4
    assert [call().allowed for _ in range(30)] == [True] * 25 + [False] * 5
    figure("longest call", call.slowest * 1000, "ms")
    assert call.slowest <= BOUND


@pytest.mark.row("F06")
def test_a_redis_within_the_deadline_is_waited_for(proxy: Proxy, caller: Make) -> None:
    call = caller(proxy.url, Rule("few", "10/h", algorithm="fixed_window"), deadline=5.0)
    call("peek")
    proxy.set("delay", 0.05)
    decisions = [call() for _ in range(12)]
    assert [decision.allowed for decision in decisions] == [True] * 10 + [False] * 2
    assert not any(decision.degraded for decision in decisions) and not call.store.breaker.is_open


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F02", "F03", "F07")
def test_the_breaker_closes_and_counting_goes_on(server: RedisServer, caller: Make, figure: Any) -> None:
    call = caller(server.url, DENY)
    assert call.surely().allowed
    server.pause()
    call.slowest = 0.0
    failed = fail_until_open(call)
    assert failed >= MAX_CONSECUTIVE_FAILURES and call.slowest <= BOUND
    server.resume()
    took = wait_until(lambda: not call("peek").degraded, timeout=slack(2.0))
    figure("decides again after", took, "s")
    # Commands that timed out lay in the server's socket: they may have been carried out, once each.
    assert 1 <= used(server, DENY) <= 1 + failed
    before = call.surely("peek").remaining
    assert before is not None and call.surely().remaining == before - 1


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F02")
def test_a_redis_that_died_and_came_back_is_found_again(server: RedisServer, caller: Make) -> None:
    call = caller(server.url, ALLOW)
    assert not call.surely().degraded
    call.slowest = 0.0
    server.kill()
    fail_until_open(call)
    assert call.slowest <= BOUND
    server.start()
    wait_until(lambda: not call("peek").degraded, timeout=slack(2.0))
    assert not call.surely().degraded
    assert used(server, ALLOW) == 1, "a new Redis counts from nothing"


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F10")
def test_a_silently_dropped_connection_costs_one_call(proxy: Proxy, caller: Make, figure: Any) -> None:
    call = caller(proxy.url, ALLOW)
    assert not call.surely().degraded
    call.slowest = 0.0
    proxy.silence()
    assert call().degraded
    figure("the call that finds out", call.slowest * 1000, "ms")
    assert call.slowest <= BOUND
    assert not call.surely().degraded


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.row("F09")
def test_reset_connections_cost_a_call_and_leave_nothing_open(proxy: Proxy, caller: Make, figure: Any) -> None:
    call = caller(proxy.url, ALLOW)
    assert not call.surely().degraded
    opened = open_files()
    failed = 0
    for _ in range(8):
        proxy.set("reset")
        failed += call.surely().degraded
        proxy.set("pass")
        failed += call.surely().degraded
    figure("calls that failed, of 8 connections that were reset,", failed)
    assert failed == 8
    wait_until(lambda: proxy.open_links == 1 and open_files() <= opened)
