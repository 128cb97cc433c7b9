"""The rules in force: settings and database, merged into an immutable snapshot in each process."""

from django_throttle.rulebook import carry_over
from django_throttle.rulebook.in_force import (
    acurrent,
    changed,
    current,
    learn_time,
    pin,
    poll,
    present,
    put_in_force,
    refresh,
    unconfirmed,
)  # fmt: skip
from django_throttle.rulebook.snapshot import Snapshot

__all__ = [
    "Snapshot", "acurrent", "carry_over", "changed", "current", "learn_time", "pin", "poll", "present", "put_in_force",
    "refresh", "unconfirmed",
]  # fmt: skip
