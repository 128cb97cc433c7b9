"""What a rule may say: its choices and bounds, and a small check for each option and each pair that must fit."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.plan import is_calendar, times
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW, Rate, RateLimit, period_of, zone
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule

__all__ = [
    "ACTIONS",
    "ALGORITHMS",
    "AT_LIMITS",
    "AUDIENCES",
    "AUDIENCE_KINDS",
    "BUCKETS",
    "ESTIMATORS",
    "EVENTS",
    "FAILURE_POLICIES",
    "HELD",
    "KEYS",
    "MAX_DAMPED",
    "MAX_LOG",
    "MAX_NAME",
    "MAX_RATES",
    "MAX_RESOLUTION",
    "MAX_TIMES",
    "METHODS",
    "REFILLS",
    "UNITS",
    "audience",
    "check_rule",
    "meant",
    "methods",
    "names",
    "sequence",
    "shares",
    "statuses",
]


EVENTS: Final = ("request", "inflight", "connect", "connection", "message", "send", "publish", "task")
# What is open for a while, which only a concurrency rule counts; all other events happen at a moment.
HELD: Final = ("inflight", "connection")
KEYS: Final = ("user", "ip", "user_or_ip", "api_key", "session", "tenant", "connection", "everyone")
ALGORITHMS: Final = (
    "fixed_window",
    "sliding_log",
    "sliding_window",
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "concurrency",
    "damper",
)
ACTIONS: Final = ("reject", "shadow", "delay")
AT_LIMITS: Final = ("reject", "evict_oldest", "evict_idle")  # what becomes of the socket that is one too many
REFILLS: Final = ("continuous", "interval")
ESTIMATORS: Final = ("fast", "average")  # of a damper
UNITS: Final = ("calls", "bytes")
FAILURE_POLICIES: Final = ("local", "allow", "deny")
BUCKETS: Final = ("token_bucket", "leaky_bucket", "gcra")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
AUDIENCES: Final = ("anonymous", "authenticated", "staff")
# Members of what has a name of its own: group:editors, tenant:acme.
AUDIENCE_KINDS: Final = ("group", "tenant")
# A log keeps an entry for each call, of which there are as many as units at most; past this a strict sliding_window
# holds the same cap in one value.
MAX_LOG: Final = 10_000
MAX_DAMPED: Final = 1_000_000_000_000  # sums of what is attempted stay whole numbers
MAX_RATES: Final = 10
MAX_RESOLUTION: Final = 30  # a Lua pattern has 32 captures
MAX_NAME: Final = 100
MAX_TIMES: Final = 100  # the limit, at which calls are refused
MAX_WARNINGS: Final = 10


def one_of(option: str, given: object, allowed: tuple[str, ...]) -> None:
    """Raise InvalidRule unless it is one of those allowed."""
    if given not in allowed:
        raise InvalidRule(f"{option} is one of {', '.join(allowed)}, not {given!r}{meant(given, allowed)}", option)


def whole(option: str, given: object, least: int, most: int) -> None:
    """Raise InvalidRule unless it is a whole number in range."""
    if type(given) is not int or not least <= given <= most:
        raise InvalidRule(f"{option} is a whole number from {least:,} to {most:,}, not {given!r}", option)


def is_dotted(given: object) -> bool:
    """True for a text with the shape of a path to a function: "shop.limits.tenant"."""
    return isinstance(given, str) and "." in given and all(part.isidentifier() for part in given.split("."))


MADE_UP: Final = tuple(f"{kind}:" for kind in AUDIENCE_KINDS)


def names(option: str, given: object) -> tuple[str, ...]:
    """A tuple of non-empty texts; raises InvalidRule for a bare text, which would be read letter by letter."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidRule(f"{option} is a list of names, not {given!r}", option)
    found = tuple(given)
    if not found or not all(isinstance(name, str) and name.strip() for name in found):
        raise InvalidRule(f"{option} needs at least one name and no empty ones, not {given!r}", option)
    for name in found:
        if "," in name or name != name.strip():
            raise InvalidRule(f"{option}: a name has no comma and no space around it, unlike {name!r}", option)
    return found


def sequence(option: str, given: object) -> tuple[Any, ...]:
    """The given list or tuple as a tuple; raises InvalidRule for anything else."""
    if not isinstance(given, (list, tuple)):
        raise InvalidRule(f"{option} is a list, not {given!r}", option)
    return tuple(given)


