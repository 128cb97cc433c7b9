"""Errors of redis-py: the cause of each, and what to do about it."""

from __future__ import annotations

from typing import Final

from redis import exceptions as errors

from django_throttle.exceptions import Cause, StoreError

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
_CONFIG_SIGNS: Final = (
    "ACL failure",  # Valkey 9.1 of what a script may not
    "DB index is out of range",
    "The user executing the script can't run",
    "has no permissions to run",
    "No permissions to access",
    "cluster support disabled",
    "invalid password",
    "unknown command",
)
# A slot is moving, see cluster_map.py; a Cluster that is down says so in words to a script.
_STATE_SIGNS: Final = ("attempted to access a non local key", "while the cluster is down")
# asyncio.TimeoutError is TimeoutError, which is an OSError, as are gaierror and SSLError.
_UNAVAILABLE_ERRORS: Final = (errors.ConnectionError, errors.TimeoutError, OSError)

COUNTED: Final = frozenset({Cause.UNAVAILABLE, Cause.SERVER_STATE})


class LoopBlocked(TimeoutError):
    """Time ran out because the event loop stood still: nobody knows how Redis is."""


def cause_of(error: BaseException) -> Cause:
    """Why the store did not answer; only the causes in COUNTED open the breaker."""
    if isinstance(error, StoreError):
        return error.cause
    if _is_pool(error):
        return Cause.POOL
    for kinds, cause in _CAUSES:
        if isinstance(error, kinds):
            return cause
    return _by_first_word(str(error)) if isinstance(error, errors.ResponseError) else Cause.BUG


_CAUSES: Final = (
    (_SERVER_STATE_ERRORS, Cause.SERVER_STATE),
    (_CONFIG_ERRORS, Cause.CONFIG),
    ((LoopBlocked,), Cause.BLOCKED),
    (_UNAVAILABLE_ERRORS, Cause.UNAVAILABLE),
)


def waited(error: BaseException, seconds: float) -> float:
    """How long the call waited that failed so: all of its ``seconds`` where they ran out, else hardly."""
    return seconds if isinstance(error, (TimeoutError, errors.TimeoutError)) else 0.0


def _is_pool(error: BaseException) -> bool:
    return isinstance(error, errors.ConnectionError) and (
        type(error).__name__ == "MaxConnectionsError"
        or str(error) in ("No connection available.", "Too many connections")
    )


def _by_first_word(message: str) -> Cause:
    # Redis 6.2 wraps what a script's command answered: "Error running script (…): -READONLY …".
    message = message.rpartition(": -")[2]
    word = message.split(" ", 1)[0]
    if word in _SERVER_STATES or any(sign in message for sign in _STATE_SIGNS):
        return Cause.SERVER_STATE
    if word in _CONFIGS or any(sign in message for sign in _CONFIG_SIGNS):
        return Cause.CONFIG
    return Cause.UNAVAILABLE if "max number of clients reached" in message else Cause.BUG


def advice(error: BaseException) -> str:
    """What to do about an error of the wrong kind of address; empty for others."""
    text = str(error)
    if isinstance(error, (errors.AskError, errors.ClusterCrossSlotError)) or text.startswith(("MOVED ", "CROSSSLOT ")):
        return "; this server is part of a Redis Cluster: name it by a redis+cluster:// URL"
    return "; this server is no Redis Cluster: name it by a redis:// URL" if "cluster support disabled" in text else ""


def text_of(error: Exception) -> str:
    """The class of the error and its text: redis-py's repr names a category instead."""
    return f"{type(error).__name__}: {error}"
