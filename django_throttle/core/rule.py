"""Rules: who is limited, to what, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from django_throttle.core import options
from django_throttle.core.key import short_id
from django_throttle.core.options import meant
from django_throttle.core.plan import Plan, make_plan, thresholds
from django_throttle.core.rate import Rate, RateLimit
from django_throttle.exceptions import InvalidRule


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit: at most ``rate`` (or ``limit`` held at once) per ident, where scopes and events match.

    ``rate`` is a Rate or its text; ``rates`` are several, all to be kept. ``events`` are ("request",) unless
    given; ("connection",) for a concurrency rule, which may also count ("inflight",), or both. ``burst`` (buckets)
    defaults to the rate's limit.
    ``refill`` is "continuous" or, for a token bucket, "interval". ``timezone`` makes a fixed window begin with
    the hour, day, week or month there. ``resolution`` is the number of sub-windows of a sliding window;
    ``strict`` counts the oldest one whole. ``cost`` multiplies the cost of each call, as a number or as the dotted
    path of a function of the request. ``unit`` is "calls", or "bytes" to count what calls carry. ``count_denied``
    charges refused calls too, ``count_on`` only those that are answered with one of these HTTP statuses.
    ``methods`` and ``audience`` narrow what the rule applies to. ``warn_at`` are shares of the limit that are told of
    when use reaches them; ``enforce_at`` is how many times the limit is used up before a call is refused. ``batched``
    charges what has passed every few seconds; ``estimator`` is a damper's, "fast" or "average". ``action`` is
    "reject", "shadow" (decide and record, never refuse) or, for a leaky bucket, "delay", for at most ``max_delay``
    seconds. ``at_limit`` is "reject" or, for concurrency, "evict_oldest" or "evict_idle": a new socket closes an old
    one. ``on_store_failure`` is "local", "allow" or "deny". A rule of several rates has as many ``parts``; any other
    is its own only one.
    Raises InvalidRule or InvalidRate when the options make no sense, alone or together.
    """

    name: str
    rate: Rate | None = None
    limit: int | None = field(default=None, kw_only=True)
    rates: tuple[Rate, ...] = field(default=(), kw_only=True)
    scopes: tuple[str, ...] = field(default=("*",), kw_only=True)
    events: tuple[str, ...] = field(default=(), kw_only=True)
    methods: tuple[str, ...] = field(default=(), kw_only=True)
    audience: tuple[str, ...] = field(default=(), kw_only=True)
    key: str = field(default="user_or_ip", kw_only=True)
    algorithm: str = field(default="sliding_window", kw_only=True)
    burst: int | None = field(default=None, kw_only=True)
    refill: str = field(default="continuous", kw_only=True)
    max_delay: float | None = field(default=None, kw_only=True)
    timezone: str | None = field(default=None, kw_only=True)
    resolution: int = field(default=1, kw_only=True)
    strict: bool = field(default=False, kw_only=True)
    count_denied: bool = field(default=False, kw_only=True)
    count_on: tuple[int, ...] = field(default=(), kw_only=True)
    cost: int | str = field(default=1, kw_only=True)
    unit: str = field(default="calls", kw_only=True)
    warn_at: tuple[float, ...] = field(default=(), kw_only=True)
    enforce_at: float = field(default=1.0, kw_only=True)
    batched: bool = field(default=False, kw_only=True)
    estimator: str = field(default="fast", kw_only=True)
    action: str = field(default="reject", kw_only=True)
    at_limit: str = field(default="reject", kw_only=True)
    on_store_failure: str = field(default="local", kw_only=True)
    enabled: bool = field(default=True, kw_only=True)
    # No option: what tells the counts of this rule from those of the rule that an override has changed.
    variant: str = field(default="", kw_only=True, repr=False)
    # Derived once, because the hot path reads them on every call.
    parts: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    id: str = field(init=False, repr=False, compare=False)
    is_concurrency: bool = field(init=False, repr=False, compare=False)
    is_shadow: bool = field(init=False, repr=False, compare=False)
    is_damper: bool = field(init=False, repr=False, compare=False)
    is_local: bool = field(init=False, repr=False, compare=False)  # decided by the process, without the store
    is_plain: bool = field(init=False, repr=False, compare=False)  # neither caller nor request is asked for more
    window: float | None = field(init=False, repr=False, compare=False)
    factor: int = field(init=False, repr=False, compare=False)  # cost as a number; 1 where a function says it
    plan: Plan = field(init=False, repr=False, compare=False)
    tolerance: int = field(init=False, repr=False, compare=False)  # what passes beyond the limit
    thresholds: tuple[tuple[float, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._set("is_concurrency", self.algorithm == "concurrency")
        self._set("is_shadow", self.action == "shadow")
        self._set("is_damper", self.algorithm == "damper")
        self._set("is_local", self.is_damper or self.batched)
        if isinstance(self.rate, str):
            self._set("rate", self._parsed(self.rate))
        self._set("rates", tuple(map(self._parsed, options.sequence("rates", self.rates))))
        if self.events == ():
            self._set("events", self._usual_events())
        for name in ("scopes", "events"):
            self._set(name, options.names(name, getattr(self, name)))
        for name, read in _LISTS.items():
            self._set(name, read(getattr(self, name)))
        self._set("factor", self.cost if isinstance(self.cost, int) else 1)
        options.check_rule(self)
        self._derive()

    def _derive(self) -> None:
        self._set("enforce_at", float(self.enforce_at))
        if self.rate is not None:
            self._set("limit", RateLimit(self.rate.limit))
        self._set("window", self.rate.window if self.rate else None)
        plain_cost = self.unit == "calls" and not isinstance(self.cost, str)
        self._set("is_plain", plain_cost and not (self.methods or self.audience))
        self._set("id", short_id(self))
        self._set("plan", make_plan(self))
        nominal = self.plan if self.enforce_at == 1 else make_plan(replace(self, enforce_at=1.0, warn_at=()))
        self._set("tolerance", self.plan.limit - nominal.limit)
        self._set("thresholds", thresholds(nominal.limit, self.warn_at))
        # One rule with several rates is decided as so many rules of one rate each.
        self._set("parts", tuple(replace(self, rate=rate, rates=()) for rate in self.rates) or (self,))

    def __hash__(self) -> int:
        return hash(self.id)  # on the hot path; equality still compares every option

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any]) -> Rule:
        """Build a rule from a mapping, as settings, the database and JSON files hold it.

        Raises InvalidRule for an option that does not exist, naming the nearest one that does.
        """
        if not isinstance(options, Mapping):
            raise InvalidRule(f"rule {name!r}: options are a mapping, not {type(options).__name__}")
        for option in options:
            if option not in OPTIONS:
                raise InvalidRule(f"rule {name!r}: there is no option {option!r}{meant(option, OPTIONS)}")
        return cls(name, **options)

    def as_options(self) -> dict[str, Any]:
        """The options that differ from the defaults, in JSON's types: the inverse of from_options."""
        found: dict[str, Any] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in OPTIONS and value != option.default:
                found[option.name] = list(value) if isinstance(value, tuple) else value
        if self.events == self._usual_events():
            del found["events"]
        if self.rate is not None:
            found["rate"] = str(self.rate)
            del found["limit"]
        if self.rates:
            found["rates"] = [str(rate) for rate in self.rates]
        return found

    def share(self, parts: int) -> Rule:
        """This rule with its limit divided by ``parts`` processes, at least one call: the share of one of them."""
        if parts <= 1:
            return self
        limit = max(self.factor, (self.limit or 1) // parts)
        burst = None if self.burst is None else max(self.factor, self.burst // parts)
        if self.rate is None:
            return replace(self, limit=limit)
        return replace(self, rate=replace(self.rate, limit=limit), limit=None, burst=burst)

    def as_shadow(self) -> Rule:
        """This rule, deciding and recording but never refusing."""
        return self if self.is_shadow else replace(self, action="shadow")

    def _parsed(self, rate: object) -> Rate:
        if isinstance(rate, Rate):
            return rate
        return Rate.parse(rate, calendar=self.algorithm == "fixed_window")  # type: ignore[arg-type]  # it says so

    def _usual_events(self) -> tuple[str, ...]:
        return ("connection",) if self.is_concurrency else ("request",)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


_LISTS: Final = {
    "methods": options.methods,
    "audience": options.audience,
    "warn_at": options.shares,
    "count_on": options.statuses,
}
OPTIONS: Final = tuple(option.name for option in fields(Rule) if option.init and option.name not in ("name", "variant"))
