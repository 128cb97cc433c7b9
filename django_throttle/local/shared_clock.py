"""The clock for times that are the same in all processes: the store's, as far as this process knows it."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from django_throttle.runtime import LogThrottle

logger = logging.getLogger("django_throttle")

# Difference between the clocks of the store and of this host up to which the host's clock is used.
MAX_TRUSTED_SECONDS: Final = 1.0


class SharedClock:
    """The clock of this host, corrected by its difference from the store's clock if that is more than a second."""

    def __init__(self) -> None:
        self.offset = 0.0  #: seconds that the store is ahead; 0.0 if the clocks agree or the store's is unknown
        self._log_throttle = LogThrottle(seconds=86_400.0)

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return timezone.now().timestamp() + self.offset

    def learn(self, store_time: float) -> None:
        """Note the current time of the store's clock, in seconds since 1970."""
        offset = store_time - timezone.now().timestamp()
        self.offset = offset if abs(offset) > MAX_TRUSTED_SECONDS else 0.0
        if self.offset and self._log_throttle.try_acquire():
            direction = "behind" if offset > 0 else "ahead of"
            line = (
                "the clock of this host is %.1f s %s Redis': queue slots, promotions and ends of overrides go by Redis'"
            )
            logger.warning(line, abs(offset), direction)


shared_clock: Final = SharedClock()


def shared_now() -> datetime:
    """Return the time by which overrides end and candidates are promoted; aware or naive according to USE_TZ."""
    return timezone.now() + timedelta(seconds=shared_clock.offset)
