"""Current rules: settings and database, merged into an immutable snapshot in each process."""

from django_throttle.rulebook import migrate_counts
from django_throttle.rulebook.current_rules import (
    acurrent,
    announce_edits,
    changed,
    current,
    current_limits,
    effective_since,
    is_unlimited,
    learn_time,
    loaded,
    pin,
    poll,
    refresh,
    unconfirmed,
)  # fmt: skip
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.rulebook.sources import RuleSource, SourceRules, add_source, from_mapping

__all__ = [
    "RuleSource", "Snapshot", "SourceRules", "acurrent", "add_source", "announce_edits", "changed", "current",
    "current_limits", "effective_since", "from_mapping", "is_unlimited", "learn_time", "loaded", "migrate_counts",
    "pin", "poll", "refresh", "unconfirmed",
]  # fmt: skip
