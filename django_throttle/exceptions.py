"""Every error this package raises, in one tree.

ThrottleError
├── InvalidRate       a rate text or number is invalid
├── InvalidRule       a rule's options are invalid, alone or together
├── InvalidOverride   an override's options are invalid, alone or together
├── InvalidCost       a cost is not a whole number in range
├── InvalidIdent      an ident is empty, too long, not text or of nobody, or `ident` of @throttle returned none
├── InvalidSetting    a DJANGO_THROTTLE setting is invalid
├── StoreError        the store did not answer; ``cause`` says why
│   └── RepeatCommand      the store has learned something and will answer the same command now
├── CallRefused       a call to somebody else's server had no turn in time; in ``django_throttle.contrib.httpx``
└── Refused           a plain callable was refused; carries the decision
    ├── PublishRefused  a publication was refused, and sent to nobody; also names the group
    └── PutOffTooOften  a task's run was put off as often as it may be; also names the task
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
    "Cause", "InvalidCost", "InvalidIdent", "InvalidOverride", "InvalidRate", "InvalidRule", "InvalidSetting",
    "PublishRefused", "PutOffTooOften", "Refused", "RepeatCommand", "StoreError", "ThrottleError",
]  # fmt: skip


DISTRIBUTION: Final = "django-throttle-rules"


@contextmanager
def needs_extra(extra: str, package: str) -> Iterator[None]:
    """Name the extra to install in the ImportError, if the package is missing in an import inside."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        hint = f'{package} is not installed: pip install "{DISTRIBUTION}[{extra}]"'
        raise ModuleNotFoundError(hint, name=error.name) from error


class Refused(ThrottleError):
    """The call was refused; ``decision`` has the rule and the time to wait.

    ``args`` are plain values, so that a JSON result backend can restore the error, with a text in place of the
    decision. A restored ``decision`` has only the name of the rule and ``retry_after``.
    """

    def __init__(self, decision: Decision | str, rule: str | None = None, retry_after: float | None = None) -> None:
        text = decision if isinstance(decision, str) else f"refused by rule {decision.rule!r}"
        restored = Decision(False, rule=rule, retry_after=retry_after)
        self.decision = restored if isinstance(decision, str) else decision
        super().__init__(text, self.decision.rule, self.decision.retry_after)

    def __str__(self) -> str:
        return str(self.args[0])


class PublishRefused(Refused):
    """A message was not published to its group; ``members`` is the last known size of the group."""

    def __init__(
        self,
        decision: Decision | str,
        group: str,
        members: int,
        rule: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(decision, rule, retry_after)
        self.args = self.args[0], group, members, *self.args[1:]
        self.group, self.members = group, members


class PutOffTooOften(Refused):
    """The run of a task was put off ``times`` times, and the rule still has no room for it."""

    def __init__(
        self, decision: Decision | str, task: str, times: int, rule: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(decision, rule, retry_after)
        text, *plain = self.args
        if isinstance(decision, Decision):
            text = f"{task} was put off {times} times, and rule {decision.rule!r} has no room: raise max_put_off"
        self.args = text, task, times, *plain
        self.task, self.times = task, times
