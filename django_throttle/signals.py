"""Signals: refusals, shadows, warnings, store failures, edits, ended overrides, dropped messages, costly requests."""

from __future__ import annotations

from django.dispatch import Signal

#: Sent when a call was refused; arguments: ``call`` and ``decision``.
throttled = Signal()

#: Sent when a rule of action "shadow" would have refused a call; arguments: ``call`` and ``decision``.
shadowed = Signal()

#: Sent when use of a rule reaches a share of ``warn_at``, once per window and ident; arguments: ``call``, ``outcome``
#: (of that rule), ``share`` (0.8 is 80 %) and ``row``: the user, API key or tenant, None if it is not a row of a model.
quota_warning = Signal()

#: Sent for each decision that was made without the store, by the rules' failure policies; arguments: ``call`` and
#: ``decision``, which has the ``cause``.
store_failed = Signal()

#: Sent in each process when other rules are in force there; arguments: ``old`` (a Snapshot or None) and ``new``.
rules_changed = Signal()

#: Sent in each process once overrides have run out by their own time, in the thread that reads the rules; arguments:
#: ``overrides``, a tuple of core.Override.
overrides_ended = Signal()

#: Sent when a channel layer has dropped a message because queues were full; arguments: ``method`` of the layer ("send",
#: "group_send" or "receive") and ``queues``, the number of these queues.
layer_dropped = Signal()

#: Sent when a request used more than the setting LOG_COST_ABOVE allows; arguments: ``scope``, ``meter`` (a Meter) and
#: ``above``, the names of the measures that are too high.
costly = Signal()
