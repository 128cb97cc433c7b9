"""Rate limit header fields: policies of rules, when to come back, and how much is left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from math import ceil
from typing import Final, NamedTuple
from urllib.parse import quote

from django_throttle.core.algorithms import CounterParams
from django_throttle.core.commands import Charges, RuleSet
from django_throttle.core.decision import OWN_FAULT_REASONS, Decision, Outcome, Reason
from django_throttle.core.key import KEY_KINDS
from django_throttle.core.plans import plan_name
from django_throttle.core.rate import Rate

# Proxies refuse responses with more than a few kilobytes of headers: policies with most left are not sent.
MAX_POLICIES: Final = 16
# Printable ASCII, which a String of RFC 9651 may contain; "%" begins an escape, "#" one of several rates of a rule.
PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "").replace("#", "")
# Refusals that are no quotas: an operator's blocks, and failures of the limiter.
HIDDEN: Final = frozenset((Reason.BLOCKED, *OWN_FAULT_REASONS))
MICROSECONDS: Final = 1_000_000


class Policy(NamedTuple):
    """The limit of one rule and rate: ``quota`` in ``window`` seconds (rounded up), or at once where that is None.

    ``more_after`` is the time in seconds until ``remaining`` grows: exact for fixed windows and buckets, an upper bound
    for sliding windows; None when the quota is unused, and for leases, whose end is unknown.
    """

    name: str
    quota: int
    remaining: int
    window: int | None
    more_after: int | None
    reset_after: float
    unit: str = "calls"
    plan: str = ""


def visible(decisions: Sequence[Decision], may_see: Callable[[str], bool]) -> tuple[Outcome, ...]:
    """The outcomes of a call that its client may see: the last one of each rule and rate.

    Leaves out shadow rules, an operator's blocks, budgets under idents that are not ``may_see``, and decisions made
    without the store. Empty where the call is refused because the store failed.
    """
    outcomes = {}
    for decision in decisions:
        if not decision.allowed and decision.unavailable:
            return ()
        for outcome in decision.outcomes if not decision.degraded else ():
            if not outcome.shadow and outcome.reason not in HIDDEN and may_see(outcome.ident):
                outcomes[outcome.rule, outcome.window] = outcome
    return tuple(outcomes.values())


def may_see(keys: Collection[str], is_known: Callable[[], bool], ident: str) -> bool:
    """Whether the client may see the budget of an ident: it is the client's own, or everybody's.

    ``keys`` are the dotted keys of TELL_KEYS. ``is_known`` returns whether the client is logged in; it may run a query.
    """
    who_sees = _who_sees(ident.partition(":")[0], tuple(keys))
    return who_sees == "always" or (who_sees == "known" and is_known())


@lru_cache(maxsize=1024)
def _who_sees(key: str, keys: tuple[str, ...]) -> str:
    """Whether header fields show budgets of a key: always, to "known" clients, or never."""
    if key in KEY_KINDS and key not in keys:
        return KEY_KINDS[key].in_headers
    parts = [part for part in key.split("+") if part not in keys]
    conditions = {KEY_KINDS[part].in_headers if part in KEY_KINDS else "never" for part in parts} - {"always"}
    return "always" if not conditions else "known" if conditions == {"known"} else "never"


def policies(outcomes: Sequence[Outcome]) -> tuple[Policy, ...]:
    """A policy for each outcome, in their order; of more than MAX_POLICIES those with least left."""
    every = tuple(map(_policy, outcomes, names(outcomes)))
    return every if len(every) <= MAX_POLICIES else tuple(sorted(every, key=_nearness)[:MAX_POLICIES])


def names(outcomes: Sequence[Outcome]) -> list[str]:
    """The policies' names: those of their rules in printable ASCII, all different.

    Of a rule with several rates each name has the window: ``api#min``, ``api#day``.
    """
    if len(outcomes) == 1:  # on the hot path
        return [_name(outcomes[0].rule, None)]
    return _names([(outcome.rule, outcome.window) for outcome in outcomes])


def _names(limits: Sequence[tuple[str, float | None]]) -> list[str]:
    rules = [rule for rule, _ in limits]
    several = len(set(rules)) < len(rules)
    return [_name(rule, window if several and rules.count(rule) > 1 else None) for rule, window in limits]


def tightest(policies: Iterable[Policy]) -> Policy:
    """The policy with least left; of several, the one whose ``more_after`` is longest."""
    return min(policies, key=_nearness)


def _nearness(policy: Policy) -> tuple[int, int]:
    return policy.remaining, -(policy.more_after or 0)


@lru_cache(maxsize=1024)
def _name(rule: str, window: float | None) -> str:
    name = quote(rule, safe=PLAIN, errors="surrogatepass")
    return name if window is None else f"{name}#{str(Rate(1, window)).partition('/')[2]}"


def _policy(outcome: Outcome, name: str) -> Policy:
    window = None if outcome.window is None else _window(outcome.params, outcome.limit, outcome.window)
    more = None if window is None or outcome.remaining >= outcome.limit else _more_after(outcome)
    return Policy(
        name, outcome.limit, outcome.remaining, window, more, outcome.reset_after, outcome.unit, _plan(outcome.plan_of)
    )


def _plan(plan_of: str) -> str:
    """What a client is told of its plan: a name, in printable ASCII."""
    return quote(plan_name(plan_of), safe=PLAIN, errors="surrogatepass") if plan_of else ""


@lru_cache(maxsize=1024)
def _window(params: CounterParams | None, limit: int, seconds: float) -> int:
    """Seconds in which the whole quota comes back; a bucket's burst may make them differ from the rate's."""
    return max(1, ceil(params.quota_seconds(limit, seconds) if params is not None else seconds))


def _more_after(outcome: Outcome) -> int | None:
    if not outcome.reset_after:
        return None
    until_full, params = round(outcome.reset_after * MICROSECONDS), outcome.params
    until_more = params.until_more(outcome.limit, outcome.remaining, until_full) if params is not None else until_full
    wait = until_more / MICROSECONDS
    if not outcome.allowed and outcome.retry_after is not None:
        wait = min(wait, outcome.retry_after)
    return max(1, ceil(wait))


class PlainFields:
    """The fields of drafts 08 to 11 for plain decisions under these rules, prepared but for the numbers.

    Of the rules, those at the places in ``shown``, at most MAX_POLICIES. The same texts as of their outcomes.
    """

    def __init__(self, rules: RuleSet, shown: tuple[int, ...]) -> None:
        limits = [rules.rules[place] for place in shown]
        quotas = [(rule, rule.params.limit - rule.tolerance) for rule in limits]
        texts = _names([(rule.name, rule.window) for rule in limits])
        windows = [_window(rule.params, quota, rule.window or 0) for rule, quota in quotas]
        parts = [
            (name, quota, window, rule.unit, _plan(rule.plan_of))
            for name, (rule, quota), window in zip(texts, quotas, windows, strict=True)
        ]
        self.policy = ", ".join([_quota(*part) for part in parts])
        rows = zip(shown, map(_text, texts), quotas, strict=True)
        self.rows = [
            (3 * place, f"{text};r=", quota, rule.tolerance, _until_more(rule.params))
            for place, text, (rule, quota) in rows
        ]

    def left(self, numbers: Sequence[float]) -> str:
        """RateLimit for a decision of answers with these numbers; ``policy`` is RateLimit-Policy."""
        parts = []
        for place, text, quota, tolerance, until_more in self.rows:
            left, reset = int(numbers[place + 1]), numbers[place + 2]
            if tolerance:
                left = max(0, left - tolerance)
            if left >= quota or not reset:
                parts.append(f"{text}{left}")
                continue
            if until_more is not None:
                reset = max(1, until_more(quota, left, int(reset)))
            retry = numbers[place]
            if retry and 0 < retry < reset:
                reset = retry
            parts.append(f"{text}{left};t={ceil(reset / MICROSECONDS)}")
        return ", ".join(parts)


def _until_more(params: CounterParams) -> Callable[[int, int, int], int] | None:
    """The plan's own; None of one that waits until all is there again."""
    return None if type(params).until_more is CounterParams.until_more else params.until_more


