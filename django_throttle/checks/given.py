"""What the checks have in common: a setting's value, and the message that it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.core.checks import CheckMessage, Error

from django_throttle.conf import Conf

DEFAULTS: Final = Conf()

Given = Mapping[str, Any]


def value_of(given: Given, name: str) -> Any:
    """What is given, or the default."""
    if name == "STORE" and "REDIS" in given:
        return given.get("STORE", "redis")
    return given.get(name, getattr(DEFAULTS, name))


def is_number(value: object, counts: bool) -> bool:
    """True for a number; a whole one where it counts something."""
    return isinstance(value, int if counts else (int, float)) and not isinstance(value, bool)


def wrong(number: str, message: str) -> CheckMessage:
    """An error of this number."""
    return Error(message, id=f"django_throttle.{number}")
