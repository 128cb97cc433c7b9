"""System checks: one number for each way in which the settings or the rules can be wrong.

E001–E006 are about the dictionary and its rules, E01x about texts and choices, E02x about numbers, E03x about
what must fit together; W00x are things that work but should be known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import Error as DatabaseFailure

from django_throttle.checks.fit import FIT_CHECKS
from django_throttle.checks.given import value_of, wrong
from django_throttle.checks.rules import RULE_CHECKS
from django_throttle.checks.values import VALUE_CHECKS
from django_throttle.rulebook import sources

SETTING_CHECKS: Final = (*VALUE_CHECKS, *RULE_CHECKS, *FIT_CHECKS)


@register("django_throttle")
def check_settings(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Everything in DJANGO_THROTTLE, without a look at the database or at Redis."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(given, Mapping):
        return [wrong("E001", f"DJANGO_THROTTLE is a dictionary, not {type(given).__name__}")]
    return [message for check in SETTING_CHECKS for message in check(given)]


@register(Tags.security, deploy=True)
def check_store(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Memory counts in each process for itself."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if settings.DEBUG or not isinstance(given, Mapping) or value_of(given, "STORE") != "memory":
        return []
    message = "each server process counts for itself, so a limit of 100 becomes 100 in every one of them"
    return [Warning(message, hint='Set DJANGO_THROTTLE["REDIS"].', id="django_throttle.W001")]


@register(Tags.database)
def check_rows(
    app_configs: Sequence[Any] | None, databases: Iterable[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """The rules in the database, only where the database may be asked."""
    if sources.alias() not in (databases or ()) or check_settings(None):
        return []
    try:
        faults = sources.from_database().faults
    except DatabaseFailure:
        return []  # not migrated yet
    hint = "Correct it in the admin; until then it is not in force."
    return [
        Warning(f"rule {name!r} in the database: {what}", hint=hint, id="django_throttle.W002")
        for name, what in faults.items()
    ]
