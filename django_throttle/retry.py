"""When a refused client is asked to come back: never early, and a crowd not all at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from django_throttle.conf import conf
from django_throttle.core.headers import delay_seconds

# Enough to spread out a crowd; a share alone would put off by days whoever waits for the next month.
MOST_JITTER: Final = 60.0
UNITS: Final = (("day", 86_400), ("hour", 3600), ("minute", 60))


def retry_seconds(retry_after: float | None, chance: Callable[[], float] = random.random) -> int | None:
    """Retry-After's whole seconds, by chance up to RETRY_JITTER, and a minute, longer than must be; None for never."""
    most = min(conf().RETRY_JITTER, MOST_JITTER / retry_after) if retry_after else 0.0
    return delay_seconds(retry_after, most * chance())


def in_words(seconds: int) -> str:
    """A wait for a person, rounded up: 45 seconds, 1 minute, 90 seconds, 2 minutes, 3 days."""
    # In a unit of which it has few, rounding up would be far from the truth.
    fitting = (unit for unit in UNITS if seconds >= 3 * unit[1] or seconds % unit[1] == 0)
    name, size = next(fitting, ("second", 1))
    count = -(-seconds // size)
    return f"{count} {name}{'' if count == 1 else 's'}"
