"""The table of rule options. Rules, database rows, the admin's form, descriptions and docs are made from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from django_throttle.core import option_words
from django_throttle.core.algorithms import ALGORITHMS, Algorithm
from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.key import KEY_KINDS, check_audience, joined_keys
from django_throttle.core.option_words import MEAN, NOUNS, UNITS, in_percent
from django_throttle.core.plans import read_plans
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW, Rate, zone
from django_throttle.core.scopes import checked_scopes
from django_throttle.core.texts import gettext_lazy, gettext_noop, in_sentence, listed, sentences


class Choice(NamedTuple):
    """A value that an option may have: its label in the admin, what a description says of it, what the help says."""

    label: str
    words: str = ""
    help: str = ""


BUCKETS: Final = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.is_bucket)
EVENTS: Final = tuple(NOUNS)
# Events that last, which only a concurrency rule counts; the others happen at a moment.
HELD: Final = ("inflight", "connection")
MEASURED: Final = tuple(UNITS)[2:]
CANCELLED: Final = "cancelled"
# HTTP's own methods, and those of WebDAV and others that are registered:
# https://www.iana.org/assignments/http-methods/http-methods.xhtml
METHODS: Final = (
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY", "TRACE", "CONNECT",
    "ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "MERGE", "MKACTIVITY",
    "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PROPFIND", "PROPPATCH", "REBIND",
    "REPORT", "SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
)  # fmt: skip
MAX_RATES: Final = 10
MAX_RESOLUTION: Final = 30  # a Lua pattern has 32 captures
MAX_NAME: Final = 100
MAX_TIMES: Final = 100  # of the limit
MAX_WARNINGS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table.

    ``kind`` is one of KINDS and says how a value is read, and which field of a form it has. Algorithms that
    name it in their ``takes``, or are in ``only``, have it alone; where none is, all have it but ``never`` those.
    ``words`` is what a description says of a value that is not the default: a text, in which ``{}`` is the value, or a
    function of it.
    """

    name: str = ""
    kind: str
    default: object = None
    initial: object = None  # what the form of a new rule has, where that is not the default
    help: str
    label: str = ""
    group: str = ""  # the heading under which the admin has it
    choices: Mapping[str, Choice | Algorithm] = field(default_factory=dict)
    least: float = 1
    most: float = MAX_LIMIT
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    words: str | Callable[[Any], str] = ""

    @property
    def title(self) -> str:
        """The label, or the name in words where it has none."""
        return self.label or self.name.replace("_", " ")

    def takes(self, algorithm: str) -> bool:
        """True when rules of this algorithm have the option."""
        owners = self.owners
        return algorithm in owners if owners else algorithm not in self.never

    @property
    def owners(self) -> tuple[str, ...]:
        """The algorithms that alone have the option; empty where it belongs to none of them in particular."""
        return tuple(name for name, each in ALGORITHMS.items() if name in self.only or self.name in each.takes)

    def read(self, given: object) -> object:
        """The value that a rule has for what was given; raises InvalidRule."""
        return given if given is None and self.default is None else KINDS[self.kind](self, given)

    def describe(self, value: Any) -> str:
        """What a rule's description says of the value; empty for the default."""
        if value == self.default:
            return ""
        words = self.choices[value].words if self.choices else self.words
        return words(value) if callable(words) else gettext_lazy(words, value)

    def full_help(self) -> str:
        """The help, and that of each choice."""
        pattern = gettext_noop("{label}: {help}.")
        choices = [(gettext_lazy(one.label), gettext_lazy(one.help)) for one in self.choices.values() if one.help]
        said = [gettext_lazy(pattern, label=label, help=text) for label, text in choices]
        return sentences([gettext_lazy(self.help), *said])

    def refuse(self, algorithm: str) -> InvalidRule:
        """The error of a rule whose algorithm does not take the option."""
        title = self.name
        if self.label.lower() not in ("", self.name):
            title = gettext_lazy("{label} ({name})", label=in_sentence(self.label), name=self.name)
        if not self.owners:
            fault = gettext_lazy(
                "{title} does not go with {other}: leave it out", title=title, other=_spaced(algorithm)
            )
        else:
            owners = listed(list(map(_spaced, self.owners)))
            fault = gettext_lazy("{title} belongs to {owners} only", title=title, owners=owners)
        return InvalidRule(fault, self.name)