@lru_cache(maxsize=1024)
def _plain_fields(
    rules: RuleSet, kinds: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[PlainFields | None, PlainFields | None]:
    """``kinds`` are those of the idents of the rules; one where all have the same."""
    sees = [_who_sees(kind, keys) for kind in kinds] * (len(rules.rules) if len(kinds) == 1 else 1)

    def fields(*seen: str) -> PlainFields | None:
        shown = tuple([place for place, rule in enumerate(rules.rules) if sees[place] in seen and not rule.is_shadow])
        return PlainFields(rules, shown) if 0 < len(shown) <= MAX_POLICIES and not rules.has_leases else None

    known = fields("always", "known")
    return known, fields("always") if "known" in sees else known


def plain_fields(charges: Charges, keys: Sequence[str]) -> tuple[PlainFields | None, PlainFields | None]:
    """The fields of plain decisions of these charges, None where there are none, or too many.

    For clients who are logged in, and for others; the same object where that makes no difference. ``keys`` are those of
    ``may_see``.
    """
    kinds = tuple([ident.partition(":")[0] for ident in charges.idents])
    return _plain_fields(charges.rules, kinds[:1] if len(set(kinds)) == 1 else kinds, tuple(keys))


OFF: Final = "off"
SECONDS: Final = "seconds"
EPOCH: Final = "epoch"
X_VERSIONS: Final = (OFF, SECONDS, EPOCH)
# The drafts' quota units: of leases, and of rules that count something else than requests. What the drafts have no word
# for is called as in a rule.
CONCURRENT: Final = "concurrent-requests"
UNITS: Final = {"calls": "", "bytes": "content-bytes", "response_bytes": "content-bytes"}


def delay_seconds(retry_after: float | None, spread: float = 0.0) -> int | None:
    """Retry-After's whole seconds, rounded up and at least 1, so never early (RFC 9110, 10.2.3); None for never.

    ``spread`` is the share by which the wait is made longer, so that a crowd does not come back all at once.
    """
    # To the microsecond, which is what the store counts in: doubles would make 33.000000000000004 of 30 and a tenth.
    return None if retry_after is None else max(1, ceil(round(retry_after * (1 + spread), 6)))


def rate_limit(policies: Sequence[Policy], version: str) -> dict[str, str]:
    """The fields of a version of the IETF's draft-ietf-httpapi-ratelimit-headers; empty without policies."""
    return VERSIONS[version](policies) if policies else {}


def x_rate_limit(policies: Sequence[Policy], now: float = 0.0) -> dict[str, str]:
    """The X-RateLimit fields, which no standard defines, of the policy with least left.

    Reset is the time until the quota is full: in seconds, or, added to ``now``, in seconds since 1970.
    """
    if not policies:
        return {}
    policy = tightest(policies)
    fields = {"X-RateLimit-Limit": str(policy.quota), "X-RateLimit-Remaining": str(policy.remaining)}
    if policy.window is not None:
        fields["X-RateLimit-Reset"] = str(ceil(round(now + policy.reset_after, 6)))
    return fields


def _named(policies: Sequence[Policy]) -> dict[str, str]:
    """Two lists of structured fields (RFC 9651), in which each policy has its name."""
    quotas = [_quota(policy.name, policy.quota, policy.window, policy.unit, policy.plan) for policy in policies]
    return {"RateLimit-Policy": ", ".join(quotas), "RateLimit": ", ".join([_left(policy) for policy in policies])}


def _nearest(fields: Mapping[str, str], policies: Sequence[Policy]) -> dict[str, str]:
    """The fields of drafts 06 and 07, in which policies have no names and all have windows."""
    timed = [(policy, policy.window) for policy in policies if policy.window is not None]
    if not timed:
        return {}
    nearest = tightest([policy for policy, _ in timed])
    listed = ", ".join([f"{policy.quota};w={window}" for policy, window in timed])
    numbers = nearest.quota, nearest.remaining, nearest.more_after or nearest.window or 0
    return {"RateLimit-Policy": listed, **{name: text.format(*numbers) for name, text in fields.items()}}


@lru_cache(maxsize=1024)
def _quota(name: str, quota: int, window: int | None, unit: str, plan: str) -> str:
    quota_unit = CONCURRENT if window is None else UNITS.get(unit, unit)
    parameters = [f"qu={_text(quota_unit)}"] if quota_unit else []
    said = [f"plan={_text(plan)}"] if plan else []
    return ";".join([_text(name), f"q={quota}", *parameters, *([] if window is None else [f"w={window}"]), *said])


def _left(policy: Policy) -> str:
    more = "" if policy.more_after is None else f";t={policy.more_after}"
    return f"{_text(policy.name)};r={policy.remaining}{more}"


@lru_cache(maxsize=1024)
def _text(name: str) -> str:
    """A String of RFC 9651, 3.3.3, from printable ASCII."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


# By the drafts' numbers. Drafts 08 to 11 define the same fields, with a name for each policy.
VERSIONS: Final[dict[str, Callable[[Sequence[Policy]], dict[str, str]]]] = {
    "draft-11": _named,
    "draft-10": _named,
    "draft-09": _named,
    "draft-08": _named,
    "draft-07": partial(_nearest, {"RateLimit": "limit={}, remaining={}, reset={}"}),
    "draft-06": partial(_nearest, {"RateLimit-Limit": "{0}", "RateLimit-Remaining": "{1}", "RateLimit-Reset": "{2}"}),
    OFF: lambda policies: {},
}
NAMED: Final = frozenset(version for version, fields in VERSIONS.items() if fields is _named)
