"""The table of rule options: a row each. Rules, database columns, the admin's form, words and docs are made from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from django_throttle.core.algorithms import ALGORITHMS, Algorithm
from django_throttle.core.algorithms.base import listed
from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.key import AUDIENCE_KINDS, AUDIENCE_WORDS, AUDIENCES, KEY_KINDS, check_audience, joined_keys
from django_throttle.core.plans import read_plans
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW, Rate, zone


class Choice(NamedTuple):
    """A value that an option may have: its label in the admin, what a description says of it, what the help says."""

    label: str
    words: str = ""
    help: str = ""


BUCKETS: Final = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.is_bucket)
# What happens, as a noun: one of it, many of it, and how it is called in a list of different kinds.
NOUNS: Final[dict[str, tuple[str, str, str]]] = {
    "request": ("request", "requests", "HTTP requests"),
    "inflight": ("request in flight", "requests in flight", "HTTP requests in flight"),
    "connect": ("connection attempt", "connection attempts", "WebSocket connection attempts"),
    "connection": ("open WebSocket", "open WebSockets", "open WebSockets"),
    "message": ("message", "messages", "WebSocket messages"),
    "send": ("message sent", "messages sent", "WebSocket messages sent"),
    "publish": ("publication", "publications", "publications"),
    "task": ("task", "tasks", "tasks"),
}
EVENTS: Final = tuple(NOUNS)
# Events that last, which only a concurrency rule counts; the others happen at a moment.
HELD: Final = ("inflight", "connection")
# What a rate may count, and what of a call that is, in words. All but the first two are measured, and so known only
# when the call is over; "units" are what the code spends, or what the option ``measure`` says.
UNITS: Final = {
    "calls": ("Calls", ""),
    "bytes": ("Bytes that calls carry", "bytes of"),
    "queries": ("Database queries", "database queries of"),
    "rows": ("Rows read from databases", "rows read by"),
    "db_ms": ("Milliseconds of database time", "milliseconds of database time of"),
    "wall_ms": ("Milliseconds until the answer", "milliseconds of"),
    "cpu_ms": ("Milliseconds of processor time", "milliseconds of processor time of"),
    "response_bytes": ("Bytes of answers", "bytes of answers to"),
    "units": ("Units that the code spends", "units of"),
}
MEASURED: Final = tuple(UNITS)[2:]
MEAN: Final = "mean"  # of what earlier calls came to
CANCELLED: Final = "cancelled"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
MAX_RATES: Final = 10
MAX_RESOLUTION: Final = 30  # a Lua pattern has 32 captures
MAX_NAME: Final = 100
MAX_TIMES: Final = 100  # of the limit
MAX_WARNINGS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table.

    ``kind`` is one of KINDS and says how a value is read, and in which column it is stored. Algorithms that
    name it in their ``takes``, or are in ``only``, have it alone; where none is, all have it but ``never`` those.
    ``words`` is what a description says of a value that is not the default: a text, in which ``{}`` is the value, or a
    function of it.
    """

    name: str = ""
    kind: str
    default: Any = None
    initial: Any = None  # what the form of a new rule has, where that is not the default
    help: str
    label: str = ""
    group: str = ""  # the heading under which the admin has it
    choices: Mapping[str, Choice | Algorithm] = field(default_factory=dict)
    least: float = 1
    most: float = MAX_LIMIT
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    length: int = 20  # characters of the column
    shape: str = ""  # a regular expression that the column's text matches, unless it is empty
    wanted: str = ""  # what to write, for those who wrote something of another shape
    words: str | Callable[[Any], str] = ""

    def takes(self, algorithm: str) -> bool:
        """True when rules of this algorithm have the option."""
        owners = self.owners
        return algorithm in owners if owners else algorithm not in self.never

    @property
    def owners(self) -> tuple[str, ...]:
        """The algorithms that alone have the option; empty where it belongs to none of them in particular."""
        return tuple(name for name, each in ALGORITHMS.items() if name in self.only or self.name in each.takes)

    def read(self, given: object) -> Any:
        """The value that a rule has for what was given; raises InvalidRule."""
        return given if given is None and self.default is None else KINDS[self.kind](self, given)

    def describe(self, value: Any) -> str:
        """What a rule's description says of the value; empty for the default."""
        if value == self.default:
            return ""
        if self.choices:
            return self.choices[value].words
        return self.words(value) if callable(self.words) else self.words.format(value)

    def full_help(self, say: Callable[[str], str] = str) -> str:
        """The help, and that of each choice, as ``say`` says them."""
        choices = (f"{say(one.label)}: {say(one.help)}." for one in self.choices.values() if one.help)
        return " ".join([say(self.help), *choices])

    def refuse(self, algorithm: str) -> InvalidRule:
        """The error of a rule whose algorithm does not take the option."""
        title = self.name if self.label.lower() in ("", self.name) else f"{self.label.lower()} ({self.name})"
        if not self.owners:
            return InvalidRule(f"{title} does not go with {_spaced(algorithm)}: leave it out", self.name)
        return InvalidRule(f"{title} belongs to {listed(list(map(_spaced, self.owners)))} only", self.name)


