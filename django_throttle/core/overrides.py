"""Overrides: an operator's exceptions to rules for a subject. Also candidates, the edited rules on trial."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import floor
from typing import Final

from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.algorithms.base import multiplied
from django_throttle.core.decision import Decision, Outcome, Reason, combine_outcomes
from django_throttle.core.exceptions import InvalidOverride, InvalidRule
from django_throttle.core.key import KEY_KINDS, ident_hash
from django_throttle.core.options import MAX_NAME_LENGTH, MAX_RATES, names
from django_throttle.core.rate import MAX_LIMIT, Rate
from django_throttle.core.rule import Rule, has_invalid_rates
from django_throttle.core.texts import gettext_noop, listed, text_of, translatable, with_commas


def subject_kinds() -> tuple[str, ...]:
    """Return the kinds of subjects, the most specific first: an override of a user precedes one of a group."""
    ranks = {kind.rank: name for name, kind in KEY_KINDS.items() if kind.rank}
    return (*(ranks[rank] for rank in sorted(ranks)), "group")


# In the order of precedence among overrides of subjects of the same kind.
EFFECTS: Final = ("block", "replace", "multiply", "exempt")
CANDIDATE_SUFFIX: Final = " (candidate)"
EVERY_RULE: Final = "*"
# Prefix of the rules of REST framework's throttles, which the rulebook does not list.
UNLISTED_PREFIX: Final = "drf-"
MAX_FACTOR: Final = 1_000_000
MAX_SUBJECT_LENGTH: Final = 300

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """An exception to rules for a subject. Raises InvalidOverride if a value is not valid.

    ``subject`` is ``user:42``, ``ip:203.0.113.9``, ``ip:203.0.113.0/24``, ``group:NAME``, ``tenant:NAME`` or
    ``api_key:HASH``, with the ident hash of a key.
    """

    subject: str
    effect: str  #: one of EFFECTS
    rules: tuple[str, ...] = (EVERY_RULE,)  #: names of rules; ``*`` stands for any text, ``?`` for a character
    factor: float | None = None  #: for the effect "multiply"
    rates: tuple[Rate, ...] = ()  #: for the effect "replace", and rules of rates
    limit: int | None = None  #: for the effect "replace", and concurrency rules
    until: float | None = None  #: end, in seconds since 1970
    number: int = 0  #: the higher number precedes among overrides that are otherwise alike
    # Computed once, because they are read on every call of a subject with overrides.
    network: Network | None = field(init=False, repr=False, compare=False)
    rank: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)  #: sort key of the precedence

    def __post_init__(self) -> None:
        for option, fault in _faults(self):
            raise InvalidOverride(fault, option)
        object.__setattr__(self, "network", network_of(self.subject))
        object.__setattr__(self, "rank", _rank(self))

    @property
    def kind(self) -> str:
        return self.subject.partition(":")[0]

    @property
    def names_every_rule(self) -> bool:
        return EVERY_RULE in self.rules

    def names(self, rule: str) -> bool:
        """Return True if ``rules`` match a rule's name. A candidate has the overrides of its live rule."""
        rule = rule.removesuffix(CANDIDATE_SUFFIX)
        return any(pattern in (EVERY_RULE, rule) or fnmatchcase(rule, pattern) for pattern in self.rules)

    def lasts(self, now: float) -> bool:
        """Return True if the override has not ended at ``now``, in seconds since 1970."""
        return self.until is None or now < self.until


def network_of(subject: str) -> Network | None:
    """Return the network of a subject "ip:…"; None for other subjects. Raise InvalidOverride if it is no address."""
    kind, _, address = subject.partition(":")
    if kind != "ip":
        return None
    try:
        return ip_network(address)
    except ValueError as error:
        fault = translatable("{address!r} is neither an address nor a network", address=address)
        raise InvalidOverride(fault, "value") from error


def _rank(override: Override) -> tuple[int, int, int, int]:
    """Return the sort key: kind of subject, longer prefix first, effect, later first."""
    # An IPv4 prefix is compared as the prefix of the mapped IPv6 address, which is 96 bits longer.
    network = override.network
    length = 0 if network is None else network.prefixlen + (96 if network.version == 4 else 0)
    return subject_kinds().index(override.kind), -length, EFFECTS.index(override.effect), -override.number


def _faults(override: Override) -> Iterator[tuple[str, str]]:
    """Yield pairs of an option and its fault."""
    (kind, _, value), kinds = override.subject.partition(":"), subject_kinds()
    if kind not in kinds:
        yield "kind", translatable("the kind must be one of {known}, not {kind!r}", known=", ".join(kinds), kind=kind)
    if not 1 <= len(value) <= MAX_SUBJECT_LENGTH or not value.isprintable() or value != value.strip():
        yield (
            "value",
            translatable("the subject must have 1 to {most} printable characters", most=MAX_SUBJECT_LENGTH),
        )
    try:
        names("rules", override.rules)
    except InvalidRule as error:
        yield "rules", text_of(error)
    if override.effect not in EFFECTS:
        pattern = gettext_noop("the effect must be one of {known}, not {effect!r}")
        yield "effect", translatable(pattern, known=", ".join(EFFECTS), effect=override.effect)
    yield from _amount_faults(override)


