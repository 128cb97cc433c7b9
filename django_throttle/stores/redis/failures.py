"""Failures of Redis: the cause of each error of redis-py, and the circuit breaker that pauses calls after failures."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from redis import exceptions as errors

from django_throttle.exceptions import Cause, StoreError
from django_throttle.runtime import in_child

# First words of errors. redis-py raises some of these as plain ResponseErrors.
_SERVER_STATES: Final = frozenset(
    ("LOADING", "BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "OOM")
)
_CONFIGS: Final = frozenset(("NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT", "MOVED", "ASK"))
# "ACL failure" is of Valkey 9.1, for scripts.
_CONFIG_SIGNS: Final = (
    "ACL failure", "DB index is out of range", "The user executing the script can't run", "has no permissions to run",
    "No permissions to access", "cluster support disabled", "invalid password", "unknown command",
)  # fmt: skip
# Errors of scripts: a slot is moving, see cluster.py, or the Cluster is down.
_STATE_SIGNS: Final = ("attempted to access a non local key", "while the cluster is down")

COUNTED_CAUSES: Final = frozenset({Cause.UNAVAILABLE, Cause.SERVER_STATE})


class LoopBlocked(TimeoutError):
    """The deadline passed while the event loop was blocked, so the state of Redis is unknown."""


class LoopEnded(LoopBlocked):
    """The event loop ended before the reply, which is no failure of Redis or of the site."""

    def __init__(self) -> None:
        super().__init__("the event loop ends")


def cause_of(error: BaseException) -> Cause:
    """Return why the store did not answer. Only the causes in COUNTED_CAUSES open the breaker."""
    if isinstance(error, StoreError):
        return error.cause
    if _is_pool(error):
        return Cause.POOL
    for classes, cause in _CAUSES:
        if isinstance(error, classes):
            return cause
    return _by_first_word(str(error)) if isinstance(error, errors.ResponseError) else Cause.BUG


_CAUSES: Final[tuple[tuple[tuple[type[Exception], ...], Cause], ...]] = (
    ((errors.BusyLoadingError, errors.ClusterDownError, errors.MasterDownError), Cause.SERVER_STATE),
    ((errors.OutOfMemoryError, errors.ReadOnlyError, errors.TryAgainError), Cause.SERVER_STATE),
    ((errors.AskError, errors.ClusterCrossSlotError), Cause.CONFIG),  # a Cluster behind a client for one server
    ((errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError), Cause.CONFIG),
    ((LoopBlocked,), Cause.BLOCKED),
    # asyncio.TimeoutError is TimeoutError, which is an OSError, as are gaierror and SSLError.
    ((errors.ConnectionError, errors.TimeoutError, OSError), Cause.UNAVAILABLE),
)


def waited(error: BaseException, seconds: float) -> float:
    """Return how long the failed call waited: all of its ``seconds`` after a timeout, otherwise about 0."""
    return seconds if isinstance(error, (TimeoutError, errors.TimeoutError)) else 0.0


def _is_pool(error: BaseException) -> bool:
    return isinstance(error, errors.ConnectionError) and (
        type(error).__name__ == "MaxConnectionsError"
        or str(error) in ("No connection available.", "Too many connections")
    )


def _by_first_word(message: str) -> Cause:
    # Redis 6.2 wraps errors of commands in scripts: "Error running script (…): -READONLY …".
    message = message.rpartition(": -")[2]
    word = message.split(" ", 1)[0]
    if word in _SERVER_STATES or any(sign in message for sign in _STATE_SIGNS):
        return Cause.SERVER_STATE
    if word in _CONFIGS or any(sign in message for sign in _CONFIG_SIGNS):
        return Cause.CONFIG
    return Cause.UNAVAILABLE if "max number of clients reached" in message else Cause.BUG


def advice(error: BaseException) -> str:
    """Return a hint about an address of the wrong kind, or an empty text for other errors."""
    text = str(error)
    if isinstance(error, (errors.AskError, errors.ClusterCrossSlotError)) or text.startswith(("MOVED ", "CROSSSLOT ")):
        return "; this server is part of a Redis Cluster: name it by a redis+cluster:// URL"
    return "; this server is no Redis Cluster: name it by a redis:// URL" if "cluster support disabled" in text else ""


def text_of(error: Exception) -> str:
    """Return the class of an error and its text, as the repr of redis-py's errors names a category instead."""
    return f"{type(error).__name__}: {error}"


def errors_of(replies: Iterable[object]) -> list[Exception]:
    """Return the errors among replies."""
    return [reply for reply in replies if isinstance(reply, Exception)]


def raise_first(replies: Iterable[object]) -> None:
    """Raise the first error among replies as a StoreError."""
    for error in errors_of(replies):
        raise StoreError(cause_of(error), str(error)) from error


