"""Every error that Redis or redis-py can raise has its cause, and the breaker opens and closes when it should."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio
from redis import exceptions as errors
from redis.connection import DefaultParser

from django_throttle.core import Rule
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.denials import Denials
from django_throttle.stores.failures import COUNTED, LONGEST_PAUSE, Breaker, cause_of
from tests.forks import holds_in_child
from tests.inside import lock_of

RULE = Rule("rule", "1000/hour")

RAISED: list[tuple[BaseException, Cause]] = [
    (errors.ConnectionError("Connection refused"), Cause.UNAVAILABLE),
    (errors.ConnectionError("Connection closed by server."), Cause.UNAVAILABLE),
    (errors.TimeoutError("Timeout reading from socket"), Cause.UNAVAILABLE),
    (redis.asyncio.sentinel.MasterNotFoundError("no master"), Cause.UNAVAILABLE),
    (TimeoutError("deadline passed"), Cause.UNAVAILABLE),
    (TimeoutError(), Cause.UNAVAILABLE),
    (socket.gaierror(-2, "Name or service not known"), Cause.UNAVAILABLE),
    (ssl.SSLError("handshake"), Cause.UNAVAILABLE),
    (OSError("no route"), Cause.UNAVAILABLE),
    (ConnectionResetError(), Cause.UNAVAILABLE),
    (errors.ConnectionError("No connection available."), Cause.POOL),
    (errors.ConnectionError("Too many connections"), Cause.POOL),
    (errors.AuthenticationError("Authentication required."), Cause.CONFIG),
    (errors.BusyLoadingError("loading"), Cause.SERVER_STATE),
    (errors.ReadOnlyError("replica"), Cause.SERVER_STATE),
    (TypeError("ours"), Cause.BUG),
    (RuntimeError("Event loop is closed"), Cause.BUG),
    (errors.DataError("ours"), Cause.BUG),
]

# As the server sends it, read by redis-py's own parser: it gives some a class and drops their first word.
ON_THE_WIRE = {
    "LOADING Redis is loading the dataset in memory": Cause.SERVER_STATE,
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": Cause.SERVER_STATE,
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist": Cause.SERVER_STATE,
    "NOREPLICAS Not enough good replicas to write.": Cause.SERVER_STATE,
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": Cause.SERVER_STATE,
    "CLUSTERDOWN The cluster is down": Cause.SERVER_STATE,
    "TRYAGAIN Multiple keys request during rehashing of slot": Cause.SERVER_STATE,
    "READONLY You can't write against a read only replica.": Cause.SERVER_STATE,
    "OOM command not allowed when used memory > 'maxmemory'.": Cause.SERVER_STATE,
    "ERR max number of clients reached": Cause.UNAVAILABLE,
    "NOAUTH Authentication required.": Cause.CONFIG,
    "WRONGPASS invalid username-password pair or user is disabled.": Cause.CONFIG,
    "ERR invalid password": Cause.CONFIG,
    "NOPERM this user has no permissions to run the 'evalsha' command": Cause.CONFIG,
    "NOPERM this user has no permissions to access one of the keys used as arguments": Cause.CONFIG,
    "CROSSSLOT Keys in request don't hash to the same slot": Cause.CONFIG,
    "MOVED 3999 127.0.0.1:6381": Cause.CONFIG,
    "ASK 3999 127.0.0.1:6381": Cause.CONFIG,
    "ERR unknown command 'EVALSHA', with args beginning with: ": Cause.CONFIG,
    "ERR unknown command `EVALSHA`, with args beginning with: ": Cause.CONFIG,
    "ERR user_script:1: attempt to compare nil with number script: f_1, on @user_script:1.": Cause.BUG,
    "ERR Error running script (call to f_1): @user_script:1: user_script:1: nope": Cause.BUG,
    "ERR value is not an integer or out of range": Cause.BUG,
    "ERR DB index is out of range": Cause.CONFIG,
    "WRONGTYPE Operation against a key holding the wrong kind of value": Cause.BUG,
    "": Cause.BUG,
}

# An error inside a script comes wrapped, and the wrapping differs between server versions.
IN_A_SCRIPT = {
    "OOM command not allowed when used memory > 'maxmemory'. script: f_1, on @user_script:5.": Cause.SERVER_STATE,
    "READONLY You can't write against a read only replica. script: f_1, on @user_script:5.": Cause.SERVER_STATE,
    "MISCONF Errors writing to the AOF file: No space left script: f_1, on @user_script:5.": Cause.SERVER_STATE,
    "NOREPLICAS Not enough good replicas to write. script: f_1, on @user_script:5.": Cause.SERVER_STATE,
    "ERR The user executing the script can't run this command or subcommand script: f_1, on @user_script:1.": (
        Cause.CONFIG
    ),
    "NOPERM this user has no permissions to run the 'time' command script: f_1, on @user_script:1.": Cause.CONFIG,
    "NOPERM ACL failure in script: User app has no permissions to run the 'time' command script: on @user_script:1.": (
        Cause.CONFIG
    ),
    # Valkey 9.1 has no code before it.
    "ACL failure in script: User app has no permissions to run the 'time' command script: on @user_script:1.": (
        Cause.CONFIG
    ),
    "ACL failure in script: No permissions to access a key script: on @user_script:1.": Cause.CONFIG,
    "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: The user executing the script can't run "
    "this command or subcommand": Cause.CONFIG,
    "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -NOREPLICAS Not enough good replicas to "
    "write.": Cause.SERVER_STATE,
    "ERR Error running script (call to f_1): @user_script:5: @user_script: 5: -OOM command not allowed when used "
    "memory > 'maxmemory'.": Cause.SERVER_STATE,
    "ERR Error running script (call to f_1): @user_script:5: @user_script: 5: -READONLY You can't write against a "
    "read only replica.": Cause.SERVER_STATE,
}


@pytest.mark.parametrize(("error", "cause"), RAISED, ids=lambda given: repr(given)[:60])
def test_of_an_exception(error: BaseException, cause: Cause) -> None:
    assert cause_of(error) is cause


@pytest.mark.parametrize(("line", "cause"), (ON_THE_WIRE | IN_A_SCRIPT).items(), ids=lambda given: str(given)[:60])
def test_of_a_reply(line: str, cause: Cause) -> None:
    error = DefaultParser.parse_error(line)
    assert cause_of(error) is cause, f"{type(error).__name__}: {error}"


def test_only_what_waiting_can_cure_opens_the_breaker() -> None:
    assert {Cause.UNAVAILABLE, Cause.SERVER_STATE} == COUNTED


@pytest.mark.row("F11")
def test_a_pool_without_a_free_connection_is_told_apart() -> None:
    full = redis.BlockingConnectionPool(1, 0.01, port=1)
    full.pool.get_nowait()
    with pytest.raises(errors.ConnectionError) as caught:
        full.get_connection()
    assert cause_of(caught.value) is Cause.POOL


class Seconds:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def breaker(seconds: Seconds) -> Breaker:
    return Breaker(clock=seconds, chance=lambda: 0.0)  # pauses of full length


def fail(breaker: Breaker, times: int) -> list[bool]:
    found = []
    for _ in range(times):
        assert breaker.admit() == 0.0
        found.append(breaker.failed())
    return found


def test_closed_it_admits_everything(breaker: Breaker) -> None:
    for _ in range(100):
        assert breaker.admit() == 0.0
        breaker.succeeded()
    assert not breaker.is_open


def test_the_success_that_closes_it_says_how_long_it_was_open(breaker: Breaker, seconds: Seconds) -> None:
    assert breaker.succeeded() == 0.0
    fail(breaker, 5)
    seconds.now += 30.0
    assert breaker.admit() == 0.0
    assert (breaker.succeeded(), breaker.succeeded()) == (30.0, 0.0)


def test_five_failures_in_a_row_open_it_and_are_told_once(breaker: Breaker) -> None:
    assert fail(breaker, 5) == [False, False, False, False, True]
    assert breaker.is_open and breaker.admit() == 1.0


def test_a_success_begins_the_row_again(breaker: Breaker) -> None:
    for _ in range(4):
        fail(breaker, 4)
        breaker.admit()
        breaker.succeeded()
    assert not breaker.is_open


def test_half_of_twenty_calls_in_ten_seconds_open_it(breaker: Breaker) -> None:
    for number in range(20):
        breaker.admit()
        if number % 2 == 0:
            breaker.failed()
        else:
            breaker.succeeded()
    assert not breaker.is_open, "ten of twenty, but the last one was good"
    fail(breaker, 1)
    assert breaker.is_open


def test_failures_that_are_ten_seconds_old_do_not_count(breaker: Breaker, seconds: Seconds) -> None:
    for number in range(60):
        breaker.admit()
        if number % 2 == 0:
            breaker.failed()
        else:
            breaker.succeeded()
        seconds.now += 1
    assert not breaker.is_open


@pytest.mark.row("F07")
def test_one_probe_at_a_time(breaker: Breaker, seconds: Seconds) -> None:
    fail(breaker, 5)
    seconds.now += 1.0
    assert breaker.admit() == 0.0
    assert all(breaker.admit() > 0 for _ in range(10)), "the probe is still out"
    breaker.succeeded()
    assert breaker.admit() == 0.0 and not breaker.is_open


@pytest.mark.row("F51")
def test_one_probe_of_many_threads(breaker: Breaker, seconds: Seconds) -> None:
    fail(breaker, 5)
    seconds.now += 1.0
    gate, admitted = threading.Barrier(16), []

    def ask() -> None:
        gate.wait()
        admitted.append(breaker.admit() == 0.0)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 1


def test_pauses_double_up_to_ten_seconds_and_begin_again_after_a_success(breaker: Breaker, seconds: Seconds) -> None:
    fail(breaker, 5)
    pauses = []
    for _ in range(6):
        pauses.append(wait := breaker.admit())
        seconds.now += wait
        fail(breaker, 1)
    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]
    seconds.now += LONGEST_PAUSE
    assert breaker.admit() == 0.0
    breaker.succeeded()
    fail(breaker, 5)
    assert breaker.admit() == 1.0


def test_pauses_are_shortened_at_random_by_half_at_most(seconds: Seconds) -> None:
    breaker = Breaker(clock=seconds, chance=lambda: 1.0)
    fail(breaker, 5)
    assert breaker.admit() == 0.5


def test_a_straggler_that_fails_late_does_not_lengthen_the_pause_for_ever(breaker: Breaker, seconds: Seconds) -> None:
    """Twenty calls are out when Redis hangs: all fail, five open the breaker, the rest come after that."""
    for _ in range(20):
        assert breaker.admit() == 0.0
    for _ in range(20):
        breaker.failed()
    assert breaker.admit() <= 1.0


def test_a_straggler_that_succeeds_late_closes_it(breaker: Breaker) -> None:
    breaker.admit()
    fail(breaker, 5)
    breaker.succeeded()
    assert not breaker.is_open


def test_where_a_replica_takes_over_it_asks_often_at_first(seconds: Seconds) -> None:
    breaker = Breaker(clock=seconds, chance=lambda: 0.0, fails_over=True)
    fail(breaker, 5)
    pauses = []
    for _ in range(27):
        pauses.append(breaker.admit())
        seconds.now += pauses[-1]
        fail(breaker, 1)
    assert pauses == [0.25] * 20 + [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_calls_that_waited_together_are_one_failure(breaker: Breaker, seconds: Seconds) -> None:
    """Twenty threads of a process that stood still for longer than the deadline."""
    for _ in range(20):
        breaker.admit()
    seconds.now += 0.3
    assert not any(breaker.failed(0.1) for _ in range(20))
    assert not breaker.is_open
    for _ in range(4):
        breaker.admit()
        seconds.now += 0.1
        opened = breaker.failed(0.1)
    assert opened, "each of these began after the one before had failed"


@pytest.fixture
def opened(seconds: Seconds) -> Breaker:
    """A breaker that may be probed in a second."""
    breaker = Breaker(clock=seconds, chance=lambda: 0.0)
    for _ in range(5):
        breaker.failed()
    return breaker


def test_a_probe_that_is_never_reported_is_followed_by_another_a_pause_later(opened: Breaker, seconds: Seconds) -> None:
    for _ in range(3):
        seconds.now += 1.0
        assert opened.admit() == 0.0
        seconds.now += 0.75
        assert opened.admit() == 0.25
        seconds.now -= 0.75
    opened.failed()
    assert opened.admit() == 2.0, "the pause is doubled once, for the one that was reported"


def test_an_abandoned_probe_lets_the_next_call_probe_at_once(opened: Breaker, seconds: Seconds) -> None:
    """A cancelled task or a full pool says nothing about the store."""
    seconds.now += 1.0
    for _ in range(5):
        assert opened.admit() == 0.0
        opened.inconclusive()
        assert opened.is_open
    assert opened.admit() == 0.0 and opened.admit() > 0
    opened.succeeded()
    assert not opened.is_open


def test_who_abandons_without_having_probed_changes_nothing(opened: Breaker) -> None:
    opened.inconclusive()
    assert opened.admit() == 1.0


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (errors.ConnectionError("Too many connections"), Cause.POOL),
        (errors.AuthenticationError("invalid username-password pair"), Cause.CONFIG),
        (errors.ResponseError("ERR user_script:1: attempt to index a nil value"), Cause.BUG),
    ],
    ids=lambda value: value.name if isinstance(value, Cause) else "",
)
def test_after_a_probe_that_fails_for_another_reason_the_next_call_is_one(
    error: Exception, cause: Cause, opened: Breaker, seconds: Seconds, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = RedisStore(redis_url, deadline=5.0)
    store.breaker = opened
    limiter, send = Limiter([RULE], store), store.transport.send
    seconds.now += 1.0
    assert cause_of(error) is cause

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(store.transport, "send", fail)
    assert limiter.acquire("user:1").degraded
    assert opened.is_open
    monkeypatch.setattr(store.transport, "send", send)
    assert not limiter.acquire("user:1").degraded
    assert not opened.is_open


def decide(store: MemoryStore) -> bool:
    return Limiter([RULE], store).acquire("user:1").allowed


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (MemoryStore, decide),
        (Denials, lambda denials: denials.clear() is None),
        (Breaker, lambda breaker: not breaker.failed()),
    ],
    ids=["memory", "denials", "breaker"],
)
def test_a_child_that_is_forked_while_a_lock_is_held_does_not_hang(
    make: Callable[[], Any], use: Callable[[Any], bool], servers: None
) -> None:
    owner = make()
    with lock_of(owner):  # a thread of the parent's has it, which the child does not
        assert holds_in_child(lambda: use(owner))


def test_a_probe_of_the_parent_s_does_not_keep_the_child_s_breaker_open(
    opened: Breaker, seconds: Seconds, servers: None
) -> None:
    seconds.now += 1.0
    assert opened.admit() == 0.0

    def probes() -> bool:
        seconds.now += 1.0
        return opened.admit() == 0.0

    with lock_of(opened):
        assert holds_in_child(probes)