def option(kind: str, default: Any = None, **row: Any) -> Any:
    """A field of a dataclass that is a row of the table; one whose default is MISSING has to be given."""
    return field(default=default, metadata={"row": Option(kind=kind, default=default, **row)})


_TABLES: Final[dict[type[Options], dict[str, Option]]] = {}


def table(of: type[Options]) -> dict[str, Option]:
    """The rows by their names."""
    if of not in _TABLES:
        rows = {each.name: each.metadata["row"] for each in fields(of) if "row" in each.metadata}
        _TABLES[of] = {name: replace(row, name=name) for name, row in rows.items()}
    return _TABLES[of]


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The nearest of the known words, as the end of a message; empty where none is near."""
    near = get_close_matches(str(word), tuple(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def is_dotted(given: object) -> bool:
    """True for a text with the shape of a path to a function: "shop.limits.tenant"."""
    return isinstance(given, str) and "." in given and all(part.isidentifier() for part in given.split("."))


def key_parts(key: str) -> tuple[str, ...]:
    """The keys that are joined by ``+``; the key itself where none are."""
    return tuple(key.split("+"))


def functions(key: str) -> tuple[str, ...]:
    """The dotted paths among the keys that are joined."""
    return tuple(part for part in key_parts(key) if is_dotted(part))


# How each kind of option is read: the value for what was given, or InvalidRule.


def _one_of(option: str, given: object, known: Collection[str]) -> str:
    if not isinstance(given, str) or given not in known:
        hint = did_you_mean(given, known)
        raise InvalidRule(f"{option} must be one of {', '.join(known)}, not {given!r}{hint}", option)
    return given


def _whole(row: Option, given: object, otherwise: str = "") -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not row.least <= given <= row.most:
        allowed = f"a whole number from {row.least:,} to {row.most:,}{otherwise}"
        raise InvalidRule(f"{row.name} must be {allowed}, not {given!r}", row.name)
    return given


def _number(row: Option, given: object) -> float:
    hint = ""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if row.least <= given <= row.most:  # nor NaN
            return float(given)
        hint = f"; {given:g} % is {given / 100:g}" if row.most == MAX_TIMES < given <= MAX_TIMES * 100 else ""
    raise InvalidRule(f"{row.name} must be a number from {row.least} to {row.most}, not {given!r}{hint}", row.name)


def _switch(row: Option, given: object) -> bool:
    if not isinstance(given, bool):
        raise InvalidRule(f"{row.name} must be True or False, not {given!r}", row.name)
    return given


def _name(row: Option, given: object) -> str:
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_NAME or not given.isprintable():
        raise InvalidRule(f"a name must have 1 to {MAX_NAME} printable characters", row.name)
    return given


def _cost(row: Option, given: object, otherwise: str = " or the path of a function") -> int | str:
    return given if isinstance(given, str) and is_dotted(given) else _whole(row, given, otherwise)


def _reserve(row: Option, given: object) -> int | str:
    return given if given in (MEAN, "") else _cost(row, given, f", {MEAN!r} or the path of a function")


def _path(row: Option, given: object) -> str:
    if given == "" or is_dotted(given):
        return str(given)
    raise InvalidRule(f"{row.name} must be the path of a function, such as shop.limits.rows, not {given!r}", row.name)


def _zone(row: Option, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidRule(f"{row.name} must be a name like Europe/Berlin, not {given!r}", row.name)
    zone(given)
    return given


def _key(row: Option, given: object) -> str:
    if isinstance(given, str) and is_dotted(given):
        return given  # the rulebook imports functions
    if not isinstance(given, str) or "+" not in given:
        return _one_of(row.name, given, KEY_KINDS)
    joined, found = joined_keys(), key_parts(given)
    for part in found:
        if part not in joined and not is_dotted(part):
            allowed = f"{', '.join(joined)} and paths of functions"
            raise InvalidRule(f"a key must join {allowed}, not {part!r}{did_you_mean(part, joined)}", row.name)
    if len(set(found)) < len(found):
        raise InvalidRule(f"the key {given!r} has one of its parts twice", row.name)
    return given


def _rate(row: Option, given: object) -> Rate:
    if not isinstance(given, Rate):
        raise InvalidRule(f'a rate must be text such as "5/min", not {given!r}', row.name)
    return given


def sequence(option: str, given: object) -> tuple[Any, ...]:
    """The given list or tuple as a tuple; raises InvalidRule for anything else."""
    if not isinstance(given, (list, tuple)):
        raise InvalidRule(f"{option} must be a list, not {given!r}", option)
    return tuple(given)


def names(option: str, given: object) -> tuple[str, ...]:
    """A tuple of non-empty texts; raises InvalidRule for a bare text, which would be read letter by letter."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidRule(f"{option} must be a list of names, not {given!r}", option)
    found = tuple(given)
    if not found or not all(isinstance(name, str) and name.strip() for name in found):
        raise InvalidRule(f"{option} needs at least one name and no empty ones, not {given!r}", option)
    for name in found:
        if "," in name or name != name.strip():
            raise InvalidRule(f"{option}: a name has no comma and no space around it, unlike {name!r}", option)
    return found