def _amount_faults(override: Override) -> Iterator[tuple[str, str]]:
    factor, rates, limit = override.factor, override.rates, override.limit
    if override.effect != "multiply" and factor is not None:
        yield "factor", translatable("a factor belongs to an override that multiplies")
    is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if override.effect == "multiply" and not (is_number and 0 < (factor or 0) <= MAX_FACTOR):
        pattern = gettext_noop("a factor must be more than 0 and at most {most:,}, not {factor!r}")
        yield "factor", translatable(pattern, most=MAX_FACTOR, factor=factor)
    if override.effect != "replace" and (rates or limit is not None):
        yield "rate" if rates else "limit", translatable("a rate or a limit belongs to an override that replaces")
    if override.effect == "replace" and not rates and limit is None:
        yield "rate", translatable("it needs a rate or a limit, which holds instead of the rule's")
    if has_invalid_rates(rates):
        yield "rate", translatable("at most {most} rates, each with another window", most=MAX_RATES)
    if limit is not None and (type(limit) is not int or not 1 <= limit <= MAX_LIMIT):
        pattern = gettext_noop("a limit must be a whole number from 1 to {most:,}, not {limit!r}")
        yield "limit", translatable(pattern, most=MAX_LIMIT, limit=limit)


Apply = Callable[[Rule, Override], Rule | None]


def overridden(rule: Rule, ranked: Sequence[Override], apply: Apply) -> Rule | None:
    """Return the rule for a caller with these overrides, highest precedence first. Return None if the caller is exempt.

    ``apply`` is ``apply_override``, or a cache of it.
    """
    return deciding(rule, ranked, apply)[1]


def block_outcomes(rules: Iterable[Rule], ranked: Sequence[Override], apply: Apply, now: float) -> tuple[Outcome, ...]:
    """Return refusals of a blocked call that these rules match, one for each rate; empty if no override blocks it.

    An override of every rule also blocks a call that no rule matches. Shadow rules are blocked like others.
    """
    if not any(override.effect == "block" for override in ranked):
        return ()
    blocks: list[Outcome] = []
    has_rule = False
    for rule in rules:
        has_rule = True
        override, _ = deciding(rule, ranked, apply)
        if override is not None and override.effect == "block":
            limits = [(part.params.limit - part.tolerance, part.window) for part in rule.parts]
            blocks += [_refusal(override, now, rule.name, limit, window) for limit, window in limits]
    if not has_rule:
        general = next((override for override in ranked if override.names_every_rule), None)
        if general is not None and general.effect == "block":
            blocks.append(_refusal(general, now))
    return tuple(blocks)


async def decide_blocked(blocks: tuple[Outcome, ...], decide: Callable[[], Awaitable[Decision]]) -> Decision:
    """Refuse a blocked call without the store. If all blocks are shadows, decide the charges of the call."""
    if any(not block.shadow for block in blocks):
        return combine_outcomes(blocks)
    decision = await decide()
    return decision._replace(outcomes=decision.outcomes + blocks)


def apply_override(rule: Rule, override: Override) -> Rule | None:
    """Return the rule with the override's limit. Return None if the override does not fit the rule.

    Counts continue if the window is the same. Only a larger bucket starts full, under another store key. Its state is a
    time, by which it would still be empty.
    """
    try:
        new = _CHANGES[override.effect](rule, override)
    except InvalidRule:
        return None
    if new is None:
        return None
    new = replace(new, plan_of="")  # its limit is the override's
    if not ALGORITHMS[rule.algorithm].is_bucket or not _is_larger(new, rule):
        return new
    return replace(new, limit=None, variant=f"{new.all_rates}, {new.burst}")


def deciding(rule: Rule, ranked: Sequence[Override], apply: Apply) -> tuple[Override | None, Rule | None]:
    """Return the first override that names the rule and fits it, and the resulting rule."""
    for override in ranked:
        if not override.names(rule.name):
            continue
        if override.effect == "block":
            return override, rule
        if override.effect == "exempt" and not rule.holds_slots:
            return override, None
        new = apply(rule, override)
        if new is not None:
            return override, new
    return None, rule


def _refusal(
    override: Override, now: float, rule: str = EVERY_RULE, limit: int = 0, window: float | None = None
) -> Outcome:
    wait = None if override.until is None else max(0.0, override.until - now)
    return Outcome(rule, override.subject, False, limit, 0, wait, wait or 0.0, Reason.BLOCKED, False, window)


