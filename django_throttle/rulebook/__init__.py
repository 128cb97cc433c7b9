"""The rules in force: settings and database, merged into an immutable snapshot in each process."""

from django_throttle.rulebook import migrate_counts
from django_throttle.rulebook.current_rules import (
    acurrent,
    changed,
    current,
    learn_time,
    loaded,
    pin,
    poll,
    put_in_force,
    refresh,
    unconfirmed,
)  # fmt: skip
from django_throttle.rulebook.snapshot import Snapshot

__all__ = [
    "Snapshot", "acurrent", "changed", "current", "learn_time", "loaded", "migrate_counts", "pin", "poll",
    "put_in_force", "refresh", "unconfirmed",
]  # fmt: skip