def _names(row: Option, given: object) -> tuple[str, ...]:
    return () if given in ((), []) and row.default == () else names(row.name, given)


def _methods(row: Option, given: object) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.upper() for name in _names(row, given)))
    for name in found:
        if name not in METHODS:
            raise InvalidRule(f"there is no method {name!r}{did_you_mean(name, METHODS)}", row.name)
    return found


def _audience(row: Option, given: object) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_names(row, given)))
    for entry in found:
        check_audience(entry, row.name)
    return found


def _plans(row: Option, given: object) -> tuple[str, ...]:
    def check(who: str) -> None:
        if not is_dotted(who.partition(":")[0]) or who.endswith(":"):
            check_audience(who, row.name)

    return read_plans(given, check)


def _shares(row: Option, given: object) -> tuple[float, ...]:
    found = sequence(row.name, given)
    for share in found:
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not (is_number and 0 < share <= MAX_TIMES):
            hint = f" ({share:g} % is {share / 100:g})" if is_number and 0 < share <= 1000 else " (0.8 is 80 %)"
            message = f"{row.name} must have shares of the limit, above 0 and up to {MAX_TIMES}{hint}, not {share!r}"
            raise InvalidRule(message, row.name)
    if len(found) > MAX_WARNINGS:
        raise InvalidRule(f"{row.name} must have at most {MAX_WARNINGS} shares", row.name)
    return tuple(sorted(set(map(float, found))))


def _statuses(row: Option, given: object) -> tuple[int, ...]:
    found = sequence(row.name, given)
    for status in found:
        if type(status) is not int or not 100 <= status <= 599:
            raise InvalidRule(f"{row.name} must have HTTP statuses, from 100 to 599, not {status!r}", row.name)
    return tuple(sorted(set(found)))


def _results(row: Option, given: object) -> tuple[str, ...]:
    found = tuple(str(one) for one in sequence(row.name, given))
    for one in found:
        if one != CANCELLED and not RESULT.fullmatch(one):
            wanted = f'HTTP statuses such as 304, classes such as "5xx", or "{CANCELLED}"'
            raise InvalidRule(f"{row.name} must have {wanted}, not {one!r}", row.name)
    return tuple(sorted(set(found)))


KINDS: Final[dict[str, Callable[[Option, object], Any]]] = {
    "name": _name,
    "switch": _switch,
    "choice": lambda row, given: _one_of(row.name, given, row.choices),
    "whole": _whole,
    "number": _number,
    "rate": _rate,
    "rates": lambda row, given: sequence(row.name, given),
    "zone": _zone,
    "cost": _cost,
    "reserve": _reserve,
    "path": _path,
    "key": _key,
    "names": _names,
    "events": lambda row, given: tuple(_one_of(row.name, event, EVENTS) for event in names(row.name, given)),
    "methods": _methods,
    "audience": _audience,
    "plans": _plans,
    "shares": _shares,
    "statuses": _statuses,
    "results": _results,
}


