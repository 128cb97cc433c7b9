"""Rate limit header fields: RateLimit-Policy and RateLimit of each IETF draft, X-RateLimit, and Retry-After."""

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

# Proxies refuse responses with more than a few kilobytes of headers. The policies with most remaining are left out.
MAX_POLICIES: Final = 16
# Printable ASCII, which a String of RFC 9651 may contain; "%" begins an escape, "#" one of several rates of a rule.
PLAIN_CHARACTERS: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "").replace("#", "")
# Reasons of refusals that have no quota: an operator's blocks, and failures of the limiter.
HIDDEN_REASONS: Final = frozenset((Reason.BLOCKED, *OWN_FAULT_REASONS))
MICROSECONDS: Final = 1_000_000


class Policy(NamedTuple):
    """The limit of a rule and rate, as header fields show it; times are seconds.

    ``more_after`` is exact for fixed windows and buckets, and an upper bound for sliding windows. It is None for an
    unused quota, and for leases, whose end is unknown.
    """

    name: str
    quota: int
    remaining: int
    window: int | None  #: rounded up; None for a quota held at once
    more_after: int | None  #: time until ``remaining`` grows
    reset_after: float
    unit: str = "calls"
    plan: str = ""


def visible(decisions: Sequence[Decision], may_see: Callable[[str], bool]) -> tuple[Outcome, ...]:
    """Return the outcomes of a call that its client may see: the last outcome of each rule and rate.

    Leave out shadow rules, an operator's blocks, idents for which ``may_see`` returns False, and decisions made without
    the store. Return an empty tuple if the call is refused because the limiter failed.
    """
    outcomes = {}
    for decision in decisions:
        if not decision.allowed and decision.unavailable:
            return ()
        for outcome in decision.outcomes if not decision.degraded else ():
            if not outcome.shadow and outcome.reason not in HIDDEN_REASONS and may_see(outcome.ident):
                outcomes[outcome.rule, outcome.window] = outcome
    return tuple(outcomes.values())


def may_see(keys: Collection[str], is_known: Callable[[], bool], ident: str) -> bool:
    """Return True if the client may see the budget of an ident: it is the client's own, or shared by everyone.

    ``keys`` are the dotted keys in the setting TELL_KEYS. ``is_known`` returns True if the client is logged in. It may
    run a query.
    """
    visibility = _visibility(ident.partition(":")[0], tuple(keys))
    return visibility == "always" or (visibility == "known" and is_known())


@lru_cache(maxsize=1024)
def _visibility(key: str, keys: tuple[str, ...]) -> str:
    """Return when header fields show budgets of a key: "always", to "known" (logged-in) clients, or "never"."""
    if key in KEY_KINDS and key not in keys:
        return KEY_KINDS[key].in_headers
    parts = [part for part in key.split("+") if part not in keys]
    conditions = {KEY_KINDS[part].in_headers if part in KEY_KINDS else "never" for part in parts} - {"always"}
    return "always" if not conditions else "known" if conditions == {"known"} else "never"


def policies(outcomes: Sequence[Outcome]) -> tuple[Policy, ...]:
    """Return a policy for each outcome in order; of more than MAX_POLICIES, those with least remaining."""
    all_policies = tuple(map(_policy, outcomes, policy_names(outcomes)))
    if len(all_policies) <= MAX_POLICIES:
        return all_policies
    return tuple(sorted(all_policies, key=_nearness)[:MAX_POLICIES])


def policy_names(outcomes: Sequence[Outcome]) -> list[str]:
    """Return distinct names of the policies: the names of the rules in printable ASCII.

    The names of a rule with several rates include the windows: ``api#min``, ``api#day``.
    """
    if len(outcomes) == 1:  # on the hot path
        return [_name(outcomes[0].rule, None)]
    return _names([(outcome.rule, outcome.window) for outcome in outcomes])


