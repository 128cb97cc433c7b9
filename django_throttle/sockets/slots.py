"""Leases on their way back: nothing that happens to a socket's task keeps one, and nobody waits for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from django_throttle import limiter
from django_throttle.core import Lease
from django_throttle.sockets.background import spawn

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT: Final = 1.0


def give_back(leases: Iterable[Lease]) -> asyncio.Task[None]:
    """Release them in a task of its own, which no cancellation of the present one reaches."""
    return spawn(_release(tuple(leases)))


async def returned(release: asyncio.Task[None] | None) -> None:
    """Wait for that, for at most a second; then it finishes alone."""
    if release is not None and not release.done():
        await asyncio.wait({release}, timeout=RELEASE_TIMEOUT)


async def _release(leases: tuple[Lease, ...]) -> None:
    for lease in leases:
        try:
            await limiter.arelease(lease)
        except Exception as error:  # noqa: BLE001 - whatever it is, the lease runs out by itself
            logger.warning("a connection's lease was not released and runs out by itself: %s", error)