def option(kind: str, default: object = None, **row: Any) -> Any:
    """A field of a dataclass that is a row of the table; one whose default is MISSING has to be given."""
    return field(default=default, metadata={"row": Option(kind=kind, default=default, **row)})


_TABLES: Final[dict[type[Options], dict[str, Option]]] = {}


def table(of: type[Options]) -> dict[str, Option]:
    """The rows by their names."""
    if of not in _TABLES:
        rows = {each.name: each.metadata["row"] for each in fields(of) if "row" in each.metadata}
        _TABLES[of] = {name: replace(row, name=name) for name, row in rows.items()}
    return _TABLES[of]


def check_names(of: type[Options], options: object, rule: str = "") -> None:
    """Raise InvalidRule unless ``options`` is a mapping whose names are all in the table."""
    if not isinstance(options, Mapping):
        pattern = gettext_noop('options must be a dictionary such as {{"rate": "100/min"}}, not {kind}')
        raise InvalidRule(gettext_lazy(pattern, kind=type(options).__name__), rule=rule)
    known = [name for name in table(of) if name != "name"]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidRule(gettext_lazy("there is no option {option!r}{hint}", option=name, hint=hint), rule=rule)


def stored_options(of: type[Options], options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that differ from their defaults, as JSON has them.

    Raise InvalidRule for one that is not in the table, or whose value cannot be read.
    """
    check_names(of, options)
    rows = table(of)
    values = {name: rows[name].read(value) for name, value in options.items()}
    return {name: as_json(value) for name, value in values.items() if value != rows[name].default}


def as_json(value: object) -> object:
    """Return the value of an option as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def _spaced(name: str) -> str:
    return in_sentence(ALGORITHMS[name].label) if name in ALGORITHMS else name.replace("_", " ")


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The nearest of the known words, as the end of a message; empty where none is near."""
    near = get_close_matches(str(word), tuple(known), n=1)
    return gettext_lazy("; did you mean {near!r}?", near=near[0]) if near else ""


def misspelt(names: Iterable[str], valid: Collection[str], cutoff: float) -> Iterator[tuple[str, str]]:
    """Yield each name that is nearly a valid one, and that one.

    A name that goes on where a valid one ends, such as ``throttle_scope_map``, is no misspelling.
    """
    continued = tuple([f"{each}_" for each in valid])
    for name in names:
        near = get_close_matches(name, valid, n=1, cutoff=cutoff)
        if near and name not in valid and not name.startswith(continued):
            yield name, near[0]


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
        pattern = gettext_noop("{option} must be one of {known}, not {given!r}{hint}")
        raise InvalidRule(gettext_lazy(pattern, option=option, known=", ".join(known), given=given, hint=hint), option)
    return given


def _whole(row: Option, given: object, otherwise: str = "") -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not row.least <= given <= row.most:
        pattern = gettext_noop("{name} must be a whole number from {least:,} to {most:,}{otherwise}, not {given!r}")
        told = {"name": row.name, "least": row.least, "most": row.most, "otherwise": otherwise, "given": given}
        raise InvalidRule(gettext_lazy(pattern, **told), row.name)
    return given


def _number(row: Option, given: object) -> float:
    hint = ""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if row.least <= given <= row.most:  # nor NaN
            return float(given)
        hint = in_percent(given) if row.most == MAX_TIMES < given <= MAX_TIMES * 100 else ""
    pattern = gettext_noop("{name} must be a number from {least} to {most}, not {given!r}{hint}")
    told = {"name": row.name, "least": row.least, "most": row.most, "given": given, "hint": hint}
    raise InvalidRule(gettext_lazy(pattern, **told), row.name)


def _switch(row: Option, given: object) -> bool:
    if not isinstance(given, bool):
        fault = gettext_lazy("{name} must be True or False, not {given!r}", name=row.name, given=given)
        raise InvalidRule(fault, row.name)
    return given


def _name(row: Option, given: object) -> str:
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_NAME or not given.isprintable():
        raise InvalidRule(gettext_lazy("a name must have 1 to {most} printable characters", most=MAX_NAME), row.name)
    return given


OR_FUNCTION: Final = gettext_lazy(" or the path of a function")


def _cost(row: Option, given: object, otherwise: str = OR_FUNCTION) -> int | str:
    return given if isinstance(given, str) and is_dotted(given) else _whole(row, given, otherwise)


def _reserve(row: Option, given: object) -> int | str:
    otherwise = gettext_lazy(", {mean!r} or the path of a function", mean=MEAN)
    return given if given in (MEAN, "") else _cost(row, given, otherwise)


def _path(row: Option, given: object) -> str:
    if given == "" or is_dotted(given):
        return str(given)
    pattern = gettext_noop("{name} must be the path of a function, such as shop.limits.rows, not {given!r}")
    raise InvalidRule(gettext_lazy(pattern, name=row.name, given=given), row.name)


def _zone(row: Option, given: object) -> str:
    if not isinstance(given, str):
        fault = gettext_lazy("{name} must be a name like Europe/Berlin, not {given!r}", name=row.name, given=given)
        raise InvalidRule(fault, row.name)
    zone(given)
    return given


def _key(row: Option, given: object) -> str:
    if not isinstance(given, str):
        pattern = gettext_noop('{name} must be text such as "ip", or "ip+user" for both together, not {given!r}')
        raise InvalidRule(gettext_lazy(pattern, name=row.name, given=given), row.name)
    if is_dotted(given):
        return given  # the rulebook imports functions
    if "+" not in given:
        return _one_of(row.name, given, KEY_KINDS)
    joined, found = joined_keys(), key_parts(given)
    for part in found:
        if part not in joined and not is_dotted(part):
            pattern = gettext_noop("a key must join {known} and paths of functions, not {part!r}{hint}")
            told = {"known": ", ".join(joined), "part": part, "hint": did_you_mean(part, joined)}
            raise InvalidRule(gettext_lazy(pattern, **told), row.name)
    if len(set(found)) < len(found):
        raise InvalidRule(gettext_lazy("the key {given!r} has one of its parts twice", given=given), row.name)
    return given


def _rate(row: Option, given: object) -> Rate:
    if not isinstance(given, Rate):
        more = gettext_lazy('; several go into rates: ["10/s", "1000/day"]') if isinstance(given, (list, tuple)) else ""
        pattern = gettext_noop('a rate must be text such as "5/min", not {given!r}{more}')
        raise InvalidRule(gettext_lazy(pattern, given=given, more=more), row.name)
    return given


EXAMPLES: Final = {
    "scopes": '["search"]', "events": '["request"]', "methods": '["POST"]', "audience": '["staff"]',
    "rates": '["10/s", "1000/day"]', "warn_at": "[0.8, 1.0]", "count_on": "[401, 403]", "refund_on": '[304, "5xx"]',
}  # fmt: skip


def _list_fault(option: str, given: object) -> InvalidRule:
    pattern = gettext_noop("{option} must be a list such as {example}, not {given!r}")
    example = EXAMPLES.get(option, '["api"]')
    return InvalidRule(gettext_lazy(pattern, option=option, example=example, given=given), option)


def sequence(option: str, given: object) -> tuple[Any, ...]:
    """The given list or tuple as a tuple; raises InvalidRule for anything else."""
    if not isinstance(given, (list, tuple)):
        raise _list_fault(option, given)
    return tuple(given)


def names(option: str, given: object) -> tuple[str, ...]:
    """A tuple of non-empty texts; raises InvalidRule for a bare text, which would be read letter by letter."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise _list_fault(option, given)
    found = tuple(given)
    if not all(isinstance(name, str) for name in found):
        raise _list_fault(option, given)
    if not found or not all(name.strip() for name in found):
        pattern = gettext_noop("{option} needs at least one name and no empty ones, not {given!r}")
        raise InvalidRule(gettext_lazy(pattern, option=option, given=given), option)
    for name in found:
        if "," in name or name != name.strip():
            pattern = gettext_noop("{option}: a name has no comma and no space around it, unlike {name!r}")
            raise InvalidRule(gettext_lazy(pattern, option=option, name=name), option)
    return found


def _names(row: Option, given: object) -> tuple[str, ...]:
    return () if given in ((), []) and row.default == () else names(row.name, given)


def _methods(row: Option, given: object) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.upper() for name in _names(row, given)))
    for name in found:
        if name not in METHODS:
            fault = gettext_lazy("there is no method {name!r}{hint}", name=name, hint=did_you_mean(name, METHODS))
            raise InvalidRule(fault, row.name)
    return found


