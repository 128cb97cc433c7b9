"""Relief by hand: what an operator decided for one caller, and which of several such decisions goes first."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from django_throttle.core import checks
from django_throttle.core.rate import MAX_LIMIT, Rate
from django_throttle.exceptions import InvalidOverride, InvalidRule

# The kinds of subjects, the most specific first: what is said of a user goes before what is said of a group.
KINDS: Final = ("api_key", "user", "ip", "tenant", "group")
# Among overrides of one kind, the strongest first.
EFFECTS: Final = ("block", "replace", "multiply", "exempt")
EVERY_RULE: Final = "*"
# How the limits of REST framework's throttles are named, which no rulebook lists.
UNLISTED: Final = "drf-"
MAX_FACTOR: Final = 1_000_000
MAX_SUBJECT: Final = 300

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What holds for one subject instead of what the rules say, until a moment in epoch seconds.

    ``subject`` is ``user:42``, ``ip:203.0.113.9``, ``ip:203.0.113.0/24``, ``group:NAME``, ``tenant:NAME`` or
    ``api_key:TAG``, the keyed hash of a key's ident. ``rules`` are names of rules, in which ``*`` and ``?`` stand
    for any text or one character. ``effect`` is one of EFFECTS: "multiply" has a ``factor``; "replace" has
    ``rates`` for rules of rates, a ``limit`` for concurrency rules, or both. ``number`` says which of two that are
    otherwise alike was made later. Raises InvalidOverride when that makes no sense.
    """

    subject: str
    effect: str
    rules: tuple[str, ...] = (EVERY_RULE,)
    factor: float | None = None
    rates: tuple[Rate, ...] = ()
    limit: int | None = None
    until: float | None = None
    number: int = 0
    # Derived once, because they are read on every call of a caller who has overrides.
    network: Network | None = field(init=False, repr=False, compare=False)
    rank: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for check in (_subject, _rules, _effect, _factor, _replacement):
            check(self)
        object.__setattr__(self, "network", network_of(self.subject))
        object.__setattr__(self, "rank", _rank(self))

    @property
    def kind(self) -> str:
        return self.subject.partition(":")[0]

    @property
    def names_every_rule(self) -> bool:
        return EVERY_RULE in self.rules

    def names(self, rule: str) -> bool:
        """True when it speaks of the rule of this name."""
        return any(pattern in (EVERY_RULE, rule) or fnmatchcase(rule, pattern) for pattern in self.rules)

    def lasts(self, now: float) -> bool:
        """True until its moment has come."""
        return self.until is None or now < self.until


def network_of(subject: str) -> Network | None:
    """The network that an address stands for; None for any other subject. Raises InvalidOverride for no address."""
    kind, _, address = subject.partition(":")
    if kind != "ip":
        return None
    try:
        return ip_network(address)
    except ValueError as error:
        raise InvalidOverride(f"{address!r} is no address and no network", "value") from error


def _rank(override: Override) -> tuple[int, int, int, int]:
    """What is sorted by: subject, length of a network's prefix, effect, and the later one before the earlier."""
    # Whatever the notation, the first 96 bits of an IPv4 address are given.
    network = override.network
    length = 0 if network is None else network.prefixlen + (96 if network.version == 4 else 0)
    return KINDS.index(override.kind), -length, EFFECTS.index(override.effect), -override.number


def _subject(override: Override) -> None:
    kind, _, value = override.subject.partition(":")
    if kind not in KINDS:
        raise InvalidOverride(f"whom it is for is one of {', '.join(KINDS)}, not {kind!r}", "kind")
    if not 1 <= len(value) <= MAX_SUBJECT or not value.isprintable() or value != value.strip():
        raise InvalidOverride(f"whom it is for has 1 to {MAX_SUBJECT} printable characters", "value")


def _rules(override: Override) -> None:
    try:
        checks.names("rules", override.rules)
    except InvalidRule as error:
        raise InvalidOverride(str(error), "rules") from error


def _effect(override: Override) -> None:
    if override.effect not in EFFECTS:
        raise InvalidOverride(f"the effect is one of {', '.join(EFFECTS)}, not {override.effect!r}", "effect")


def _factor(override: Override) -> None:
    if override.effect != "multiply":
        if override.factor is not None:
            raise InvalidOverride("a factor belongs to an override that multiplies", "factor")
        return
    factor = override.factor
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= MAX_FACTOR:
        raise InvalidOverride(f"a factor is more than 0 and at most {MAX_FACTOR:,}, not {factor!r}", "factor")


def _replacement(override: Override) -> None:
    rates, limit = override.rates, override.limit
    if override.effect != "replace":
        if rates or limit is not None:
            option = "rate" if rates else "limit"
            raise InvalidOverride("a rate or a limit belongs to an override that replaces", option)
        return
    if not rates and limit is None:
        raise InvalidOverride("it needs the rate, or the number held at once, that holds instead", "rate")
    if len(rates) > checks.MAX_RATES or len({rate.window for rate in rates}) < len(rates):
        raise InvalidOverride(f"rates are at most {checks.MAX_RATES}, each with another window", "rate")
    if limit is not None and (type(limit) is not int or not 1 <= limit <= MAX_LIMIT):
        raise InvalidOverride(f"a limit is a whole number from 1 to {MAX_LIMIT:,}, not {limit!r}", "limit")
