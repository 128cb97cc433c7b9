"""Errors of the core and of stores. ``django_throttle.exceptions`` has the tree of all errors."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from django_throttle.core.texts import translatable


class ThrottleError(Exception):
    """Base class of the errors of this package."""


class InvalidRate(ThrottleError, ValueError):
    """A rate is invalid. Valid rates are written like 100/min, 5/10m or 1000/day."""


class InvalidRule(ThrottleError, ValueError):
    """The options of a rule are invalid, alone or together.

    ``option`` is the name of the option to correct; None if there is no single one. ``fault`` is the message without
    the name of the rule.
    """

    def __init__(self, fault: str, option: str | None = None, rule: object = None) -> None:
        super().__init__(fault if rule is None else translatable("rule {rule!r}: {fault}", rule=rule, fault=fault))
        self.fault, self.option = fault, option


class InvalidOverride(ThrottleError, ValueError):
    """The options of an override are invalid, alone or together. ``option`` is the name of the option to correct."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


class InvalidCost(ThrottleError, ValueError):
    """A cost is invalid. Valid costs are whole numbers from 0 on."""


class InvalidIdent(ThrottleError, ValueError):
    """An ident is invalid. Valid idents are texts of 1 to 1024 characters."""


class InvalidSetting(ThrottleError, ValueError):
    """A setting in DJANGO_THROTTLE is invalid."""


class Cause(StrEnum):
    """The cause of a store failure, used as a label of metrics and logs."""

    UNAVAILABLE = "unavailable"
    SERVER_STATE = "server_state"
    POOL = "pool"
    BLOCKED = "blocked"
    CONFIG = "config"
    BUG = "bug"  #: in a script or its arguments
    BREAKER = "breaker"


CAUSE_TEXTS: Final = {
    Cause.UNAVAILABLE: translatable("there is no connection, or no answer in time"),
    Cause.SERVER_STATE: translatable("the server cannot serve now"),
    Cause.POOL: translatable("every connection of this process is in use"),
    Cause.BLOCKED: translatable("the event loop of this process stood still"),
    Cause.CONFIG: translatable("the credentials, the rights or the kind of server are wrong"),
    Cause.BUG: translatable("the server refuses the script"),
    Cause.BREAKER: translatable("the server failed a moment ago and is not being retried yet (circuit breaker open)"),
}


class StoreError(ThrottleError):
    """The store did not answer. The rule's failure policy decides instead."""

    def __init__(self, cause: Cause, message: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(message or CAUSE_TEXTS[cause])
        self.cause = cause
        self.retry_after = retry_after


class RepeatCommand(StoreError):
    """The store can answer the same command now, so it is to be sent once more."""

    def __init__(self, cause: Cause = Cause.BUG) -> None:
        super().__init__(cause, "asked once more in vain")
