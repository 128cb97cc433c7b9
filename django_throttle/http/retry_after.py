"""Seconds of Retry-After with a random share, so that refused clients do not retry at the same time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from django_throttle.conf import conf
from django_throttle.core.headers import delay_seconds

#: Limit of the random share, which could otherwise be days for a client that waits for the next month.
MAX_JITTER_SECONDS: Final = 60.0


def retry_seconds(retry_after: float | None, chance: Callable[[], float] = random.random) -> int | None:
    """Return Retry-After in whole seconds, or None for never. Add a random share of up to RETRY_JITTER and a minute."""
    max_share = min(conf().RETRY_JITTER, MAX_JITTER_SECONDS / retry_after) if retry_after else 0.0
    return delay_seconds(retry_after, max_share * chance())
