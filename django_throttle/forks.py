"""What a forked child must have anew: whoever held a lock or used a socket stayed in the parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

_renewals: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def in_child(owner: Any, renew: Callable[[Any], None]) -> None:
    """Call ``renew(owner)`` first thing in each forked child, as long as the owner lives."""
    _renewals[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


os.register_at_fork(after_in_child=_renew_all)
