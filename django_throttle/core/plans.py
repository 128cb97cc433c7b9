"""Plans of a rule: other limits for some callers. Reads plans from lines and mappings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.rate import Rate
from django_throttle.core.texts import gettext_noop, text_of, translatable

MAX_PLANS: Final = 20
OPTION: Final = "plans"
AMOUNTS: Final = ("rate", "rates", "limit", "burst")
SHAPE: Final = re.compile(r"(?P<amount>[^=]*?)(\s+burst\s+(?P<burst>[0-9]+))?", re.IGNORECASE)


class PlanLimits(NamedTuple):
    """The limits of a plan: rates, or a ``limit`` of slots held at once."""

    holder: str  #: audience, such as "group:premium", or a function and its result
    rates: tuple[Rate, ...] = ()
    limit: int | None = None
    burst: int | None = None  #: None for the burst of the rule

    @property
    def name(self) -> str:
        """The name shown to clients: "premium" of "group:premium" and of "shop.limits.plan:premium"."""
        return plan_name(self.holder)

    def __str__(self) -> str:
        amount = ", ".join(map(str, self.rates)) if self.rates else str(self.limit)
        return f"{self.holder} = {amount}{'' if self.burst is None else f' burst {self.burst}'}"


def plan_name(holder: str) -> str:
    """Return the last part of a plan's audience or function."""
    kind, colon, name = holder.partition(":")
    return name if colon else kind.rpartition(".")[2]


def read_plans(value: object, check_holder: Callable[[str], None]) -> tuple[str, ...]:
    """Return plans, given as a mapping or as lines, as lines such as "group:premium = 1000/min".

    Raise InvalidRule if a plan is not valid. ``check_holder`` raises it unless its argument is an audience or a
    function.
    """
    if isinstance(value, Mapping):
        plans = [_read(holder, amount) for holder, amount in value.items()]
    elif isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        plans = [read_plan(line) for line in value]
    else:
        pattern = gettext_noop('plans must be a dictionary such as {{"group:premium": "1000/min"}}, not {given!r}')
        raise InvalidRule(translatable(pattern, given=value), OPTION)
    for plan in plans:
        check_holder(plan.holder)
    holders = [plan.holder for plan in plans]
    for holder in holders[holders.index("authenticated") + 1 :] if "authenticated" in holders else ():
        if holder == "staff" or holder.startswith("group:"):
            fault = translatable('plan {who!r} must stand before "authenticated", which all of these are', who=holder)
            raise InvalidRule(fault, OPTION)
    if len({plan.holder for plan in plans}) < len(plans):
        raise InvalidRule(translatable("two plans are for the same audience or function"), OPTION)
    if len(plans) > MAX_PLANS:
        raise InvalidRule(translatable("a rule has at most {most} plans", most=MAX_PLANS), OPTION)
    return tuple(map(str, plans))


def read_plan(line: str) -> PlanLimits:
    """Return the limits that a line states. Raise InvalidRule if the line is not a plan."""
    holder, sign, amount = line.rpartition("=")
    if not sign or not holder.strip():
        fault = translatable("a plan is written like group:premium = 1000/min, unlike {line!r}", line=line)
        raise InvalidRule(fault, OPTION)
    return _read(holder.strip(), amount.strip())


def _read(holder: object, amount: object) -> PlanLimits:
    if not isinstance(holder, str):
        pattern = gettext_noop('a plan is for an audience such as "group:premium" or what a function says, not {who!r}')
        raise InvalidRule(translatable(pattern, who=holder), OPTION)
    if len(holder.splitlines()) != 1 or "=" in holder or holder != holder.strip():
        fault = translatable("the audience or function of a plan is one line without =, unlike {who!r}", who=holder)
        raise InvalidRule(fault, OPTION)
    options = _options(holder, amount)
    for name in options:
        if name not in AMOUNTS:
            pattern, valid_names = gettext_noop("plan {who!r} has {known} only, not {name!r}"), ", ".join(AMOUNTS)
            raise InvalidRule(translatable(pattern, who=holder, known=valid_names, name=name), OPTION)
    rates = options.get("rates") or ([] if options.get("rate") is None else [options["rate"]])
    limit, burst = (_positive_number(holder, name, options.get(name)) for name in ("limit", "burst"))
    if bool(rates) == (limit is not None):
        fault = translatable(
            "plan {who!r} needs a rate such as 1000/min or, for concurrency, a limit, not both", who=holder
        )
        raise InvalidRule(fault, OPTION)
    return PlanLimits(holder, tuple(_rate(holder, rate) for rate in rates), limit, burst)


def _options(holder: str, amount: object) -> Mapping[str, Any]:
    """Return the options that an amount stands for: a mapping, a number, a Rate, or text such as "10/s burst 20"."""
    if isinstance(amount, Mapping):
        return amount
    if isinstance(amount, int):
        return {"limit": amount}
    if isinstance(amount, Rate):
        return {"rate": amount}
    match = SHAPE.fullmatch(amount.strip()) if isinstance(amount, str) else None
    if match is None:
        fault = translatable("plan {who!r} needs a rate such as 1000/min, not {amount!r}", who=holder, amount=amount)
        raise InvalidRule(fault, OPTION)
    text, burst = match["amount"], match["burst"]
    options = {} if burst is None else {"burst": int(burst)}
    return options | ({"limit": int(text)} if text.isdecimal() else {"rates": text.split(",")})


def _positive_number(holder: str, name: str, value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        pattern = gettext_noop("plan {who!r}: {name} must be a whole number from 1 on, not {given!r}")
        raise InvalidRule(translatable(pattern, who=holder, name=name, given=value), OPTION)
    return value


def _rate(holder: str, value: object) -> Rate:
    if isinstance(value, Rate):
        return value
    if not isinstance(value, str):
        fault = translatable("plan {who!r} needs a rate such as 1000/min, not {given!r}", who=holder, given=value)
        raise InvalidRule(fault, OPTION)
    try:
        return Rate.parse("".join(value.split()).lower(), calendar=True)
    except ValueError as error:
        raise InvalidRule(translatable("plan {who!r}: {fault}", who=holder, fault=text_of(error)), OPTION) from None