# What a description says of one option's value.


def say_scopes(names: tuple[str, ...]) -> str:
    """Where a rule applies: "everywhere", or the scopes' names."""
    return "everywhere" if "*" in names else listed(list(dict.fromkeys(names)))


def _on_scopes(names: tuple[str, ...]) -> str:
    if "*" in names:
        return ""
    several = len(set(names)) > 1 or any(sign in names[0] for sign in "*?[")
    return f"on {say_scopes(names)}" + (" together" if several else "")


def _only_methods(names: tuple[str, ...]) -> str:
    also = ["HEAD"] if "GET" in names and "HEAD" not in names else []  # GET is answered for HEAD too
    return f"only {listed([*names, *also])}"


def _only_for(entries: tuple[str, ...]) -> str:
    said = [AUDIENCE_WORDS.get(entry) or "the {} {}".format(*entry.split(":", 1)) for entry in entries]
    return f"only for {listed(said)}"


def _each_counting(cost: int | str) -> str:
    return f"each counting {cost:,}" if isinstance(cost, int) else f"each counting as much as {cost} says"


def _reserving(reserve: int | str) -> str:
    if isinstance(reserve, int):
        return f"{reserve:,} reserved beforehand"
    return "the usual reserved beforehand" if reserve == MEAN else f"as much reserved beforehand as {reserve} says"


RESULT: Final = re.compile("[1-5]([0-9][0-9]|xx)")
# The parts of shapes, for the database.
_LIST: Final = "^({0})(,({0}))*$"
_AUDIENCE: Final = "|".join([*AUDIENCES, *(f"{kind}:[^ ,]([^,]*[^ ,])?" for kind in AUDIENCE_KINDS)])
_RATE: Final = "[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))"
RATE_SHAPE: Final = f"^{_RATE}(, {_RATE})*$"
RATE_WANTED: Final = "a rate like 100/min, 5/10m, 10/s or 1000/day"

WHO: Final = "Who and what"
AMOUNT: Final = "How much"
THEN: Final = "What happens then"
GROUPS: Final = (AMOUNT, WHO, THEN)  # in the admin's order


