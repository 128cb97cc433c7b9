"""Settings of a WebSocket door: what a door says of its sockets, hooks of the site, and escalation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from inspect import iscoroutine
from time import monotonic
from typing import Any, Final, TypeVar

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.log_throttling import Complaints
from django_throttle.sockets.frames import REFUSALS, Event, Gap, Refusal, continuity_payload, encoded, error_payload
from django_throttle.sockets.options import (
    check_codes,
    check_cost,
    check_function,
    check_ladder,
    check_scope,
    check_seconds,
    check_word,
    code_of,
    seconds,
)

logger = logging.getLogger("django_throttle")

T = TypeVar("T")

_complaints: Final = Complaints()


def told(own: Callable[[T], object], standard: Callable[[T], object], subject: T) -> str | bytes:
    """What a client is told of this, encoded: what the site says, or what is said as a rule where that is nothing."""
    try:
        payload = own(subject)
        if iscoroutine(payload):
            payload.close()  # nobody will ever wait for it
            raise TypeError("it is asynchronous: it must say at once what is to be told")
        return encoded(payload)
    except Exception as error:  # noqa: BLE001 - it may raise anything
        complain(own, error, "what it says cannot be sent, and the standard frame goes instead")
        return encoded(standard(subject))


def kind_of(own: Callable[[Event], Hashable | None], message: Event) -> Hashable | None:
    """Of which kind a frame is."""
    try:
        kind = own(message)
        hash(kind)
    except Exception as error:  # noqa: BLE001 - as above
        complain(own, error, "the frame is taken to be of no kind")
        return None
    return kind


def complain(own: object, error: Exception, so: str) -> None:
    """Log what a function of the site's has raised, at most once a minute for each."""
    name = getattr(own, "__qualname__", None) or repr(own)
    if _complaints.due(name):
        logger.error("%s failed: %s", name, so, exc_info=error)


# What is done about a refused frame, the mildest first.
LADDER: Final = ("drop", "error", "delay", "close")
ON_RULE_CHANGE: Final = ("ignore", "warn", "close")


def cost_one(message: Event) -> int:
    """Every frame costs 1."""
    return 1


def no_kind(message: Event) -> Hashable | None:
    """No frame is overtaken by another."""
    return None


@dataclass(frozen=True, slots=True)
class Terms:
    """The scope whose rules apply, what a client is told, what is done about refused frames, and for how long.

    ``ladder`` has, for what is done (LADDER), the refusal in a row from which on it is; 0 for never. None leaves a
    choice to the settings, as it does for ``idle_timeout`` and ``max_age``, in seconds; 0 for never.
    """

    scope: str
    refuse: str | None = None
    cost: Callable[[Event], int] = cost_one
    payload: Callable[[Decision], object] = error_payload
    coalesce: Callable[[Event], Hashable | None] = no_kind
    continuity: Callable[[Gap], object] = continuity_payload
    close_codes: Mapping[str, int] = field(default_factory=dict)
    ladder: Mapping[str, int] | None = None
    idle_timeout: float | timedelta | None = None
    max_age: float | timedelta | None = None
    on_rule_change: str = "warn"

    def check(self) -> None:
        """Raise InvalidSetting for what makes no sense here; the settings are not looked at."""
        check_scope(self.scope)
        if self.refuse is not None:
            check_word("refuse", self.refuse, REFUSALS)
        check_codes(self.close_codes)
        check_word("on_rule_change", self.on_rule_change, ON_RULE_CHANGE)
        check_ladder(self.ladder, LADDER)
        check_seconds("idle_timeout", self.idle_timeout)
        check_seconds("max_age", self.max_age)
        check_cost(self.cost)
        for what in ("payload", "coalesce", "continuity"):
            check_function(what, getattr(self, what))

    def refusal(self) -> Refusal:
        """How a handshake is refused; raises InvalidSetting for a way that does not exist."""
        way = self.refuse or conf().REFUSE_SOCKET
        check_word("REFUSE_SOCKET", way, REFUSALS)
        return REFUSALS[way]

    def said(self, decision: Decision) -> str | bytes:
        """The content of the frame that tells of a refusal: what the site says, if that can be sent."""
        return told(self.payload, error_payload, decision)

    def gap(self, gap: Gap) -> str | bytes:
        """The content of the frame that tells of a gap, likewise."""
        return told(self.continuity, continuity_payload, gap)

    def kind(self, message: Event) -> Hashable | None:
        """Of which kind an outgoing frame is; None where the site's own function fails."""
        return kind_of(self.coalesce, message)

    def close_code(self, word: str) -> int:
        """The code that a socket is closed with for this reason."""
        return code_of(word, self.close_codes)

    def measure(self, violations: int) -> str:
        """What is done about the last of so many refusals in a row: the hardest that is due."""
        ladder = {"error": 1, "close": conf().MAX_VIOLATIONS, **(self.ladder or {})}
        due = [word for word in LADDER if 0 < ladder.get(word, 0) <= violations]
        return due[-1] if due else "drop"

    def lifetimes(self) -> tuple[float, float]:
        """For how long a socket may be silent, and open; seconds, 0 for ever."""
        settings = conf()
        idle = settings.SOCKET_IDLE_TIMEOUT if self.idle_timeout is None else self.idle_timeout
        oldest = settings.SOCKET_MAX_AGE if self.max_age is None else self.max_age
        return seconds(idle), seconds(oldest)


