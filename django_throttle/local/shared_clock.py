"""The time by which moments are told that hold for everybody: the store's, as far as this process knows it."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from django_throttle.runtime import LogThrottle

logger = logging.getLogger("django_throttle")

# Seconds by which the clocks of the store and of this host may differ before moments go by the store's.
TRUSTED: Final = 1.0


class SharedClock:
    """The clock of this host, corrected by how far it is from the store's where that is more than a second."""

    def __init__(self) -> None:
        self.offset = 0.0  # seconds that the store is ahead; 0.0 where the clocks agree, or no store has told
        self._log_throttle = LogThrottle(seconds=86_400.0)

    def now(self) -> float:
        """Return the moment in epoch seconds."""
        return timezone.now().timestamp() + self.offset

    def learn(self, there: float) -> None:
        """Note what the store's clock has just said, in epoch seconds."""
        offset = there - timezone.now().timestamp()
        self.offset = offset if abs(offset) > TRUSTED else 0.0
        if self.offset and self._log_throttle.due():
            way = "behind" if offset > 0 else "ahead of"
            line = "the clock of this host is %.1f s %s Redis': turns, promotions and ends of overrides go by Redis'"
            logger.warning(line, abs(offset), way)


shared_clock: Final = SharedClock()


def shared_now() -> datetime:
    """Return the moment by which overrides end and candidates are promoted; aware as USE_TZ says."""
    return timezone.now() + timedelta(seconds=shared_clock.offset)
