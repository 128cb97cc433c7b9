"""What each error of redis-py means for us: one table, tested row by row."""

from __future__ import annotations

from typing import Final

from redis import exceptions as errors

from django_throttle.exceptions import Cause

# The middle ones reach us as plain ResponseErrors, so their first word has to tell.
_SERVER_STATES: Final = frozenset(
    ("LOADING", "BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "OOM")
)
_CONFIGS: Final = frozenset(("NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT", "MOVED", "ASK"))
_SERVER_STATE_ERRORS: Final = (
    errors.BusyLoadingError,
    errors.ClusterDownError,
    errors.MasterDownError,
    errors.OutOfMemoryError,
    errors.ReadOnlyError,
    errors.TryAgainError,
)
_CONFIG_ERRORS: Final = (
    errors.AskError,  # and MovedError: a cluster behind a client that knows of none
    errors.AuthenticationError,
    errors.AuthorizationError,
    errors.ClusterCrossSlotError,
    errors.NoPermissionError,
)
_CONFIG_SIGNS: Final = ("The user executing the script can't run", "unknown command", "invalid password")
# asyncio.TimeoutError is TimeoutError, which is an OSError, as are gaierror and SSLError.
_UNAVAILABLE_ERRORS: Final = (errors.ConnectionError, errors.TimeoutError, OSError)

COUNTED: Final = frozenset({Cause.UNAVAILABLE, Cause.SERVER_STATE})


def cause_of(error: BaseException) -> Cause:
    """Why the store did not answer; only the causes in COUNTED open the breaker."""
    if isinstance(error, errors.ConnectionError) and _is_pool(error):
        return Cause.POOL
    if isinstance(error, _SERVER_STATE_ERRORS):
        return Cause.SERVER_STATE
    if isinstance(error, _CONFIG_ERRORS):
        return Cause.CONFIG
    if isinstance(error, _UNAVAILABLE_ERRORS):
        return Cause.UNAVAILABLE
    if isinstance(error, errors.ResponseError):
        return _by_first_word(str(error))
    return Cause.BUG


def _is_pool(error: errors.ConnectionError) -> bool:
    return type(error).__name__ == "MaxConnectionsError" or str(error) in (
        "No connection available.",
        "Too many connections",
    )


def _by_first_word(message: str) -> Cause:
    # Redis 6.2 wraps what a script's command answered: "Error running script (…): -READONLY …".
    message = message.rpartition(": -")[2]
    word = message.split(" ", 1)[0]
    if word in _SERVER_STATES:
        return Cause.SERVER_STATE
    if word in _CONFIGS or any(sign in message for sign in _CONFIG_SIGNS):
        return Cause.CONFIG
    return Cause.UNAVAILABLE if "max number of clients reached" in message else Cause.BUG
