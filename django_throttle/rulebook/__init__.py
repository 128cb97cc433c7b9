"""The rules in force: settings and database, merged into an immutable snapshot in each process."""

from django_throttle.rulebook.in_force import acurrent, changed, current, pin, poll, present, refresh
from django_throttle.rulebook.snapshot import Snapshot

__all__ = ["Snapshot", "acurrent", "changed", "current", "pin", "poll", "present", "refresh"]
