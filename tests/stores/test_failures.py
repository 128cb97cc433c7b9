"""Every error that Redis or redis-py can raise has its cause, whichever way it reaches us."""

from __future__ import annotations

import socket
import ssl

import pytest
import redis.asyncio
from redis import exceptions as errors
from redis.connection import DefaultParser

from django_throttle.exceptions import Cause
from django_throttle.stores.failures import COUNTED, cause_of

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
