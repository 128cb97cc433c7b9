"""What a door says of its sockets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.sockets.asgi import Event
from django_throttle.sockets.codes import check_codes, code_of
from django_throttle.sockets.frames import Gap, continuity_payload, error_payload
from django_throttle.sockets.hooks import kind_of, told
from django_throttle.sockets.options import (
    check_cost,
    check_function,
    check_ladder,
    check_scope,
    check_seconds,
    check_word,
    seconds,
)
from django_throttle.sockets.refusal import REFUSALS, Refusal

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
