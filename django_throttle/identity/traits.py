"""What a caller is, for rules and overrides that ask: anonymous, authenticated, staff, in a group, of a tenant."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from django.db import Error as DatabaseFailure
from django.db import connections

from django_throttle.identity.idents import text_of
from django_throttle.stores.complaints import Complaints

logger = logging.getLogger("django_throttle")

_GROUPS: Final = "_throttle_groups"
_complaints: Final = Complaints()


def has(trait: str, user: Any, tenant: Callable[[], object]) -> bool:
    """Whether a caller has a trait; ``user`` is None for nobody, ``tenant`` is asked only where it matters."""
    kind, _, name = trait.partition(":")
    if kind == "tenant":
        found = tenant()
        return found is not None and text_of(found) == name
    known = user is not None and bool(user.is_authenticated)
    if kind in ("anonymous", "authenticated"):
        return known == (kind == "authenticated")
    if kind == "staff":
        return known and bool(getattr(user, "is_staff", False))
    return known and kind == "group" and name in groups_of(user)


def groups_of(user: Any) -> frozenset[str]:
    """The names of a user's groups, asked for once and remembered on the user; none while the database fails.

    Raises SynchronousOnlyOperation on an event loop, where the database may not be asked.
    """
    known: frozenset[str] | None = getattr(user, _GROUPS, None)
    if known is None:
        known = _read(user)
        if known is not None:
            setattr(user, _GROUPS, known)
    return known or frozenset()


def _read(user: Any) -> frozenset[str] | None:
    if user.pk is None or not hasattr(user, "groups"):  # of a user model without permissions
        return frozenset()
    try:
        return _names(user)
    except DatabaseFailure:
        # A socket has no request at whose end a connection that the database has dropped would be noticed.
        _close_dropped_connections()
    try:
        return _names(user)
    except DatabaseFailure as error:
        if _complaints.due("groups"):
            logger.warning("the groups of users cannot be read, so that nobody seems to be in one: %s", error)
        return None


def _close_dropped_connections() -> None:
    """As Django does between requests; whoever is in a transaction has its connection still."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _names(user: Any) -> frozenset[str]:
    return frozenset(user.groups.values_list("name", flat=True))
