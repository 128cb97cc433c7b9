"""Retry-After: never too early, and spread at random, so that refused clients do not all return at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from django_throttle.conf import conf
from django_throttle.core.headers import delay_seconds

# Seconds: a share alone would be days for a client that waits for the next month.
MOST_JITTER: Final = 60.0
UNITS: Final = (("day", 86_400), ("hour", 3600), ("minute", 60))


def retry_seconds(retry_after: float | None, chance: Callable[[], float] = random.random) -> int | None:
    """Retry-After in whole seconds, longer by a random share up to RETRY_JITTER, a minute at most; None for never."""
    most = min(conf().RETRY_JITTER, MOST_JITTER / retry_after) if retry_after else 0.0
    return delay_seconds(retry_after, most * chance())


def in_words(seconds: int) -> str:
    """A wait for a person, rounded up: 45 seconds, 1 minute, 90 seconds, 2 minutes, 3 days."""
    # Rounded up to 1 or 2 units it would be far too long.
    fitting = (unit for unit in UNITS if seconds >= 3 * unit[1] or seconds % unit[1] == 0)
    name, size = next(fitting, ("second", 1))
    count = -(-seconds // size)
    return f"{count} {name}{'' if count == 1 else 's'}"