def methods(given: object) -> tuple[str, ...]:
    """HTTP methods in capitals; raises InvalidRule for one that is none, naming the nearest that is."""
    found = tuple(dict.fromkeys(name.upper() for name in _names_if_any("methods", given)))
    for name in found:
        if name not in METHODS:
            raise InvalidRule(f"there is no method {name!r}{meant(name, METHODS)}", "methods")
    return found


def audience(given: object) -> tuple[str, ...]:
    """Whom a rule is about: anonymous, authenticated, staff, group:NAME, tenant:NAME. Raises InvalidRule."""
    found = tuple(dict.fromkeys(_names_if_any("audience", given)))
    for entry in found:
        kind, colon, name = entry.partition(":")
        if entry in AUDIENCES or (colon and kind in AUDIENCE_KINDS and name == name.strip() != ""):
            continue
        near = get_close_matches(kind.strip().lower(), (*AUDIENCES, *AUDIENCE_KINDS), n=1)
        if near and near[0] in AUDIENCE_KINDS:
            near = [f"{near[0]}:{name.strip() or 'NAME'}"]
        hint = f"; did you mean {near[0]!r}?" if near else f"; choose {', '.join(AUDIENCES)}, group:NAME or tenant:NAME"
        raise InvalidRule(f"there is no audience {entry!r}{hint}", "audience")
    return found


def shares(given: object) -> tuple[float, ...]:
    """Shares of a limit, the least first. Raises InvalidRule."""
    found = sequence("warn_at", given)
    for share in found:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= MAX_TIMES:
            is_percent = type(share) in (int, float) and MAX_TIMES < share <= 1000
            hint = f" ({share:g} % is {share / 100:g})" if is_percent else " (0.8 is 80 %)"
            raise InvalidRule(
                f"warn_at has shares of the limit, above 0 and up to {MAX_TIMES}{hint}, not {share!r}", "warn_at"
            )
    if len(found) > MAX_WARNINGS:
        raise InvalidRule(f"warn_at has at most {MAX_WARNINGS} shares", "warn_at")
    return tuple(sorted(set(map(float, found))))


def statuses(given: object) -> tuple[int, ...]:
    """HTTP statuses, the least first. Raises InvalidRule."""
    found = sequence("count_on", given)
    for status in found:
        if type(status) is not int or not 100 <= status <= 599:
            raise InvalidRule(f"count_on has HTTP statuses, from 100 to 599, not {status!r}", "count_on")
    return tuple(sorted(set(found)))


def _names_if_any(option: str, given: object) -> tuple[str, ...]:
    return names(option, given) if given not in ((), []) else ()


