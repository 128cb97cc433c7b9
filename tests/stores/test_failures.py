"""Every error that Redis or redis-py can raise has its cause, and the breaker opens and closes when it should."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis.asyncio
from redis import exceptions as errors
from redis.connection import DefaultParser

from django_throttle.exceptions import Cause
from django_throttle.stores.redis.failures import Breaker, advice, cause_of, waited

RAISED: list[tuple[BaseException, Cause]] = [
    (errors.ConnectionError("Connection refused"), Cause.UNAVAILABLE),
    (errors.TimeoutError("Timeout reading from socket"), Cause.UNAVAILABLE),
    (redis.asyncio.sentinel.MasterNotFoundError("no master"), Cause.UNAVAILABLE),
    (TimeoutError(), Cause.UNAVAILABLE), (socket.gaierror(-2, "Name or service not known"), Cause.UNAVAILABLE),
    (ssl.SSLError("handshake"), Cause.UNAVAILABLE), (OSError("no route"), Cause.UNAVAILABLE),
    (errors.ConnectionError("No connection available."), Cause.POOL),
    (errors.ConnectionError("Too many connections"), Cause.POOL),
    (errors.AuthenticationError("Authentication required."), Cause.CONFIG),
    (errors.BusyLoadingError("loading"), Cause.SERVER_STATE), (errors.ReadOnlyError("replica"), Cause.SERVER_STATE),
    (TypeError("ours"), Cause.BUG), (RuntimeError("Event loop is closed"), Cause.BUG),
]  # fmt: skip

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
    "ERR max number of clients reached": Cause.UNAVAILABLE, "NOAUTH Authentication required.": Cause.CONFIG,
    "WRONGPASS invalid username-password pair or user is disabled.": Cause.CONFIG,
    "ERR invalid password": Cause.CONFIG,
    "NOPERM this user has no permissions to run the 'evalsha' command": Cause.CONFIG,
    "CROSSSLOT Keys in request don't hash to the same slot": Cause.CONFIG, "MOVED 3999 127.0.0.1:6381": Cause.CONFIG,
    "ERR unknown command 'EVALSHA', with args beginning with: ": Cause.CONFIG,
    "ERR user_script:1: attempt to compare nil with number script: f_1, on @user_script:1.": Cause.BUG,
    "ERR value is not an integer or out of range": Cause.BUG, "ERR DB index is out of range": Cause.CONFIG,
    "WRONGTYPE Operation against a key holding the wrong kind of value": Cause.BUG, "": Cause.BUG,
}  # fmt: skip

# An error inside a script comes wrapped, and the wrapping differs between server versions.
OLD, NEW = (
    "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: ",
    " script: f_1, on @user_script:5.",
)
OOM = "OOM command not allowed when used memory > 'maxmemory'."
ACL = "ACL failure in script: User app has no permissions to run the 'time' command"
IN_A_SCRIPT = {
    f"{OOM}{NEW}": Cause.SERVER_STATE,
    f"NOREPLICAS Not enough good replicas to write.{NEW}": Cause.SERVER_STATE,
    f"ERR The user executing the script can't run this command or subcommand{NEW}": Cause.CONFIG,
    f"NOPERM this user has no permissions to run the 'time' command{NEW}": Cause.CONFIG,
    f"NOPERM {ACL} script: on @user_script:1.": Cause.CONFIG,
    f"{ACL} script: on @user_script:1.": Cause.CONFIG,  # Valkey 9.1 has no code before it
    f"{OLD}The user executing the script can't run this command or subcommand": Cause.CONFIG,
    f"{OLD}-{OOM}": Cause.SERVER_STATE,
    f"{OLD}-READONLY You can't write against a read only replica.": Cause.SERVER_STATE,
}


@pytest.mark.parametrize(("error", "cause"), RAISED, ids=lambda given: repr(given)[:60])
def test_of_an_exception(error: BaseException, cause: Cause) -> None:
    assert cause_of(error) is cause


@pytest.mark.parametrize(("line", "cause"), (ON_THE_WIRE | IN_A_SCRIPT).items(), ids=lambda given: str(given)[:60])
def test_of_a_reply(line: str, cause: Cause) -> None:
    error = DefaultParser.parse_error(line)
    assert cause_of(error) is cause, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((line, "; this server is part of a Redis Cluster") for line in ("MOVED 5 a:1", "ASK 5 a:1", "CROSSSLOT x")),
        ("ERR This instance has cluster support disabled", "; this server is no Redis Cluster"),
        ("ERR unknown command", ""),
    ],
)
def test_an_address_of_the_wrong_kind_is_named(line: str, said: str) -> None:
    error = {"ASK": errors.AskError}.get(line[:3], DefaultParser.parse_error)(line.removeprefix("ASK "))
    assert advice(error).partition(":")[0] == said


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


def test_five_failures_in_a_row_open_it_until_a_success(breaker: Breaker, seconds: Seconds) -> None:
    for _ in range(4):
        fail(breaker, 4)
        assert (breaker.admit(), breaker.succeeded()) == (0.0, 0.0)
    seconds.now += 11.0
    assert fail(breaker, 5) == [False, False, False, False, True], "told once"
    assert breaker.is_open and breaker.admit() == 1.0
    seconds.now += 30.0
    assert breaker.admit() == 0.0
    assert (breaker.succeeded(), breaker.succeeded()) == (30.0, 0.0), "for how long it was open"
    assert not breaker.is_open


@pytest.mark.parametrize(("step", "opens"), [(0.0, True), (1.0, False)], ids=["at once", "in a minute"])
def test_half_of_twenty_calls_in_ten_seconds_open_it(
    breaker: Breaker, seconds: Seconds, step: float, opens: bool
) -> None:
    for number in range(60 if step else 20):
        breaker.admit()
        breaker.succeeded() if number % 2 else breaker.failed()
        seconds.now += step
    assert not breaker.is_open, "the last one was good"
    fail(breaker, 1)
    assert breaker.is_open == opens


@pytest.mark.row("F07", "F51")
def test_one_probe_of_many_threads(breaker: Breaker, seconds: Seconds) -> None:
    fail(breaker, 5)
    seconds.now += 1.0
    gate = threading.Barrier(16)

    def ask(_: int) -> bool:
        gate.wait()
        return breaker.admit() == 0.0

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(ask, range(16))) == 1
    assert all(breaker.admit() > 0 for _ in range(10)), "the probe is still out"
    breaker.succeeded()
    assert breaker.admit() == 0.0 and not breaker.is_open


@pytest.mark.parametrize(
    ("options", "pauses"),
    [
        ({}, [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
        ({"chance": lambda: 1.0}, [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]),
        ({"fails_over": True}, [0.25] * 20 + [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
    ],
    ids=["of full length", "shortened by half at most", "where a replica takes over"],
)
def test_pauses_double_and_begin_again_after_a_success(
    options: dict[str, Any], pauses: list[float], seconds: Seconds
) -> None:
    breaker = Breaker(**{"clock": seconds, "chance": lambda: 0.0} | options)
    fail(breaker, 5)
    for pause in pauses:
        assert breaker.admit() == pause
        seconds.now += pause
        fail(breaker, 1)
    breaker.succeeded()
    fail(breaker, 5)
    assert breaker.admit() == pauses[0]


def test_a_straggler_lengthens_no_pause_and_may_close_it(breaker: Breaker) -> None:
    """Twenty calls are out when Redis hangs: five open the breaker, the rest come after that."""
    for _ in range(21):
        assert breaker.admit() == 0.0
    for _ in range(20):
        breaker.failed()
    assert breaker.admit() == 1.0
    breaker.succeeded()
    assert not breaker.is_open


def test_calls_that_waited_together_are_one_failure(breaker: Breaker, seconds: Seconds) -> None:
    for _ in range(20):
        breaker.admit()
    seconds.now += 0.3
    assert not any(breaker.failed(waited(error, 0.1)) for error in (TimeoutError(), errors.TimeoutError()) * 10)
    assert not breaker.is_open and waited(OSError("no route"), 0.1) == 0.0
    for _ in range(4):
        breaker.admit()
        seconds.now += 0.1
        opened = breaker.failed(0.1)
    assert opened, "each of these began after the one before had failed"


def test_a_probe_that_is_never_reported_is_followed_by_another_a_pause_later(
    breaker: Breaker, seconds: Seconds
) -> None:
    fail(breaker, 5)
    for _ in range(3):
        seconds.now += 1.0
        assert breaker.admit() == 0.0
    seconds.now += 0.75
    assert breaker.admit() == 0.25
    breaker.failed()
    assert breaker.admit() == 2.0, "the pause is doubled once, for the one that was reported"


def test_a_probe_that_says_nothing_of_the_store_is_followed_by_another_at_once(
    breaker: Breaker, seconds: Seconds
) -> None:
    fail(breaker, 5)
    seconds.now += 1.0
    assert breaker.admit() == 0.0
    seconds.now += 0.25
    breaker.inconclusive()
    assert (breaker.admit(), breaker.admit()) == (0.0, 1.0)
