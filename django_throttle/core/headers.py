"""What a decision says in HTTP headers."""

from __future__ import annotations

from math import ceil


def delay_seconds(retry_after: float | None) -> int | None:
    """Retry-After's whole seconds, rounded up and at least 1, so never early (RFC 9110, 10.2.3); None for never."""
    return None if retry_after is None else max(1, ceil(retry_after))