def _audience(row: Option, given: object) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_names(row, given)))
    for entry in found:
        check_audience(entry, row.name)
    return found


def _plans(row: Option, given: object) -> tuple[str, ...]:
    def check(caller: str) -> None:
        path, colon, name = caller.partition(":")
        if not is_dotted(path) or (colon and name.strip() != name) or caller.endswith(":"):
            check_audience(caller, row.name)

    return read_plans(given, check)


def _shares(row: Option, given: object) -> tuple[float, ...]:
    found = sequence(row.name, given)
    for share in found:
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not (is_number and 0 < share <= MAX_TIMES):
            pattern = gettext_noop(
                "{name} must have shares of the limit, above 0 and up to {most} ({hint}), not {given!r}"
            )
            hint = gettext_lazy("0.8 is 80 %")
            if is_number and 0 < share <= 1000:
                # No directive begins at the %, xgettext:no-python-format
                hint = gettext_lazy("{percent:g} % is {share:g}", percent=share, share=share / 100)
            raise InvalidRule(gettext_lazy(pattern, name=row.name, most=MAX_TIMES, hint=hint, given=share), row.name)
    if len(found) > MAX_WARNINGS:
        fault = gettext_lazy("{name} must have at most {most} shares", name=row.name, most=MAX_WARNINGS)
        raise InvalidRule(fault, row.name)
    return tuple(sorted(set(map(float, found))))