MAX_CONSECUTIVE_FAILURES: Final = 5
SAMPLE_SECONDS: Final = 10.0
MIN_SAMPLE_CALLS: Final = 20
FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 10.0
# Frequent probes at first, to notice soon that a replica has taken over.
FAILOVER_PAUSE_SECONDS: Final = 0.25
FAILOVER_PROBES: Final = 20


class Breaker:
    """Circuit breaker. A closed breaker admits every call, an open one admits a probe after each pause.

    It opens after 5 failures in a row, or if half of at least 20 calls in 10 s failed. Calls that waited at the same
    time count as one failure, because the process itself may have been stopped. Pauses double from 1 s to 10 s. Each
    is shortened by up to half at random, so that processes do not probe together. With ``fails_over`` the first 20
    pauses are of 0.25 s.
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
        self._first_pause = FAILOVER_PAUSE_SECONDS if fails_over else FIRST_PAUSE_SECONDS
        self._quick_probes = FAILOVER_PROBES if fails_over else 0
        self._probes = 0
        self._lock = Lock()
        self.is_calm = True  # no recent failure, so callers need not use the breaker
        self._consecutive_failures = 0
        self._failed_at = 0.0  # time of the last counted failure
        self._calls: deque[tuple[float, bool]] = deque(maxlen=1000)
        self._pause = 0.0
        self._next_probe_at = 0.0  # earliest time of the next probe
        self._opened_at = 0.0  # begin of the first pause
        self._is_probing = False
        in_child(self, type(self)._renew)

    @property
    def is_open(self) -> bool:
        return self._pause > 0

    @property
    def is_failing(self) -> bool:
        """True from the first failure to the next success."""
        return self._consecutive_failures > 0

    def admit(self) -> float:
        """Admit a call, and return 0.0; or return the seconds until the next probe.

        If a probe is never reported, because its sender has gone, another is admitted a pause later.
        """
        if not self._pause:
            return 0.0
        with self._lock:
            now = self._clock()
            if not self._pause:
                return 0.0
            if now < self._next_probe_at:
                return self._next_probe_at - now
            self._next_probe_at = now + self._pause
            self._is_probing = True
            return 0.0

    def succeeded(self) -> float:
        """Report a reply. If it closes the breaker, return for how many seconds that was open, otherwise 0.0."""
        if self.is_calm:
            return 0.0
        with self._lock:
            lasted = self._clock() - self._opened_at if self._pause else 0.0
            self._consecutive_failures = 0
            if self._pause or self._clock() - self._failed_at > SAMPLE_SECONDS:
                self._calls.clear()
            elif self._calls:
                self._note(failed=False)
            self._pause = 0.0
            self._is_probing = False
            self.is_calm = not self._calls
            return lasted

    def failed(self, waited: float = 0.0) -> bool:
        """Report a failure after so many seconds of waiting. Return True if it opens the breaker."""
        with self._lock:
            now, self.is_calm = self._clock(), False
            if self._pause:
                if self._is_probing:  # otherwise the call was sent before the breaker opened
                    self._probes += 1
                    self._shut_for(
                        self._pause if self._probes < self._quick_probes else min(self._pause * 2, MAX_PAUSE_SECONDS)
                    )
                return False
            if waited and now - waited < self._failed_at:
                return False
            self._failed_at = now
            self._consecutive_failures += 1
            self._note(failed=True)
            calls = self._calls
            half_failed = len(calls) >= MIN_SAMPLE_CALLS and 2 * sum(failed for _, failed in calls) >= len(calls)
            if self._consecutive_failures < MAX_CONSECUTIVE_FAILURES and not half_failed:
                return False
            self._probes = 0
            self._opened_at = self._clock()
            self._shut_for(self._first_pause)
            return True

    def inconclusive(self) -> None:
        """Report that a call ended without a result of the store, so that the next call may be the probe."""
        with self._lock:
            if self._is_probing:
                self._is_probing = False
                self._next_probe_at = self._clock()

    def _renew(self) -> None:
        self._lock = Lock()

    def _shut_for(self, pause: float) -> None:
        self._pause = pause
        self._next_probe_at = self._clock() + pause * (1 - self._chance() / 2)
        self._is_probing = False

    def _note(self, *, failed: bool) -> None:
        now = self._clock()
        self._calls.append((now, failed))
        while self._calls and self._calls[0][0] < now - SAMPLE_SECONDS:
            self._calls.popleft()


class ClosedBreaker(Breaker):
    """Breaker that never opens, for a Cluster, whose nodes have breakers of their own."""

    def succeeded(self) -> float:
        return 0.0

    def failed(self, waited: float = 0.0) -> bool:
        return False
