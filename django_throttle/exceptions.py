"""Every error this package raises, in one tree.

ThrottleError
├── InvalidRate       a rate text or number makes no sense
├── InvalidRule       a rule's options make no sense, alone or together
├── InvalidOverride   an override's options make no sense, alone or together
├── InvalidCost       a cost is not a whole number in range
├── InvalidIdent      an ident is empty, too long or not text, or a key function returned none
├── InvalidSetting    a DJANGO_THROTTLE setting makes no sense
├── StoreError        the store did not answer; ``cause`` says why
│   └── RepeatCommand      the store has learned something and will answer the same command now
└── Refused           a plain callable was refused; carries the decision
    └── PublishRefused  a publication was refused, and sent to nobody; also names the group
"""

from __future__ import annotations

from typing import Any

from django_throttle.core.decision import Decision
from django_throttle.core.exceptions import (
    Cause,
    InvalidCost,
    InvalidIdent,
    InvalidOverride,
    InvalidRate,
    InvalidRule,
    InvalidSetting,
    RepeatCommand,
    StoreError,
    ThrottleError,
)

__all__ = [
    "Cause",
    "InvalidCost",
    "InvalidIdent",
    "InvalidOverride",
    "InvalidRate",
    "InvalidRule",
    "InvalidSetting",
    "PublishRefused",
    "Refused",
    "RepeatCommand",
    "StoreError",
    "ThrottleError",
]


class Refused(ThrottleError):
    """The call was refused; ``decision`` says by which rule and for how long."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"refused by rule {decision.rule!r}")
        self.decision = decision

    def __reduce__(self) -> tuple[Any, ...]:
        """With its attributes, which are those of __init__ in its order, from a worker's process too."""
        return type(self), tuple(vars(self).values())


class PublishRefused(Refused):
    """What was to be published reached nobody; ``members`` is how large its group was, as far as was known."""

    def __init__(self, decision: Decision, group: str, members: int) -> None:
        super().__init__(decision)
        self.group, self.members = group, members