# Error frames: so many at once, then one a second. Else the limiter would answer a flood with another.
AT_ONCE: Final = 5
# Until a frame that will never pass is spoken of again, in seconds.
NEVER: Final = 1.0


class Ladder:
    """The refusals in a row of one socket."""

    __slots__ = ("_due", "quiet_until", "violations")

    def __init__(self) -> None:
        self.violations = 0
        self.quiet_until = 0.0
        self._due = 0.0  # when all error frames that were sent are forgotten

    def allowed(self) -> None:
        """A frame has passed: the streak is over."""
        self.violations, self.quiet_until = 0, 0.0

    def climb(self, terms: Terms, decision: Decision) -> str:
        """What is to be done about this refusal; our own failure is no violation of the client's."""
        if decision.unavailable:
            return min(terms.measure(max(1, self.violations)), "error", key=_hardness)
        self.violations += 1
        return terms.measure(self.violations)

    def may_tell(self, decision: Decision) -> bool:
        """Whether the client is told of this refusal, which is then taken as told: once until a frame can pass."""
        now = monotonic()
        if now < self.quiet_until or self._due - now > AT_ONCE - 1:
            return False
        self.quiet_until = now + (decision.retry_after or NEVER)
        self._due = max(self._due, now) + 1.0
        return True


def _hardness(measure: str) -> int:
    return ("drop", "error", "delay", "close").index(measure)


# The attributes, and what they are called in Terms and by the middleware.
OPTIONS: Final[dict[str, str]] = {
    "throttle_scope": "scope",
    "refuse": "refuse",
    "throttle_cost": "cost",
    "throttle_error_payload": "payload",
    "throttle_coalesce": "coalesce",
    "throttle_continuity_payload": "continuity",
    "throttle_close_codes": "close_codes",
    "throttle_ladder": "ladder",
    "throttle_idle_timeout": "idle_timeout",
    "throttle_max_age": "max_age",
    "throttle_on_rule_change": "on_rule_change",
}
# What else somebody may take their names for.
_ALIKE: Final = {"throttle_refuse": "refuse"}
# As alike as a letter more or less makes them; a site may have attributes of its own that begin like ours.
_NEAR: Final = 0.8


def terms_of(consumer: Any) -> Terms:
    """The terms of a consumer."""
    said = {option: getattr(consumer, name) for name, option in OPTIONS.items()}
    return Terms(**{**said, "scope": said["scope"] or type(consumer).__name__})


def check_class(consumer: type) -> None:
    """Raise for a class that can never work: InvalidSetting for what it says, TypeError for what it is.

    What is a property is known only of its instances, and is checked when one opens a socket.
    """
    if hasattr(consumer, "http_request") and not hasattr(consumer, "websocket_connect"):
        raise TypeError(
            f"{consumer.__name__}: ThrottledConsumerMixin limits sockets, and this is a consumer of requests, which "
            "nothing here limits by itself: make it a view, or ask a Limiter in it"
        )
    said = {option: getattr(consumer, name) for name, option in OPTIONS.items()}
    fixed = {option: value for option, value in said.items() if callable(value) or not hasattr(value, "__get__")}
    Terms(**{**fixed, "scope": fixed.get("scope") or consumer.__name__}).check()


def misspelt(consumer: type) -> Iterator[tuple[str, str]]:
    """Attributes that a class itself has and that mean nothing, with the one that was meant, as far as it shows."""
    for name in vars(consumer):
        if name in OPTIONS or not name.startswith("throttle"):
            continue
        near = get_close_matches(name, (*OPTIONS, *_ALIKE), n=1, cutoff=_NEAR)
        if near:
            yield name, _ALIKE.get(near[0], near[0])
