"""Every error this package raises, in one tree.

ThrottleError
├── InvalidRate       a rate text or number makes no sense
├── InvalidRule       a rule's options make no sense, alone or together
├── InvalidOverride   an override's options make no sense, alone or together
├── InvalidCost       a cost is not a whole number in range
├── InvalidIdent      an ident is empty, too long or not text, or a key function returned none
├── InvalidSetting    a DJANGO_THROTTLE setting makes no sense
├── StoreError        the store did not answer; ``cause`` says why
│   └── AskAgain      the store has learned something and will answer the same command now
└── Refused           a plain callable was refused; carries the decision
    └── PublishRefused  a publication was refused, and sent to nobody; also names the group
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_throttle.core.decision import Decision


class ThrottleError(Exception):
    """The root of every error of this package."""


class InvalidRate(ThrottleError, ValueError):
    """A rate is written like 100/min, 5/10m or 1000/day."""


class InvalidRule(ThrottleError, ValueError):
    """A rule's options make no sense, alone or together; ``option`` names the one to mend, where one is."""

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class InvalidOverride(ThrottleError, ValueError):
    """An override's options make no sense, alone or together; ``option`` names the one to mend."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


class InvalidCost(ThrottleError, ValueError):
    """A cost is a whole number from 0 to the largest limit."""


class InvalidIdent(ThrottleError, ValueError):
    """An ident is text of 1 to 1024 characters."""


class InvalidSetting(ThrottleError, ValueError):
    """A setting in DJANGO_THROTTLE makes no sense."""


class Cause(StrEnum):
    """Why a store did not answer: the label of metrics and logs."""

    UNAVAILABLE = "unavailable"  # no connection, no answer in time
    SERVER_STATE = "server_state"  # it answered that it cannot serve now
    POOL = "pool"  # every connection of this process is in use
    BLOCKED = "blocked"  # this process: its event loop stood still
    CONFIG = "config"  # credentials, rights, wrong kind of server
    BUG = "bug"  # our script or our arguments
    BREAKER = "breaker"  # not asked: it failed a moment ago


class StoreError(ThrottleError):
    """The store did not answer; the rule's failure policy decides instead."""

    def __init__(self, cause: Cause, message: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(message or cause.value)
        self.cause = cause
        self.retry_after = retry_after


class AskAgain(StoreError):
    """The store has learned something and will answer the same command now."""

    def __init__(self, cause: Cause = Cause.BUG) -> None:
        super().__init__(cause, "asked once more in vain")


class Refused(ThrottleError):
    """The call was refused; ``decision`` says by which rule and for how long."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"refused by rule {decision.rule!r}")
        self.decision = decision

    def __reduce__(self) -> tuple[Any, ...]:
        """With the decision, from a worker's process too."""
        return type(self), (self.decision,)


class PublishRefused(Refused):
    """What was to be published reached nobody; ``members`` is how large its group was, as far as was known."""

    def __init__(self, decision: Decision, group: str, members: int) -> None:
        super().__init__(decision)
        self.group, self.members = group, members

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision, self.group, self.members)
