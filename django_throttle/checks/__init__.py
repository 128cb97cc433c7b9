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

from django_throttle.checks.configuration import (
    FIT_CHECKS,
    HOOK_CHECKS,
    IDENTITY_CHECKS,
    RULE_CHECKS,
    VALUE_CHECKS,
    shares,
    unsaid,
    value_of,
    wrong,
)
from django_throttle.checks.doors import (
    TOLD_CHECKS,
    inflight_messages,
    middleware_messages,
    rate_messages,
    schema_warnings,
)
from django_throttle.checks.servers import server_messages
from django_throttle.checks.sockets import delay_messages, origin_messages
from django_throttle.conf import no_dictionary
from django_throttle.rulebook import sources

SETTING_CHECKS: Final = (*VALUE_CHECKS, *RULE_CHECKS, *FIT_CHECKS, *HOOK_CHECKS, *IDENTITY_CHECKS, *TOLD_CHECKS)


@register("django_throttle")
def check_settings(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Everything in DJANGO_THROTTLE, without a look at the database or at Redis."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(given, Mapping):
        return [wrong("E001", no_dictionary(given))]
    return [message for check in SETTING_CHECKS for message in check(given)]


@register(Tags.security, deploy=True)
def check_store(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Memory counts in each process for itself."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(given, Mapping) or value_of(given, "STORE") != "memory":
        return []
    message = "each server process counts for itself, so a limit of 100 becomes 100 in every one of them"
    return [Warning(message, hint='Set DJANGO_THROTTLE["REDIS"].', id="django_throttle.W001")]


@register("django_throttle")
def check_schema(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """An OpenAPI schema that does not know of refusals, where there can be some."""
    return schema_warnings()


@register("django_throttle")
def check_middleware(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Where the middleware stands in Django's list."""
    return list(middleware_messages())


@register("django_throttle")
def check_rates(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """What REST framework's settings say to the throttles that take the place of its own."""
    return list(rate_messages())


@register("django_throttle")
def check_delays(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Messages that wait where a server reads on."""
    return list(delay_messages())


@register("django_throttle")
def check_inflight(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Rules of open sockets that must be meant for requests in flight."""
    return list(inflight_messages())


@register(Tags.security, deploy=True)
def check_origins(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Sockets that any site's pages can open."""
    return list(origin_messages())


@register(Tags.security, deploy=True)
def check_server(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """How Redis is set; the one check that asks it."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    return [] if settings.DEBUG or not isinstance(given, Mapping) else list(server_messages())


@register(Tags.security, deploy=True)
def check_shadow(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """A switch for an hour is easily forgotten."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(given, Mapping) or value_of(given, "SHADOW") is not True:
        return []
    hint = 'Set DJANGO_THROTTLE["SHADOW"] to False when the rules are to hold again.'
    return [Warning("SHADOW is on: rules only record, and nothing is refused", hint=hint, id="django_throttle.W030")]


@register(Tags.security, deploy=True)
def check_addresses(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Rules by address, and nobody has said whose addresses the server reports."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    return list(unsaid(given)) if isinstance(given, Mapping) else []


@register(Tags.security, deploy=True)
def check_shares(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Rules that each process goes by alone while Redis is away, and nobody has said how many there are."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    return list(shares(given)) if isinstance(given, Mapping) else []


@register(Tags.database)
def check_rows(
    app_configs: Sequence[Any] | None, databases: Iterable[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """The rules in the database, only where the database may be asked."""
    if sources.alias() not in (databases or ()) or check_settings(None):
        return []
    try:
        found = sources.from_database()
    except DatabaseFailure:
        return []  # not migrated yet
    hint = "Correct it in the admin; until then it is not in force."
    rules = [
        Warning(f"rule {name!r} in the database: {what}", hint=hint, id="django_throttle.W002")
        for name, what in found.faults.items()
    ]
    overrides = [
        Warning(f"override {number}: {what}", hint=hint, id="django_throttle.W065")
        for number, what in found.unfit.items()
    ]
    return [*rules, *overrides]
