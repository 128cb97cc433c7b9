"""Failures of Redis: the cause of each error of redis-py, and the circuit breaker that asks no more for a while."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Final

from redis import exceptions as errors

from django_throttle.exceptions import Cause, StoreError
from django_throttle.runtime import in_child

# The middle ones reach us as plain ResponseErrors, so their first word has to tell.
_SERVER_STATES: Final = frozenset(
    ("LOADING", "BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "OOM")
)
_CONFIGS: Final = frozenset(("NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT", "MOVED", "ASK"))
# "ACL failure" is Valkey 9.1's, of what a script may not.
_CONFIG_SIGNS: Final = (
    "ACL failure", "DB index is out of range", "The user executing the script can't run", "has no permissions to run",
    "No permissions to access", "cluster support disabled", "invalid password", "unknown command",
)  # fmt: skip
# A slot is moving, see cluster.py; a Cluster that is down says so in words to a script.
_STATE_SIGNS: Final = ("attempted to access a non local key", "while the cluster is down")

COUNTED: Final = frozenset({Cause.UNAVAILABLE, Cause.SERVER_STATE})


class LoopBlocked(TimeoutError):
    """Time ran out because the event loop stood still: nobody knows how Redis is."""


class LoopEnded(LoopBlocked):
    """The event loop ends before a reply has come: that says nothing of Redis, nor of the site."""

    def __init__(self) -> None:
        super().__init__("the event loop ends")


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


_CAUSES: Final[tuple[tuple[tuple[type[Exception], ...], Cause], ...]] = (
    ((errors.BusyLoadingError, errors.ClusterDownError, errors.MasterDownError), Cause.SERVER_STATE),
    ((errors.OutOfMemoryError, errors.ReadOnlyError, errors.TryAgainError), Cause.SERVER_STATE),
    ((errors.AskError, errors.ClusterCrossSlotError), Cause.CONFIG),  # a cluster behind a client that knows of none
    ((errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError), Cause.CONFIG),
    ((LoopBlocked,), Cause.BLOCKED),
    # asyncio.TimeoutError is TimeoutError, which is an OSError, as are gaierror and SSLError.
    ((errors.ConnectionError, errors.TimeoutError, OSError), Cause.UNAVAILABLE),
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


def errors_of(replies: Iterable[Any]) -> list[Exception]:
    """The errors among them."""
    return [reply for reply in replies if isinstance(reply, Exception)]


def raise_first(replies: Iterable[Any]) -> None:
    """Raise the first error among them, as a StoreError."""
    for error in errors_of(replies):
        raise StoreError(cause_of(error), str(error)) from error


FAILURES_IN_A_ROW: Final = 5
SAMPLE_SECONDS: Final = 10.0
SAMPLE_LEAST: Final = 20
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 10.0
# Where a replica takes over in a few seconds, asking often at first shows it soon.
FAILOVER_PAUSE: Final = 0.25
FAILOVER_PROBES: Final = 20


class Breaker:
    """Closed, it lets every call through; open, one probe at a time after each pause.

    Opens after 5 failures in a row, or when half of at least 20 calls in 10 s failed. Calls that wait at the same
    time and then fail count as one failure: a process that stands still is no proof against the store. Pauses are 1 s
    doubling to 10 s, each shortened by up to half at random so that processes do not probe together. With
    ``fails_over`` the first 20 are of 0.25 s.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        *,
        fails_over: bool = False,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._first = FAILOVER_PAUSE if fails_over else FIRST_PAUSE
        self._quick = FAILOVER_PROBES if fails_over else 0
        self._probes = 0
        self._lock = Lock()
        self.is_calm = True  # nothing has failed of late: there is nothing to ask it, nor to tell it
        self._in_a_row = 0
        self._failed_at = 0.0  # the last failure that was counted
        self._calls: deque[tuple[float, bool]] = deque(maxlen=1000)
        self._pause = 0.0
        self._opens_at = 0.0  # when the next probe may go
        self._opened = 0.0  # when the pauses began
        self._probing = False
        in_child(self, type(self)._renew)

    @property
    def is_open(self) -> bool:
        return self._pause > 0

    @property
    def is_failing(self) -> bool:
        """True from the first failure to the next success."""
        return self._in_a_row > 0

    def admit(self) -> float:
        """0.0 when the call may go; else the seconds until a probe may.

        A probe that is never reported, because whoever sent it is gone, is followed by another a pause later.
        """
        if not self._pause:
            return 0.0
        with self._lock:
            now = self._clock()
            if not self._pause:
                return 0.0
            if now < self._opens_at:
                return self._opens_at - now
            self._opens_at = now + self._pause
            self._probing = True
            return 0.0

    def succeeded(self) -> float:
        """Report a reply; returns for how many seconds the breaker was open when it has just closed it, else 0.0."""
        if self.is_calm:
            return 0.0
        with self._lock:
            lasted = self._clock() - self._opened if self._pause else 0.0
            self._in_a_row = 0
            if self._pause or self._clock() - self._failed_at > SAMPLE_SECONDS:
                self._calls.clear()
            elif self._calls:
                self._note(failed=False)
            self._pause = 0.0
            self._probing = False
            self.is_calm = not self._calls
            return lasted

    def failed(self, waited: float = 0.0) -> bool:
        """Report a failure after so many seconds of waiting; returns True when it has just opened the breaker."""
        with self._lock:
            now, self.is_calm = self._clock(), False
            if self._pause:
                if self._probing:  # else it left before the breaker opened
                    self._probes += 1
                    self._shut_for(self._pause if self._probes < self._quick else min(self._pause * 2, LONGEST_PAUSE))
                return False
            if waited and now - waited < self._failed_at:
                return False
            self._failed_at = now
            self._in_a_row += 1
            self._note(failed=True)
            calls = self._calls
            half_failed = len(calls) >= SAMPLE_LEAST and 2 * sum(failed for _, failed in calls) >= len(calls)
            if self._in_a_row < FAILURES_IN_A_ROW and not half_failed:
                return False
            self._probes = 0
            self._opened = self._clock()
            self._shut_for(self._first)
            return True

    def inconclusive(self) -> None:
        """Report that the call ended without telling anything about the store: the next one may be the probe."""
        with self._lock:
            if self._probing:
                self._probing = False
                self._opens_at = self._clock()

    def _renew(self) -> None:
        self._lock = Lock()

    def _shut_for(self, pause: float) -> None:
        self._pause = pause
        self._opens_at = self._clock() + pause * (1 - self._chance() / 2)
        self._probing = False

    def _note(self, *, failed: bool) -> None:
        now = self._clock()
        self._calls.append((now, failed))
        while self._calls and self._calls[0][0] < now - SAMPLE_SECONDS:
            self._calls.popleft()


class ClosedBreaker(Breaker):
    """A breaker that never opens: the nodes of a Cluster have one each."""

    def succeeded(self) -> float:
        return 0.0

    def failed(self, waited: float = 0.0) -> bool:
        return False
