"""Which fields of a response say where its client stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.headers import EPOCH, OFF, rate_limit, x_rate_limit
from django_throttle.core.policies import Policy, policies, told
from django_throttle.core.settled import settled

# Kinds of idents that whoever sends the request has shown to be its own, or that belong to nobody.
PUBLIC: Final = frozenset(("ip", "session", "api_key", "user_or_ip", "everyone"))
# Those that only somebody who is logged in can have.
PERSONAL: Final = frozenset(("user", "tenant"))


def fields(decisions: Sequence[Decision], is_known: Callable[[], bool], status: int = HTTPStatus.OK) -> dict[str, str]:
    """RateLimit, RateLimit-Policy and X-RateLimit-*, as the settings ask for, from the decisions that were made.

    ``is_known`` says whether the client is logged in; only asked where it makes a difference, as it may take a query.
    ``status`` is the answer's, by which some rules count.

    A client is told of its own budgets only: by its address, its session, the key or the account that it has proved
    to hold. Under what it merely says, as the name in a login form, there may be somebody else.
    """
    settings = conf()
    if settings.RATELIMIT_HEADERS == settings.X_RATELIMIT_HEADERS == OFF:
        return {}
    final = [settled(decision, status) if decision.receipt else decision for decision in decisions]
    found = policies(told(final, lambda ident: _is_own(ident, is_known)))
    said = rate_limit(found, settings.RATELIMIT_HEADERS)
    return said if settings.X_RATELIMIT_HEADERS == OFF else said | _by_custom(found, settings.X_RATELIMIT_HEADERS)


def _is_own(ident: str, is_known: Callable[[], bool]) -> bool:
    key = ident.partition(":")[0]
    if key in PUBLIC:
        return True
    if key in PERSONAL and key not in conf().TELL_KEYS:
        return is_known()
    kinds = set(key.split("+")).difference(PUBLIC, conf().TELL_KEYS)
    return not kinds or (kinds <= PERSONAL and is_known())


def _by_custom(found: Sequence[Policy], version: str) -> dict[str, str]:
    return x_rate_limit(found, timezone.now().timestamp() if version == EPOCH else 0.0)
