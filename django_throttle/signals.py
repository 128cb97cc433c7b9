"""What happened, for whoever wants to know."""

from __future__ import annotations

from django.dispatch import Signal

# Sent when a call was refused; arguments: ``facts`` and ``decision``.
throttled = Signal()

# Sent when a rule of action "shadow" would have refused a call; arguments: ``facts`` and ``decision``.
shadowed = Signal()

# Sent in each process when other rules are in force there; arguments: ``old`` (a Snapshot or None) and ``new``.
rules_changed = Signal()