def _multiply(rule: Rule, override: Override) -> Rule:
    algorithm = ALGORITHMS[rule.algorithm]
    max_limit = floor(min(algorithm.max_limit, algorithm.max_multiplied) / Fraction(repr(rule.enforce_at)))

    def multiple(limit: int) -> int:
        return max(rule.factor, min(max(max_limit, limit), multiplied(limit, override.factor or 1)))

    if rule.holds_slots:
        return replace(rule, limit=multiple(rule.params.limit))
    burst = None if rule.burst is None else multiple(rule.burst)
    return rule.with_rates(tuple(replace(rate, limit=multiple(rate.limit)) for rate in rule.all_rates), burst)


def _replace(rule: Rule, override: Override) -> Rule | None:
    if rule.holds_slots:
        return None if override.limit is None else replace(rule, limit=override.limit)
    if not override.rates or (
        any(rate.monthly for rate in override.rates) and not ALGORITHMS[rule.algorithm].has_calendar
    ):
        return None
    max_burst = max(rate.limit for rate in override.rates)
    return rule.with_rates(override.rates, None if rule.burst is None else min(rule.burst, max_burst))


def _is_larger(new: Rule, old: Rule) -> bool:
    """Return True if the new rule allows more than the old one in a window that both have."""
    old_parts = {part.window: part for part in old.parts}
    pairs = [(part, old_parts[part.window]) for part in new.parts if part.window in old_parts]
    return any((part.limit or 0, part.params.limit) > (old.limit or 0, old.params.limit) for part, old in pairs)


_CHANGES: Final[dict[str, Callable[[Rule, Override], Rule | None]]] = {
    # Slots of an exempt caller still count, so that the count is right when the exemption ends.
    "exempt": lambda rule, _: replace(rule, limit=MAX_LIMIT, action="shadow", on_store_failure="allow"),
    "multiply": _multiply,
    "replace": _replace,
}


def describe_effect(override: Override) -> str:
    """Describe the effect, such as "blocked", "exempt from api" or "3 × the limit of api and search"."""
    rules = rules_in_words(override.rules)
    if override.effect == "block":
        if override.names_every_rule:
            return translatable("blocked")
        return translatable("blocked from what {rules} covers", rules=rules)
    if override.effect == "exempt":
        return translatable("exempt from {rules}", rules=rules)
    if override.effect == "multiply":
        return translatable("{factor:,.15g} × the limit of {rules}", factor=override.factor, rules=rules)
    limits = [with_commas(list(map(str, override.rates)))] if override.rates else []
    limits += [translatable("{limit:,} at once", limit=override.limit)] if override.limit is not None else []
    return translatable("{limits} instead of the limit of {rules}", limits=listed(limits), rules=rules)


def rules_in_words(rules: Iterable[str]) -> str:
    """Describe rules by their names and patterns: "every rule", or "api and search"."""
    distinct = list(dict.fromkeys(rules))
    return translatable("every rule") if EVERY_RULE in distinct else listed(distinct)


# Candidates: edited rules that count beside the live ones, and are enforced for a share of idents.

SHARE_SLOTS: Final = 10_000  # each ident has one of them by its hash; a share includes the first of them


@dataclass(frozen=True, slots=True)
class Candidate:
    """An edited rule that is to replace a live rule. It counts under a name and an id of its own."""

    live: str  #: name of the live rule
    rule: Rule = field(repr=False)
    share: float = 0.0  #: share of the idents for which the candidate is enforced
    starts_at: float | None = None  #: when it replaces the live rule by itself, in seconds since 1970; None for never

    @classmethod
    def of(cls, live: str, rule: Rule, share: float = 0.0, starts_at: float | None = None) -> Candidate:
        return cls(live, replace(rule, name=candidate_name(live)), share, starts_at)

    @property
    def shadow(self) -> Rule:
        return self.rule.as_shadow()


def candidate_name(live: str) -> str:
    """Return the name under which the candidate of a rule counts and is recorded."""
    return live[: MAX_NAME_LENGTH - len(CANDIDATE_SUFFIX)] + CANDIDATE_SUFFIX


def is_in_share(ident: str, share: float, secret: bytes) -> bool:
    """Return True if an ident is in this share of all idents. A larger share includes a smaller one."""
    return _share_slot(ident, secret) < share * SHARE_SLOTS


@lru_cache(maxsize=4096)
def _share_slot(ident: str, secret: bytes) -> int:
    # Eight characters of the keyed hash, in base 64, are 48 bits.
    return int.from_bytes(urlsafe_b64decode(ident_hash(f"candidate:{ident}", secret)[:8])) * SHARE_SLOTS >> 48