def meant(word: object, known: Iterable[str]) -> str:
    """The nearest of the known words, as the end of a message; empty where none is near."""
    near = get_close_matches(str(word), tuple(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


# Everyone together with somebody is that somebody, and a connection with whoever opened it is that connection.
JOINED: Final = tuple(key for key in KEYS if key not in ("everyone", "connection"))


def parts(key: str) -> tuple[str, ...]:
    """The keys that are joined by ``+``; the key itself where none are."""
    return tuple(key.split("+"))


def functions(key: str) -> tuple[str, ...]:
    """The dotted paths among the keys that are joined."""
    return tuple(part for part in parts(key) if is_dotted(part))


def _key(rule: Rule) -> None:
    # A dotted path names a function; the rulebook imports it.
    if is_dotted(rule.key):
        return
    if not isinstance(rule.key, str) or "+" not in rule.key:
        one_of("key", rule.key, KEYS)
        return
    found = parts(rule.key)
    for part in found:
        if part not in JOINED and not is_dotted(part):
            near = meant(part, JOINED)
            raise InvalidRule(f"a key joins {', '.join(JOINED)} and paths of functions, not {part!r}{near}", "key")
    if len(set(found)) < len(found):
        raise InvalidRule(f"the key {rule.key!r} has one of its parts twice", "key")


KEY_CHECKS: Final = (_key,)


def _http(rule: Rule) -> None:
    """Nothing but an HTTP request has a method and a status: other events would silently count never, or always."""
    if rule.methods and rule.events not in (("request",), ("inflight",)):
        raise InvalidRule("methods belong to rules of HTTP requests (request or inflight) alone", "methods")
    if rule.count_on and rule.events != ("request",):
        raise InvalidRule("answers that count belong to rules of HTTP requests alone", "count_on")


def _audience(rule: Rule) -> None:
    if rule.key == "user" and rule.audience == ("anonymous",):
        raise InvalidRule("who is not logged in has no budget under the key user, so it would limit nobody", "audience")


MATCH_CHECKS: Final = (_http, _audience)


FRAMES: Final = frozenset(("message", "send"))
WEIGHED: Final = frozenset(("request", "message", "send"))
# Of what one process counts for one socket, with no store and no wall clock.
_MEANINGLESS_FOR_FRAMES: Final[dict[str, tuple[Any, str]]] = {
    "warn_at": ((), "a connection's own budget ends with it: nobody is warned of its use"),
    "batched": (False, "a connection's own budget is never shared, so it needs no batches"),
    "on_store_failure": ("local", "a connection's own budget is counted without the store"),
}


def _unit(rule: Rule) -> None:
    one_of("unit", rule.unit, UNITS)
    if rule.unit == "bytes" and not WEIGHED.issuperset(rule.events):
        raise InvalidRule("only requests and messages have bytes that can be counted", "unit")


def _connection(rule: Rule) -> None:
    if rule.key != "connection":
        return
    if not FRAMES.issuperset(rule.events):
        raise InvalidRule("the key connection is for what happens on an open WebSocket: message, send", "key")
    for option, (default, why) in _MEANINGLESS_FOR_FRAMES.items():
        if getattr(rule, option) != default:
            raise InvalidRule(why, option)
    if rule.is_damper:
        raise InvalidRule("a damper smooths what many do; a connection has a rate of its own", "algorithm")
    if is_calendar(rule) or any(rate.monthly for rate in rule.rates):
        raise InvalidRule("a connection is counted from when it was opened, not by the calendar", "rate")


SOCKET_CHECKS: Final = (_unit, _connection)


def _at_limit(rule: Rule) -> None:
    one_of("at_limit", rule.at_limit, AT_LIMITS)
    if rule.at_limit != "reject" and not rule.is_concurrency:
        raise InvalidRule("only what is held can be taken away: at_limit belongs to a concurrency rule", "at_limit")
    if rule.at_limit != "reject" and "connection" not in rule.events:
        raise InvalidRule("only a WebSocket can be closed for another (at_limit): add the event connection", "at_limit")


HELD_CHECKS: Final = (_at_limit,)


def _enforced(rule: Rule) -> None:
    given = rule.enforce_at
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 <= given <= MAX_TIMES:  # nor NaN
        is_percent = type(given) in (int, float) and MAX_TIMES < given <= MAX_TIMES * 100
        percent = f"; {given:g} % is {given / 100:g}" if is_percent else ""
        raise InvalidRule(f"enforce_at is a number from 1 to {MAX_TIMES}, not {given!r}{percent}", "enforce_at")
    if given == 1:
        return
    if rule.algorithm == "concurrency" or rule.action == "delay":
        raise InvalidRule(
            "enforce_at belongs to rates that refuse: what is held, or waits, has one limit", "enforce_at"
        )
    limits = [rate.limit for rate in (rule.rate, *rule.rates) if rate is not None]
    most = times(max([*limits, rule.burst or 0]), given)
    longest = MAX_LOG if rule.algorithm == "sliding_log" else MAX_LIMIT
    if most > longest:
        raise InvalidRule(
            f"calls would be refused at {most:,} only, more than the {longest:,} that can be counted", "enforce_at"
        )


def _warned(rule: Rule) -> None:
    if not rule.warn_at:
        return
    if rule.algorithm == "concurrency":
        raise InvalidRule("warn_at belongs to rates: what is held at once has no window to be warned in", "warn_at")
    if rule.warn_at[-1] > rule.enforce_at:
        share = f"{rule.warn_at[-1]:g}"
        percent = f"; {share} % is {rule.warn_at[-1] / 100:g}" if rule.warn_at[-1] >= 2 else ""
        raise InvalidRule(
            f"use never gets to {share} times the limit: calls are refused at {rule.enforce_at:g}{percent}", "warn_at"
        )


QUOTA_CHECKS: Final = (_enforced, _warned)


SUB_SECONDS: Final = 6
_MEANINGLESS_IN_PROCESS: Final[dict[str, tuple[Any, str]]] = {
    "rates": ((), "a damper has one rate; another rule beside it keeps another one"),
    "count_denied": (False, "a damper always counts refused calls too"),
    "count_on": ((), "a damper counts what is attempted, whatever it is answered with"),
    "warn_at": ((), "a damper has no budget of which a share is used; a rule beside it can warn"),
    "batched": (False, "a damper is reported in batches already"),
    "enforce_at": (1.0, "a damper holds its limit; a rule beside it can tolerate more"),
}
_ONE_BY_ONE: Final = {
    "count_denied": "what is charged in batches is what has passed, never what was refused",
    "count_on": "what is charged in batches is not given back",
}


def _damper(rule: Rule) -> None:
    one_of("estimator", rule.estimator, ESTIMATORS)
    if not rule.is_damper:
        if rule.estimator != "fast":
            raise InvalidRule("an estimator belongs to a damper", "estimator")
        return
    for option, (default, why) in _MEANINGLESS_IN_PROCESS.items():
        if getattr(rule, option) != default:
            raise InvalidRule(why, option)
    if rule.on_store_failure == "deny":
        raise InvalidRule("a damper decides without the store: be it local or allow, not deny", "on_store_failure")
    if rule.rate is not None and rule.rate.limit > MAX_DAMPED:
        raise InvalidRule(f"a damper's limit is at most {MAX_DAMPED:,}; a fixed or sliding window takes more", "rate")
    if rule.rate is not None and rule.rate.limit * SUB_SECONDS < rule.rate.window:
        raise InvalidRule("a damper smooths a rate over seconds: it allows one call in six of them, at least", "rate")


def _batched(rule: Rule) -> None:
    if not rule.batched:
        return
    if rule.algorithm != "fixed_window":
        raise InvalidRule("only a fixed window can be charged in batches: of an hour, a day or a month", "batched")
    for option, why in _ONE_BY_ONE.items():
        if getattr(rule, option):
            raise InvalidRule(why, option)


DAMPER_CHECKS: Final = (_damper, _batched)


_CONCURRENCY: Final = (
    "a concurrency rule counts 'connection' (open WebSockets), 'inflight' (requests being answered) or both"
)
_RATES: Final = "only a concurrency rule counts what is open; a rate counts what happens"
_MEANT: Final = {"connect": "connection", "connection": "connect", "request": "inflight", "inflight": "request"}


def check_rule(rule: Rule) -> None:
    """Raise InvalidRule, naming the rule, for the first option that makes no sense."""
    try:
        for check in _CHECKS:
            check(rule)
    except InvalidRule as error:
        raise InvalidRule(f"rule {str(rule.name)[:MAX_NAME]!r}: {error}", error.option) from None


def _name(rule: Rule) -> None:
    if not isinstance(rule.name, str) or not 1 <= len(rule.name) <= MAX_NAME or not rule.name.isprintable():
        raise InvalidRule(f"a name is 1 to {MAX_NAME} printable characters", "name")


def _choices(rule: Rule) -> None:
    one_of("algorithm", rule.algorithm, ALGORITHMS)
    one_of("action", rule.action, ACTIONS)
    one_of("refill", rule.refill, REFILLS)
    one_of("on_store_failure", rule.on_store_failure, FAILURE_POLICIES)
    for event in rule.events:
        one_of("events", event, EVENTS)


def _limit(rule: Rule) -> None:
    if rule.algorithm == "concurrency":
        if rule.rate is not None or rule.rates:
            raise InvalidRule("a concurrency rule has a limit, the number held at once, instead of a rate", "rate")
        whole("limit", rule.limit, 1, MAX_LIMIT)
        return
    given = (rule.rate, *rule.rates) if rule.rate is not None else rule.rates
    if not given or not all(isinstance(rate, Rate) for rate in given):
        if rule.limit is not None and not given:
            raise InvalidRule(
                "a limit without a rate is for what is held at once: add algorithm: concurrency, or write a rate "
                "instead, such as 100/min",
                "algorithm",
            )
        if rule.rate is not None:
            raise InvalidRule(f'a rate is text such as "5/min", not {rule.rate!r}', "rate")
        raise InvalidRule("it needs a rate, such as 100/min", "rate")
    if rule.limit is not None and not isinstance(rule.limit, RateLimit):
        raise InvalidRule("give a rate or a limit, not both: only a concurrency rule has a limit of its own", "limit")
    if rule.algorithm == "sliding_log" and max(rate.limit for rate in given) > MAX_LOG:
        raise InvalidRule(
            f"the limit of a sliding log is at most {MAX_LOG:,}; a strict sliding window takes any", "rate"
        )


def _rates(rule: Rule) -> None:
    if rule.rates and rule.rate is not None:
        raise InvalidRule("give rate or rates, not both", "rate")
    if len(rule.rates) > MAX_RATES or len({rate.window for rate in rule.rates}) < len(rule.rates):
        raise InvalidRule(f"rates are at most {MAX_RATES}, each with another window", "rate")


def _held(rule: Rule) -> None:
    is_concurrency = rule.algorithm == "concurrency"
    for event in rule.events:
        if (event in HELD) != is_concurrency:
            belongs = _CONCURRENCY if is_concurrency else _RATES
            other = f"; did you mean {_MEANT[event]!r}?" if event in _MEANT else ""
            raise InvalidRule(f"{belongs}, not {event!r}{other}", "events")


def _bucket(rule: Rule) -> None:
    if rule.burst is None:
        return
    if rule.algorithm not in BUCKETS:
        raise InvalidRule("only a token bucket, a leaky bucket and gcra have a burst", "burst")
    whole("burst", rule.burst, 1, MAX_LIMIT)


def _delay(rule: Rule) -> None:
    if rule.refill == "interval" and rule.algorithm != "token_bucket":
        raise InvalidRule("only a token bucket can be refilled all at once", "refill")
    if rule.action == "delay" and rule.algorithm != "leaky_bucket":
        raise InvalidRule("only a leaky bucket can delay: it is a queue that drains evenly", "action")
    if rule.max_delay is None:
        return
    # One that only records, for now, may say what it will do.
    if rule.action != "delay" and (rule.action, rule.algorithm) != ("shadow", "leaky_bucket"):
        raise InvalidRule("a longest wait (max_delay) belongs to rules that delay", "max_delay")
    if isinstance(rule.max_delay, bool) or not isinstance(rule.max_delay, (int, float)):
        raise InvalidRule(f"max_delay is a number of seconds, not {rule.max_delay!r}", "max_delay")
    if not 0 <= rule.max_delay <= MAX_WINDOW:  # also refuses NaN
        raise InvalidRule(f"max_delay is from 0 to {MAX_WINDOW} seconds, not {rule.max_delay!r}", "max_delay")


def _calendar(rule: Rule) -> None:
    given = [rate for rate in (rule.rate, *rule.rates) if rate is not None]
    if rule.timezone is None:
        return
    if rule.algorithm != "fixed_window":
        raise InvalidRule("a time zone belongs to a fixed window, which it aligns with the calendar", "timezone")
    if not isinstance(rule.timezone, str):
        raise InvalidRule(f"timezone is a name like Europe/Berlin, not {rule.timezone!r}", "timezone")
    zone(rule.timezone)
    if not all(map(period_of, given)):
        raise InvalidRule("a calendar window is one hour, day, week or month", "rate")


def _window(rule: Rule) -> None:
    whole("resolution", rule.resolution, 1, MAX_RESOLUTION)
    if rule.algorithm != "sliding_window" and (rule.resolution != 1 or rule.strict):
        option = "strict" if rule.resolution == 1 else "resolution"
        raise InvalidRule("resolution and strict belong to the sliding window", option)


def _numbers(rule: Rule) -> None:
    if not is_dotted(rule.cost):
        whole("cost", rule.cost, 1, MAX_LIMIT)
    rates = [rate for rate in (rule.rate, *rule.rates) if rate is not None]
    most = rule.burst or min((rate.limit for rate in rates), default=rule.limit)
    if most is not None and rule.factor > most:
        raise InvalidRule(
            f"one call costs {rule.factor:,}, more than the {most:,} that the rule allows at once", "cost"
        )
    if rule.algorithm == "concurrency" and (rule.cost != 1 or rule.count_denied):
        option = "count_denied" if rule.cost == 1 else "cost"
        raise InvalidRule("cost and count_denied belong to rates; a connection holds one slot", option)


def _switches(rule: Rule) -> None:
    for option in ("strict", "count_denied", "batched", "enabled"):
        if not isinstance(getattr(rule, option), bool):
            raise InvalidRule(f"{option} is True or False, not {getattr(rule, option)!r}", option)


_CHECKS: Final = (
    _name,
    _choices,
    *KEY_CHECKS,
    _limit,
    _held,
    _rates,
    _bucket,
    _delay,
    _calendar,
    _window,
    _numbers,
    _switches,
    *MATCH_CHECKS,
    *QUOTA_CHECKS,
    *DAMPER_CHECKS,
    *SOCKET_CHECKS,
    *HELD_CHECKS,
)