def _statuses(row: Option, given: object) -> tuple[int | str, ...]:
    found = sequence(row.name, given)
    for status in found:
        is_class = isinstance(status, str) and STATUS_CLASS.fullmatch(status)
        if not is_class and (type(status) is not int or not 100 <= status <= 599):
            pattern = gettext_noop(
                '{name} must have HTTP statuses, from 100 to 599, or classes such as "4xx", not {status!r}'
            )
            raise InvalidRule(gettext_lazy(pattern, name=row.name, status=status), row.name)
    return tuple(sorted(set(found), key=str))


def _results(row: Option, given: object) -> tuple[str, ...]:
    found = tuple(str(one) for one in sequence(row.name, given))
    for one in found:
        if one != CANCELLED and not RESULT.fullmatch(one):
            pattern = gettext_noop(
                '{name} must have HTTP statuses such as 304, classes such as "5xx", or "{cancelled}", not {given!r}'
            )
            raise InvalidRule(gettext_lazy(pattern, name=row.name, cancelled=CANCELLED, given=one), row.name)
    return tuple(sorted(set(found)))


KINDS: Final[dict[str, Callable[[Option, object], object]]] = {
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
    "scopes": lambda row, given: checked_scopes(names(row.name, given)),
    "events": lambda row, given: tuple(_one_of(row.name, event, EVENTS) for event in names(row.name, given)),
    "methods": _methods,
    "audience": _audience,
    "plans": _plans,
    "shares": _shares,
    "statuses": _statuses,
    "results": _results,
}