def _names(limits: Sequence[tuple[str, float | None]]) -> list[str]:
    rules = [rule for rule, _ in limits]
    has_duplicates = len(set(rules)) < len(rules)
    return [_name(rule, window if has_duplicates and rules.count(rule) > 1 else None) for rule, window in limits]


def tightest(policies: Iterable[Policy]) -> Policy:
    """Return the policy with least remaining; of several, the one with the longest ``more_after``."""
    return min(policies, key=_nearness)


def _nearness(policy: Policy) -> tuple[int, int]:
    return policy.remaining, -(policy.more_after or 0)


@lru_cache(maxsize=1024)
def _name(rule: str, window: float | None) -> str:
    name = quote(rule, safe=PLAIN_CHARACTERS, errors="surrogatepass")
    return name if window is None else f"{name}#{str(Rate(1, window)).partition('/')[2]}"


def _policy(outcome: Outcome, name: str) -> Policy:
    window = None if outcome.window is None else _window(outcome.params, outcome.limit, outcome.window)
    more_after = None if window is None or outcome.remaining >= outcome.limit else _more_after(outcome)
    return Policy(
        name,
        outcome.limit,
        outcome.remaining,
        window,
        more_after,
        outcome.reset_after,
        outcome.unit,
        _plan(outcome.plan_of),
    )


def _plan(plan_of: str) -> str:
    """Return the name of a plan in printable ASCII."""
    return quote(plan_name(plan_of), safe=PLAIN_CHARACTERS, errors="surrogatepass") if plan_of else ""


