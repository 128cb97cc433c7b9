"""The seconds of Retry-After, with some by chance, so that refused clients do not come back together."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from django_throttle.conf import conf
from django_throttle.core.headers import delay_seconds

# Seconds: a share alone would be days for a client that waits for the next month.
MOST_JITTER: Final = 60.0


def retry_seconds(retry_after: float | None, chance: Callable[[], float] = random.random) -> int | None:
    """Retry-After in whole seconds, longer by a random share up to RETRY_JITTER, a minute at most; None for never."""
    most = min(conf().RETRY_JITTER, MOST_JITTER / retry_after) if retry_after else 0.0
    return delay_seconds(retry_after, most * chance())
