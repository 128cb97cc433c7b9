"""Signals: refusals, shadows, quota warnings, store failures and edited rules."""

from __future__ import annotations

from django.dispatch import Signal

# Sent when a call was refused; arguments: ``facts`` and ``decision``.
throttled = Signal()

# Sent when a rule of action "shadow" would have refused a call; arguments: ``facts`` and ``decision``.
shadowed = Signal()

# Sent when a call brought the use of a rule to a share that it warns at, once per window and ident; arguments:
# ``facts``, ``outcome`` (of that rule) and ``share`` (0.8 is 80 %).
quota_warning = Signal()

# Sent for each decision that was made without the store, by the rules' failure policies; arguments: ``facts`` and
# ``decision``, whose ``cause`` says why.
store_failed = Signal()

# Sent in each process when other rules are in force there; arguments: ``old`` (a Snapshot or None) and ``new``.
rules_changed = Signal()