@lru_cache(maxsize=1024)
def _window(params: CounterParams | None, limit: int, seconds: float) -> int:
    """Return the seconds in which the whole quota comes back. They differ from the rate's for a bucket with a burst."""
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
    """The fields of drafts 08 to 11 for plain decisions under a rule set, prepared except for the numbers.

    ``shown`` are the indexes of the rules to show, at most MAX_POLICIES. The texts are the same as for outcomes.
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

    def rate_limit(self, numbers: Sequence[float]) -> str:
        """Return the field RateLimit for a decision with these ``numbers`` of answers."""
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
    """Return the method ``until_more`` of the parameters; None if it is the default, which returns the reset."""
    return None if type(params).until_more is CounterParams.until_more else params.until_more


@lru_cache(maxsize=1024)
def _plain_fields(
    rules: RuleSet, kinds: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[PlainFields | None, PlainFields | None]:
    """Return the fields; ``kinds`` are the key kinds of the idents, or a single kind of all."""
    visibilities = [_visibility(kind, keys) for kind in kinds] * (len(rules.rules) if len(kinds) == 1 else 1)

    def fields(*visible_to: str) -> PlainFields | None:
        shown = tuple(
            [
                place
                for place, rule in enumerate(rules.rules)
                if visibilities[place] in visible_to and not rule.is_shadow
            ]
        )
        return PlainFields(rules, shown) if 0 < len(shown) <= MAX_POLICIES and not rules.has_leases else None

    logged_in_fields = fields("always", "known")
    return logged_in_fields, fields("always") if "known" in visibilities else logged_in_fields


def plain_fields(charges: Charges, keys: Sequence[str]) -> tuple[PlainFields | None, PlainFields | None]:
    """Return the prepared fields for plain decisions, for logged-in clients and for others; equal ones are identical.

    Each is None if there are no policies to show, or too many. ``keys`` are as in ``may_see``.
    """
    kinds = tuple([ident.partition(":")[0] for ident in charges.idents])
    return _plain_fields(charges.rules, kinds[:1] if len(set(kinds)) == 1 else kinds, tuple(keys))


NEWEST: Final = "draft-11"  # drafts 08 to 10 have the same fields
OFF: Final = "off"
SECONDS: Final = "seconds"
EPOCH: Final = "epoch"
X_VERSIONS: Final = (OFF, SECONDS, EPOCH)
# Quota units of the drafts, for leases and for rules that count other units than requests. Units that the drafts do not
# define keep their names.
CONCURRENT_UNIT: Final = "concurrent-requests"
QUOTA_UNITS: Final = {"calls": "", "bytes": "content-bytes", "response_bytes": "content-bytes"}


def delay_seconds(retry_after: float | None, spread: float = 0.0) -> int | None:
    """Return the seconds of Retry-After, rounded up and at least 1, so never early (RFC 9110, 10.2.3).

    Return None if the call will never be allowed. ``spread`` is the share by which the wait is extended, so that
    clients do not return all at once.
    """
    # Rounded to microseconds, the unit of the store, because 30 * 1.1 is 33.000000000000004 in doubles.
    return None if retry_after is None else max(1, ceil(round(retry_after * (1 + spread), 6)))


def rate_limit(policies: Sequence[Policy], version: str) -> dict[str, str]:
    """Return the fields of a version of draft-ietf-httpapi-ratelimit-headers; empty without policies."""
    return HEADER_VERSIONS[version](policies) if policies else {}


def x_rate_limit(policies: Sequence[Policy], now: float = 0.0) -> dict[str, str]:
    """Return the X-RateLimit fields, which no standard defines, for the policy with least remaining.

    X-RateLimit-Reset is the time until the quota is full, in seconds; with ``now``, in seconds since 1970.
    """
    if not policies:
        return {}
    policy = tightest(policies)
    fields = {"X-RateLimit-Limit": str(policy.quota), "X-RateLimit-Remaining": str(policy.remaining)}
    if policy.window is not None:
        fields["X-RateLimit-Reset"] = str(ceil(round(now + policy.reset_after, 6)))
    return fields


def _named(policies: Sequence[Policy]) -> dict[str, str]:
    """Return the fields of drafts 08 to 11: lists of structured fields (RFC 9651) with a name for each policy."""
    quotas = [_quota(policy.name, policy.quota, policy.window, policy.unit, policy.plan) for policy in policies]
    return {
        "RateLimit-Policy": ", ".join(quotas),
        "RateLimit": ", ".join([_remaining_member(policy) for policy in policies]),
    }


def _nearest(fields: Mapping[str, str], policies: Sequence[Policy]) -> dict[str, str]:
    """Return the fields of drafts 06 and 07, in which policies have windows but no names."""
    windowed = [policy for policy in policies if policy.window is not None]
    if not windowed:
        return {}
    nearest = tightest(windowed)
    quotas = ", ".join([f"{policy.quota};w={policy.window}" for policy in windowed])
    numbers = nearest.quota, nearest.remaining, nearest.more_after or nearest.window or 0
    return {"RateLimit-Policy": quotas, **{name: text.format(*numbers) for name, text in fields.items()}}


@lru_cache(maxsize=1024)
def _quota(name: str, quota: int, window: int | None, unit: str, plan: str) -> str:
    quota_unit = CONCURRENT_UNIT if window is None else QUOTA_UNITS.get(unit, unit)
    parameters = [f"q={quota}"]
    parameters += [f"qu={_text(quota_unit)}"] if quota_unit else []
    parameters += [] if window is None else [f"w={window}"]
    parameters += [f"plan={_text(plan)}"] if plan else []
    return ";".join([_text(name), *parameters])


def _remaining_member(policy: Policy) -> str:
    more_after = "" if policy.more_after is None else f";t={policy.more_after}"
    return f"{_text(policy.name)};r={policy.remaining}{more_after}"


@lru_cache(maxsize=1024)
def _text(name: str) -> str:
    """Return printable ASCII as a String of RFC 9651, 3.3.3."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Functions that return the fields, by the number of the draft.
HEADER_VERSIONS: Final[dict[str, Callable[[Sequence[Policy]], dict[str, str]]]] = {
    NEWEST: _named,
    "draft-07": partial(_nearest, {"RateLimit": "limit={}, remaining={}, reset={}"}),
    "draft-06": partial(_nearest, {"RateLimit-Limit": "{0}", "RateLimit-Remaining": "{1}", "RateLimit-Reset": "{2}"}),
    OFF: lambda policies: {},
}
