"""What decisions say in HTTP headers: when to come back, and how much is left by which policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil
from typing import Final

from django_throttle.core.policies import Policy, tightest

OFF: Final = "off"
SECONDS: Final = "seconds"
EPOCH: Final = "epoch"
X_VERSIONS: Final = (OFF, SECONDS, EPOCH)
# The drafts' words for what is held rather than spent, and for what is counted instead of requests.
CONCURRENT: Final = "concurrent-requests"
UNITS: Final = {"bytes": "content-bytes"}


def delay_seconds(retry_after: float | None, spread: float = 0.0) -> int | None:
    """Retry-After's whole seconds, rounded up and at least 1, so never early (RFC 9110, 10.2.3); None for never.

    ``spread`` is the share by which the wait is made longer, so that a crowd does not come back all at once.
    """
    # To the microsecond, which is what the store counts in: doubles would make 33.000000000000004 of 30 and a tenth.
    return None if retry_after is None else max(1, ceil(round(retry_after * (1 + spread), 6)))


def rate_limit(policies: Sequence[Policy], version: str) -> dict[str, str]:
    """The fields of a version of the IETF's draft-ietf-httpapi-ratelimit-headers; none where nothing is to be told."""
    return VERSIONS[version](policies) if policies else {}


def x_rate_limit(policies: Sequence[Policy], now: float = 0.0) -> dict[str, str]:
    """The fields of old custom, about the policy nearest its limit.

    Reset is when all is there again: in seconds, or, counted from ``now``, in seconds since 1970.
    """
    if not policies:
        return {}
    policy = tightest(policies)
    found = {"X-RateLimit-Limit": str(policy.quota), "X-RateLimit-Remaining": str(policy.remaining)}
    if policy.window is not None:
        found["X-RateLimit-Reset"] = str(ceil(round(now + policy.reset_after, 6)))
    return found


def _named(policies: Sequence[Policy]) -> dict[str, str]:
    """Two lists of structured fields (RFC 9651), in which each policy has its name."""
    return {
        "RateLimit-Policy": ", ".join(
            [_quota(policy.name, policy.quota, policy.window, policy.unit) for policy in policies]
        ),
        "RateLimit": ", ".join([_left(policy) for policy in policies]),
    }


def _in_one(policies: Sequence[Policy]) -> dict[str, str]:
    said = "limit={}, remaining={}, reset={}"
    return _nearest(policies, lambda *values: {"RateLimit": said.format(*values)})


def _in_three(policies: Sequence[Policy]) -> dict[str, str]:
    names = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
    return _nearest(policies, lambda *values: dict(zip(names, map(str, values), strict=True)))


def _nearest(policies: Sequence[Policy], said: Callable[[int, int, int], dict[str, str]]) -> dict[str, str]:
    """As before policies had names, and all of them had windows."""
    timed = [(policy, policy.window) for policy in policies if policy.window is not None]
    if not timed:
        return {}
    nearest = tightest([policy for policy, _ in timed])
    listed = ", ".join([f"{policy.quota};w={window}" for policy, window in timed])
    reset = nearest.more_after or nearest.window or 0
    return {"RateLimit-Policy": listed, **said(nearest.quota, nearest.remaining, reset)}


@lru_cache(maxsize=1024)
def _quota(name: str, quota: int, window: int | None, unit: str) -> str:
    said = CONCURRENT if window is None else UNITS.get(unit)
    parameters = [f"qu={_text(said)}"] if said else []
    return ";".join([_text(name), f"q={quota}", *parameters, *([] if window is None else [f"w={window}"])])


def _left(policy: Policy) -> str:
    more = "" if policy.more_after is None else f";t={policy.more_after}"
    return f"{_text(policy.name)};r={policy.remaining}{more}"


@lru_cache(maxsize=1024)
def _text(name: str) -> str:
    """A String of RFC 9651, 3.3.3, made of a name that is printable ASCII."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


# By the drafts' numbers: from 08 to 11 the same is sent, only its description has changed.
VERSIONS: Final[dict[str, Callable[[Sequence[Policy]], dict[str, str]]]] = {
    "draft-11": _named,
    "draft-10": _named,
    "draft-09": _named,
    "draft-08": _named,
    "draft-07": _in_one,
    "draft-06": _in_three,
    OFF: lambda policies: {},
}