@dataclass(frozen=True, slots=True)
class Options:
    """The table, in the order of a rule's description; each field's metadata is its row.

    A subclass that has more fields is a table of more rows.
    """

    # fmt: off
    name: str = option(
        "name", MISSING, length=MAX_NAME,
        help="Short and telling: it appears in logs and in refusals. A rule in settings with the same name is replaced "
        "by this one.",
    )
    rate: Rate | None = option(
        "rate", group=AMOUNT, never=("concurrency",), length=300, shape=RATE_SHAPE,
        wanted=RATE_WANTED,
        help="Rate, for example 100/min, 5/10m, 10/s or 1000/day. Several with commas in between must all be kept: "
        "10/s, 1000/day. Leave it empty for concurrency.",
    )
    _: KW_ONLY
    key: str = option(
        "key", "user_or_ip", group=WHO, label="Count by", length=200,
        help="Who has a budget of their own. “User” leaves out visitors who are not logged in; “user or address” "
        "counts those by their address.",
    )
    scopes: tuple[str, ...] = option(
        "names", ("*",), group=WHO, length=1000, words=_on_scopes,
        help="What the rule covers, with commas in between: the throttle_scope of views and consumers, or the name of "
        "a route. * stands for any text, so * alone is everything. All of them draw on one budget.",
    )
    events: tuple[str, ...] = option(
        "events", (), initial=("request",), group=WHO, length=100,
        help="What is counted. Several kinds draw on one budget.",
    )
    methods: tuple[str, ...] = option(
        "methods", (), group=WHO, length=100, words=_only_methods, shape=_LIST.format("|".join(METHODS)),
        wanted="HTTP methods, such as POST, PUT",
        help="Only requests of these HTTP methods, with commas in between: POST, PUT. GET covers HEAD too. Empty: "
        "every method.",
    )
    audience: tuple[str, ...] = option(
        "audience", (), group=WHO, label="Audience", length=1000, words=_only_for, shape=_LIST.format(_AUDIENCE),
        wanted="the audience: anonymous, authenticated, staff, group:NAME, tenant:NAME",
        help="Only calls of these: anonymous, authenticated, staff, group:editors, tenant:acme. Empty: everybody.",
    )
    algorithm: str = option(
        "choice", "sliding_window", group=AMOUNT, choices=ALGORITHMS, help="How calls are counted.",
        shape="^[a-z][a-z0-9_]*$", wanted="the name of an algorithm",  # which there are is not the database's to know
    )
    rates: tuple[Rate, ...] = option(
        "rates", (), never=("concurrency", "damper"),
        help="Several rates at once instead of one, all to be kept. At most ten, each with another window.",
    )
    limit: int | None = option(
        "whole", group=AMOUNT, help="For concurrency: how many may be open at once."
    )
    burst: int | None = option(
        "whole", group=AMOUNT,
        help="For the buckets and GCRA: the most that may come at once after a rest, or that may wait when calls are "
        "delayed, where no longest queue is given. Empty: the rate's number.",
    )
    plans: tuple[str, ...] = option(
        "plans", (), group=AMOUNT, label="Plans", never=("damper",), length=2000,
        shape="^[^=\n]+ = [^=\n]+(\n[^=\n]+ = [^=\n]+)*$", wanted="a plan a line, such as group:premium = 1000/min",
        help="Other limits for some, a plan a line: group:premium = 1000/min. The first that matches replaces the "
        "rate; what was used counts on. For an audience, or what a function returns: shop.limits.plan:pro.",
    )
    refill: str = option(
        "choice", "continuous", group=AMOUNT,
        choices={"continuous": Choice("Evenly"), "interval": Choice("All at once")},
        help="For the token bucket: evenly, or all of the rate at once when its time has passed.",
    )
    resolution: int = option(
        "whole", 1, group=AMOUNT, most=MAX_RESOLUTION,
        help="For the sliding window: in how many steps the window moves on. More steps follow the rate more closely "
        "and take a little more memory; 1 is fine for most rules.",
    )
    strict: bool = option(
        "switch", False, group=AMOUNT,
        help="For the sliding window: never let more than the rate through in any window, at the price of refusing "
        "some calls early.",
    )
    timezone: str | None = option(
        "zone", group=AMOUNT, label="Time zone", length=100,
        help="For a fixed window of an hour, day, week or month: where it begins, such as Europe/Berlin. Empty: "
        "windows are counted from midnight UTC.",
    )
    estimator: str = option(
        "choice", "fast", group=AMOUNT,
        choices={"fast": Choice("Fast"), "average": Choice("Average of 24 seconds")},
        help="For the damper: how it finds out how much is attempted. Fast reacts within seconds; the average of 24 "
        "seconds takes longer and wavers less.",
    )
    unit: str = option(
        "choice", "calls", group=AMOUNT, never=("concurrency",),
        choices={name: Choice(label) for name, (label, _) in UNITS.items()},
        help="What the rate counts: calls, the bytes that requests and WebSocket messages carry, or what a call has "
        "used, which is known and corrected when it is over.",
    )
    reserve: int | str = option(
        "reserve", "", group=AMOUNT, label="Reserve", never=("concurrency", "damper"), length=200, least=0,
        words=_reserving,
        shape="^(mean|0|[1-9][0-9]{0,14}|[^.,]+([.][^.,]+)+)$",
        wanted="a whole number, mean, or the path of a function",
        help="For what is measured: how much of the budget a call takes beforehand. A number, the path of a function "
        "of the request, or mean: as much as earlier calls came to on average. Empty: 1.",
    )
    measure: str = option(
        "path", "", group=AMOUNT, label="Measured by", never=("concurrency", "damper"), length=200,
        words="measured by {}", shape="^[^.,]+([.][^.,]+)+$", wanted="the path of a function",
        help="For units: the path of a function of the request and the response that says how many the call came to. "
        "Empty: those that the code spends.",
    )
    cost: int | str = option(
        "cost", 1, group=AMOUNT, never=("concurrency",), length=200, words=_each_counting,
        shape="^([1-9][0-9]{0,14}|[^.,]+([.][^.,]+)+)$", wanted="a whole number, or the path of a function",
        help="How much of the budget one call takes, where the code says nothing else: a number, or the path of a "
        "function that a rule in settings has too. 1 where the unit is measured: that is the cost.",
    )
    count_on: tuple[int, ...] = option(
        "statuses", (), group=AMOUNT, label="Count only answers", never=("concurrency", "damper"), length=300,
        words=lambda statuses: f"counting only answers of status {listed(list(map(str, statuses)))}",
        shape=_LIST.format("[1-5][0-9][0-9]"), wanted="HTTP statuses, such as 401, 403",
        help="Only requests that are answered with one of these HTTP statuses use up the budget: 401, 403 for failed "
        "logins. Empty: all requests do.",
    )
    refund_on: tuple[str, ...] = option(
        "results", (), group=AMOUNT, label="Refund when it ends as", never=("concurrency", "damper"), length=300,
        words=lambda results: f"not counting what ends as {listed(list(results))}",
        shape=_LIST.format("[1-5]([0-9][0-9]|xx)|cancelled"),
        wanted="HTTP statuses, such as 304, 5xx, cancelled",
        help="Requests that end so use up nothing: 304, 5xx, or cancelled by the client. Empty: all count.",
    )
    count_denied: bool = option(
        "switch", False, group=AMOUNT, label="Count refused calls", never=("concurrency", "damper"),
        words="refused ones count too",
        help="Refused calls use up the budget too: whoever keeps trying stays locked out. Use it for logins.",
    )
    prepaid: bool = option(
        "switch", False, group=AMOUNT, label="Buy ahead", never=("concurrency", "damper"),
        words="bought ahead by each process",
        help="For a budget that many calls share: each server process buys some of it ahead, spends that without "
        "asking Redis, and gives back what is left within a second. Never more than the limit passes.",
    )
    enforce_at: float = option(
        "number", 1.0, group=THEN, label="Refuse at", never=("concurrency", "damper"), most=MAX_TIMES,
        words="tolerated up to {:,g} times as much",
        help="How many times the limit is used up before calls are refused. 1: at the limit itself. 2.5: at two and a "
        "half times; in between, calls pass and the client is told that nothing is left.",
    )
    warn_at: tuple[float, ...] = option(
        "shares", (), group=THEN, label="Warn at", never=("concurrency", "damper"), length=100,
        words=lambda shares: f"warned of at {listed([f'{share * 100:,g} %' for share in shares])}",
        shape=_LIST.format("[0-9]{1,3}([.][0-9]+)?"), wanted="shares of the limit, such as 80 %, 100 %",
        help="Tell the site when use reaches these shares of the limit: 80 %, 100 %. Each is told once in a window, "
        "for each of those who have a budget; what is done then is the site's own code. Empty: never.",
    )
    action: str = option(
        "choice", "reject", group=THEN,
        choices={
            "reject": Choice("Refuse"),
            "shadow": Choice("Only record", "recorded but never refused"),
            "delay": Choice("Delay"),
            "defer": Choice("Do it later"),
        },
        help="“Only record” lets everything through, and what would have been refused is recorded in the log: the way "
        "to try a new rule out. “Delay” is for the leaky bucket: a call waits for its turn, then passes. “Do it later” "
        "too: where a view names a task for it, the client is answered at once and the work waits for its turn.",
    )
    max_queue: int | None = option(
        "whole", group=THEN, label="Longest queue",
        help="For “delay” and “do it later”: how many calls may wait, in units of cost; one more is refused. Not "
        "together with a burst. Empty: the burst.",
    )
    max_delay: float | None = option(
        "number", group=THEN, label="Longest wait", least=0, most=MAX_WINDOW,
        help="For “delay”: how many seconds a call waits at most; one that would wait longer is refused.",
    )
    at_limit: str = option(
        "choice", "reject", group=THEN, label="When full",
        choices={
            "reject": Choice("Refuse the newcomer"),
            "evict_oldest": Choice("Close the oldest", "a new WebSocket closes the oldest"),
            "evict_idle": Choice(
                "Close the one silent for longest", "a new WebSocket closes the one silent for longest"
            ),
        },
        help="For concurrency: which WebSocket is closed when one more is opened than may be. It is told why. "
        "Requests in flight are never cut off.",
    )
    on_store_failure: str = option(
        "choice", "local", group=THEN, label="If Redis is down",
        choices={
            "local": Choice("Count in each process"),
            "allow": Choice("Let through", "let through while the store is away"),
            "deny": Choice("Refuse (503)", "refused while the store is away"),
        },
        help="What happens while Redis does not answer. “Count in each process” divides the limit by the number of "
        "server processes.",
    )
    enabled: bool = option("switch", True, words="switched off", help="Untick to suspend the rule without losing it.")
    # fmt: on