RESULT: Final = re.compile("[1-5]([0-9][0-9]|xx)")
STATUS_CLASS: Final = re.compile("[1-5]xx")
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
        "name", MISSING,
        help="Short and telling: it appears in logs and in refusals. A rule in settings with the same name is replaced "
        "by this one.",
    )
    rate: Rate | None = option(
        "rate", group=AMOUNT, never=("concurrency",),
        help="Rate, for example 100/min, 5/10m, 10/s or 1000/day. Several with commas in between must all be kept: "
        "10/s, 1000/day. Leave it empty for concurrency.",
    )
    _: KW_ONLY
    key: str = option(
        "key", "user_or_ip", group=WHO, label="Count by",
        help="Who has a budget of their own. “User” leaves out visitors who are not logged in; “user or address” "
        "counts those by their address.",
    )
    scopes: tuple[str, ...] = option(
        "scopes", ("*",), group=WHO, words=option_words.on_scopes,
        help="What the rule covers, with commas in between: the throttle_scope of views and consumers, or the name of "
        "a route. * stands for any text, so * alone is everything. ! leaves something out: *, !health is everything "
        "but health. All of them draw on one budget.",
    )
    events: tuple[str, ...] = option(
        "events", (), initial=("request",), group=WHO,
        help="What is counted. Several kinds draw on one budget.",
    )
    methods: tuple[str, ...] = option(
        "methods", (), group=WHO, words=option_words.only_methods,
        help="Only requests of these HTTP methods, with commas in between: POST, PUT. GET covers HEAD too. Empty: "
        "every method.",
    )
    audience: tuple[str, ...] = option(
        "audience", (), group=WHO, label="Audience", words=option_words.only_for,
        help="Only calls of these: anonymous, authenticated, staff, group:editors, tenant:acme. Empty: everybody.",
    )
    algorithm: str = option(
        "choice", "sliding_window", group=AMOUNT, choices=ALGORITHMS, help="How calls are counted.",
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
        "plans", (), group=AMOUNT, label="Plans", never=("damper",),
        help="Other limits for some, a plan a line: group:premium = 1000/min. The first that matches replaces the "
        "rate; what was already used still counts. For an audience, or what a function returns: shop.limits.plan:pro.",
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
        "zone", group=AMOUNT, label="Time zone",
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
        "reserve", "", group=AMOUNT, label="Reserve", never=("concurrency", "damper"), least=0,
        words=option_words.reserving,
        help="For what is measured: how much of the budget a call takes beforehand. A number, the path of a function "
        "of the request, or mean: as much as earlier calls came to on average. Empty: 1.",
    )
    measure: str = option(
        "path", "", group=AMOUNT, label="Measured by", never=("concurrency", "damper"),
        words="measured by {}",
        help="For units: the path of a function of the request and the response that says how many the call came to. "
        "Empty: those that the code spends.",
    )
    cost: int | str = option(
        "cost", 1, group=AMOUNT, never=("concurrency",), words=option_words.each_counting,
        help="How much of the budget one call takes, where the code says nothing else: a number, or the path of a "
        "function that a rule in settings has too. 1 where the unit is measured: that is the cost.",
    )
    count_on: tuple[int | str, ...] = option(
        "statuses", (), group=AMOUNT, label="Count only answers", never=("concurrency", "damper"),
        words=option_words.counting_only,
        help="Only requests that are answered with one of these HTTP statuses use up the budget: 401, 403 for failed "
        "logins, or 4xx for all mistakes. Empty: all requests do.",
    )
    refund_on: tuple[str, ...] = option(
        "results", (), group=AMOUNT, label="Refund when it ends as", never=("concurrency", "damper"),
        words=option_words.not_counting,
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
        "shares", (), group=THEN, label="Warn at", never=("concurrency", "damper"),
        words=option_words.warned_of,
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
