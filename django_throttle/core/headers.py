"""Rate limit header fields: policies of rules, when to come back, and how much is left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple
from urllib.parse import quote

from django_throttle.core.algorithms import Plan
from django_throttle.core.decision import OURS, Decision, Outcome, Reason
from django_throttle.core.key import KEY_KINDS
from django_throttle.core.rate import Rate

# Proxies refuse responses whose headers have more than a few kilobytes: those with most left are not told.
MAX_POLICIES: Final = 16
# Printable ASCII, which is what a header's string may hold; "%" begins a code, and "#" the rate of a rule of several.
PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "").replace("#", "")
# No quotas: what an operator refuses, and what is our own failure.
UNTOLD: Final = frozenset((Reason.BLOCKED, *OURS))
MICROSECONDS: Final = 1_000_000


class Policy(NamedTuple):
    """``quota`` in any ``window`` seconds, or, where that is None, at once; seconds are rounded up.

    ``more_after`` is when more than ``remaining`` can be had: exact for windows that begin afresh and for buckets;
    at the latest then for sliding ones; None when nothing is gone, and of what is held, when nobody knows.
    """

    name: str
    quota: int
    remaining: int
    window: int | None
    more_after: int | None
    reset_after: float
    unit: str = "calls"


def told(decisions: Sequence[Decision], is_own: Callable[[str], bool]) -> tuple[Outcome, ...]:
    """What a client may be told of all decisions about its call: the last outcome of each rule and rate.

    Nothing of shadow rules, of an operator's blocks, and of budgets under idents that are not ``is_own``; nothing that
    one process decided without the store, and nothing at all where the failure of the store is the answer.
    """
    found = {}
    for decision in decisions:
        if not decision.allowed and decision.unavailable:
            return ()
        for outcome in decision.outcomes if not decision.degraded else ():
            if not outcome.shadow and outcome.reason not in UNTOLD and is_own(outcome.ident):
                found[outcome.rule, outcome.window] = outcome
    return tuple(found.values())


def is_own(keys: Collection[str], is_known: Callable[[], bool], ident: str) -> bool:
    """Whether an ident is the client's own, or nobody's: it may be told of its budget.

    ``keys`` are dotted keys whose idents are; ``is_known`` says whether the client is logged in, and may take a query.
    """
    key = ident.partition(":")[0]
    kind = KEY_KINDS.get(key)
    if kind is not None and key not in keys:
        return kind.told == "always" or (kind.told == "known" and is_known())
    parts = [part for part in key.split("+") if part not in keys]
    told = {KEY_KINDS[part].told if part in KEY_KINDS else "never" for part in parts} - {"always"}
    return not told or (told == {"known"} and is_known())


def policies(outcomes: Sequence[Outcome]) -> tuple[Policy, ...]:
    """A policy for each outcome; of very many, those nearest their limits."""
    found = tuple(map(_policy, outcomes, names(outcomes)))
    return found if len(found) <= MAX_POLICIES else tuple(sorted(found, key=_nearness)[:MAX_POLICIES])


def names(outcomes: Sequence[Outcome]) -> list[str]:
    """What the policies are called: as their rules, in printable ASCII, and no two alike.

    The rates of a rule that has several are told apart by their windows: ``api#min``, ``api#day``.
    """
    rules = [outcome.rule for outcome in outcomes]
    several = len(set(rules)) < len(rules)
    return [_name(one.rule, one.window if several and rules.count(one.rule) > 1 else None) for one in outcomes]


def tightest(found: Iterable[Policy]) -> Policy:
    """The policy that has least left; of several, the one where that lasts longest."""
    return min(found, key=_nearness)


def _nearness(policy: Policy) -> tuple[int, int]:
    return policy.remaining, -(policy.more_after or 0)


@lru_cache(maxsize=1024)
def _name(rule: str, window: float | None) -> str:
    name = quote(rule, safe=PLAIN, errors="surrogatepass")
    return name if window is None else f"{name}#{str(Rate(1, window)).partition('/')[2]}"


def _policy(outcome: Outcome, name: str) -> Policy:
    window = None if outcome.window is None else _window(outcome.plan, outcome.limit, outcome.window)
    more = None if window is None or outcome.remaining >= outcome.limit else _more_after(outcome)
    return Policy(name, outcome.limit, outcome.remaining, window, more, outcome.reset_after, outcome.unit)


@lru_cache(maxsize=1024)
def _window(plan: Plan | None, limit: int, seconds: float) -> int:
    """The time in which the whole quota comes back: a bucket's, whose size is not always what its rate says."""
    return max(1, ceil(plan.quota_seconds(limit, seconds) if plan is not None else seconds))


def _more_after(outcome: Outcome) -> int | None:
    if not outcome.reset_after:
        return None
    until_full, plan = round(outcome.reset_after * MICROSECONDS), outcome.plan
    until_more = plan.until_more(outcome.limit, outcome.remaining, until_full) if plan is not None else until_full
    wait = until_more / MICROSECONDS
    if not outcome.allowed and outcome.retry_after is not None:
        wait = min(wait, outcome.retry_after)
    return max(1, ceil(wait))


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
