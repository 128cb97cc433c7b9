"""Plans of a rule: other limits for some callers, as they are written and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.rate import Rate
from django_throttle.core.texts import gettext_lazy, gettext_noop, text_of

MAX_PLANS: Final = 20
OPTION: Final = "plans"
AMOUNTS: Final = ("rate", "rates", "limit", "burst")
SHAPE: Final = re.compile(r"(?P<amount>[^=]*?)(\s+burst\s+(?P<burst>[0-9]+))?", re.IGNORECASE)


class PlanLimits(NamedTuple):
    """The limits of those who are ``who``: rates, or a ``limit`` held at once; ``burst`` None as the rule's."""

    who: str
    rates: tuple[Rate, ...] = ()
    limit: int | None = None
    burst: int | None = None

    @property
    def name(self) -> str:
        """What a client is told of it: "premium" of "group:premium" and of "shop.limits.plan:premium"."""
        return plan_name(self.who)

    def __str__(self) -> str:
        amount = ", ".join(map(str, self.rates)) if self.rates else str(self.limit)
        return f"{self.who} = {amount}{'' if self.burst is None else f' burst {self.burst}'}"


def plan_name(who: str) -> str:
    """The last part of a plan's audience or function."""
    kind, colon, name = who.partition(":")
    return name if colon else kind.rpartition(".")[2]


def read_plans(given: object, check_who: Callable[[str], None]) -> tuple[str, ...]:
    """The plans as lines, such as "group:premium = 1000/min", of a mapping or of lines; raises InvalidRule.

    ``check_who`` raises it for what is neither an audience nor a function.
    """
    if isinstance(given, Mapping):
        found = [_read(who, amount) for who, amount in given.items()]
    elif isinstance(given, (list, tuple)) and all(isinstance(line, str) for line in given):
        found = [read_plan(line) for line in given]
    else:
        pattern = gettext_noop('plans must be a dictionary such as {{"group:premium": "1000/min"}}, not {given!r}')
        raise InvalidRule(gettext_lazy(pattern, given=given), OPTION)
    for one in found:
        check_who(one.who)
    asked = [one.who for one in found]
    for who in asked[asked.index("authenticated") + 1 :] if "authenticated" in asked else ():
        if who == "staff" or who.startswith("group:"):
            fault = gettext_lazy('plan {who!r} must stand before "authenticated", which all of these are', who=who)
            raise InvalidRule(fault, OPTION)
    if len({one.who for one in found}) < len(found):
        raise InvalidRule(gettext_lazy("plans have one of their callers twice"), OPTION)
    if len(found) > MAX_PLANS:
        raise InvalidRule(gettext_lazy("a rule has at most {most} plans", most=MAX_PLANS), OPTION)
    return tuple(map(str, found))


def read_plan(line: str) -> PlanLimits:
    """One line; raises InvalidRule."""
    who, sign, amount = line.rpartition("=")
    if not sign or not who.strip():
        fault = gettext_lazy("a plan is written like group:premium = 1000/min, unlike {line!r}", line=line)
        raise InvalidRule(fault, OPTION)
    return _read(who.strip(), amount.strip())


def _read(who: object, amount: object) -> PlanLimits:
    if not isinstance(who, str):
        pattern = gettext_noop('a plan is for an audience such as "group:premium" or what a function says, not {who!r}')
        raise InvalidRule(gettext_lazy(pattern, who=who), OPTION)
    if len(who.splitlines()) != 1 or "=" in who or who != who.strip():
        fault = gettext_lazy("a plan is for whom, in one line and without =, unlike {who!r}", who=who)
        raise InvalidRule(fault, OPTION)
    given = _options(who, amount)
    for name in given:
        if name not in AMOUNTS:
            pattern, known = gettext_noop("plan {who!r} has {known} only, not {name!r}"), ", ".join(AMOUNTS)
            raise InvalidRule(gettext_lazy(pattern, who=who, known=known, name=name), OPTION)
    rates = given.get("rates") or ([] if given.get("rate") is None else [given["rate"]])
    limit, burst = (_whole(who, name, given.get(name)) for name in ("limit", "burst"))
    if bool(rates) == (limit is not None):
        fault = gettext_lazy(
            "plan {who!r} needs a rate such as 1000/min or, for concurrency, a limit, not both", who=who
        )
        raise InvalidRule(fault, OPTION)
    return PlanLimits(who, tuple(_rate(who, one) for one in rates), limit, burst)


def _options(who: str, amount: object) -> Mapping[str, Any]:
    """An amount as options, in whichever form it was given."""
    if isinstance(amount, Mapping):
        return amount
    if isinstance(amount, int):
        return {"limit": amount}
    if isinstance(amount, Rate):
        return {"rate": amount}
    shaped = SHAPE.fullmatch(amount.strip()) if isinstance(amount, str) else None
    if shaped is None:
        fault = gettext_lazy("plan {who!r} needs a rate such as 1000/min, not {amount!r}", who=who, amount=amount)
        raise InvalidRule(fault, OPTION)
    text, burst = shaped["amount"], shaped["burst"]
    found = {} if burst is None else {"burst": int(burst)}
    return found | ({"limit": int(text)} if text.isdecimal() else {"rates": text.split(",")})


def _whole(who: str, name: str, given: object) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        pattern = gettext_noop("plan {who!r}: {name} must be a whole number from 1 on, not {given!r}")
        raise InvalidRule(gettext_lazy(pattern, who=who, name=name, given=given), OPTION)
    return given


def _rate(who: str, given: object) -> Rate:
    if isinstance(given, Rate):
        return given
    if not isinstance(given, str):
        fault = gettext_lazy("plan {who!r} needs a rate such as 1000/min, not {given!r}", who=who, given=given)
        raise InvalidRule(fault, OPTION)
    try:
        return Rate.parse("".join(given.split()).lower(), calendar=True)
    except ValueError as error:
        raise InvalidRule(gettext_lazy("plan {who!r}: {fault}", who=who, fault=text_of(error)), OPTION) from None
