"""Which fields of a response say where its client stands."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from django.utils import timezone

from django_throttle.conf import Conf, conf
from django_throttle.core import Decision
from django_throttle.core.headers import EPOCH, OFF, rate_limit, x_rate_limit
from django_throttle.core.policies import Policy, policies, told
from django_throttle.core.settled import settled

# Kinds of idents that whoever sends the request has shown to be its own, or that belong to nobody.
PUBLIC: Final = frozenset(("ip", "session", "api_key", "user_or_ip", "everyone"))
# Those that only somebody who is logged in can have.
PERSONAL: Final = PUBLIC | {"user", "tenant"}


def fields(decisions: Sequence[Decision], *, anonymous: bool, status: int = HTTPStatus.OK) -> dict[str, str]:
    """RateLimit, RateLimit-Policy and X-RateLimit-*, as the settings ask for, from the decisions that were made.

    ``status`` is the answer's, by which some rules count.

    A client is told of its own budgets only: by its address, its session, the key or the account that it has proved
    to hold. Under what it merely says, as the name in a login form, there may be somebody else.
    """
    settings = conf()
    if settings.RATELIMIT_HEADERS == settings.X_RATELIMIT_HEADERS == OFF:
        return {}
    own = (PUBLIC if anonymous else PERSONAL).union(settings.TELL_KEYS)
    final = [settled(decision, status) for decision in decisions]
    found = policies(told(final, lambda ident: own.issuperset(kinds(ident))))
    return rate_limit(found, settings.RATELIMIT_HEADERS) | _by_custom(found, settings)


def kinds(ident: str) -> list[str]:
    """What an ident is made of: the parts of the key in front of its value."""
    return ident.partition(":")[0].split("+")


def _by_custom(found: Sequence[Policy], settings: Conf) -> dict[str, str]:
    if settings.X_RATELIMIT_HEADERS == OFF:
        return {}
    return x_rate_limit(found, timezone.now().timestamp() if settings.X_RATELIMIT_HEADERS == EPOCH else 0.0)
