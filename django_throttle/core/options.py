"""Table of rule options, the source of rules, database rows, the admin's form, descriptions and docs."""

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
from django_throttle.core.option_words import MEAN, NOUNS, UNITS, percent_hint
from django_throttle.core.plans import read_plans
from django_throttle.core.rate import MAX_LIMIT, MAX_WINDOW, Rate, zone
from django_throttle.core.scopes import checked_scopes
from django_throttle.core.texts import gettext_noop, in_sentence, listed, translatable


class Choice(NamedTuple):
    """A value that an option may have."""

    label: str  #: in the admin
    words: str = ""  #: in descriptions of rules


BUCKETS: Final = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.is_bucket)
EVENTS: Final = NOUNS.keys()
# Events that last, which only a concurrency rule counts; the others happen at a moment.
LASTING_EVENTS: Final = ("inflight", "connection")
MEASURED_UNITS: Final = tuple(UNITS)[2:]
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
MAX_NAME_LENGTH: Final = 100  # characters
MAX_MULTIPLE: Final = 100  # of the limit
MAX_WARNINGS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the table."""

    name: str = ""
    kind: str  #: key of KINDS: selects the function that reads a value, and the field of a form
    default: object = None
    initial: object = None  #: initial value in the form of a new rule, if it is not the default
    help: str
    label: str = ""
    group: str = ""  #: heading in the admin
    choices: Mapping[str, Choice | Algorithm] = field(default_factory=dict)
    min_value: float = 1
    max_value: float = MAX_LIMIT
    only: tuple[str, ...] = ()  #: algorithms that have the option, besides those that name it in their ``takes``
    never: tuple[str, ...] = ()  #: algorithms that lack an option without owners
    words: str | Callable[[object], str] = ""  #: description of a value other than the default; ``{}`` is the value

    @property
    def title(self) -> str:
        """The label, else the name in words."""
        return self.label or self.name.replace("_", " ")

    def takes(self, algorithm: str) -> bool:
        """Return True if rules of this algorithm have the option."""
        owners = self.owners
        return algorithm in owners if owners else algorithm not in self.never

    @property
    def owners(self) -> tuple[str, ...]:
        """The only algorithms that have the option; empty if the option is not special to any."""
        return tuple(
            name for name, algorithm in ALGORITHMS.items() if name in self.only or self.name in algorithm.takes
        )

    def read(self, value: object) -> object:
        """Return a given value as a rule stores it. Raise InvalidRule if the value is not valid."""
        return value if value is None and self.default is None else KINDS[self.kind](self, value)

    def describe(self, value: Any) -> str:
        """Return the words of a rule's description for the value; empty for the default."""
        if value == self.default:
            return ""
        words = self.choices[value].words if self.choices else self.words
        return words(value) if callable(words) else translatable(words, value)

    def refuse(self, algorithm: str) -> InvalidRule:
        """Return the error of a rule whose algorithm does not have the option."""
        title = self.name
        if self.label.lower() not in ("", self.name):
            title = translatable("{label} ({name})", label=in_sentence(self.label), name=self.name)
        if not self.owners:
            fault = translatable(
                "{title} does not go with {other}: leave it out", title=title, other=_spaced(algorithm)
            )
        else:
            owners = listed(list(map(_spaced, self.owners)))
            fault = translatable("{title} belongs to {owners} only", title=title, owners=owners)
        return InvalidRule(fault, self.name)


def option(kind: str, default: object = None, **row: Any) -> Any:
    """Return a dataclass field that is a row of the table. An option whose default is MISSING is required."""
    return field(default=default, metadata={"row": Option(kind=kind, default=default, **row)})


_TABLES: Final[dict[type[Options], dict[str, Option]]] = {}


def table(options_class: type[Options]) -> dict[str, Option]:
    """Return the rows of the table by option name."""
    if options_class not in _TABLES:
        _TABLES[options_class] = {
            column.name: replace(column.metadata["row"], name=column.name)
            for column in fields(options_class)
            if "row" in column.metadata
        }
    return _TABLES[options_class]


def countable_events(algorithm: str) -> tuple[str, ...]:
    """Return the events that rules of this algorithm may count, the usual event first."""
    holds_slots = ALGORITHMS[algorithm].holds_slots
    usual = "connection" if holds_slots else "request"
    # Runs of tasks are counted either way.
    countable = [event for event in EVENTS if event == "task" or (event in LASTING_EVENTS) == holds_slots]
    return tuple(sorted(countable, key=lambda event: event != usual))


def check_names(options_class: type[Options], options: object, rule: str = "") -> None:
    """Raise InvalidRule unless ``options`` is a mapping whose names are all in the table."""
    if not isinstance(options, Mapping):
        pattern = gettext_noop('options must be a dictionary such as {{"rate": "100/min"}}, not {kind}')
        raise InvalidRule(translatable(pattern, kind=type(options).__name__), rule=rule)
    valid_names = [name for name in table(options_class) if name != "name"]
    for name in options:
        if name not in valid_names:
            hint = did_you_mean(name, valid_names)
            raise InvalidRule(translatable("there is no option {option!r}{hint}", option=name, hint=hint), rule=rule)


def stored_options(options_class: type[Options], options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that differ from their defaults, in JSON's types.

    Raise InvalidRule if an option is not in the table, or its value is not valid.
    """
    check_names(options_class, options)
    rows = table(options_class)
    values = {name: rows[name].read(value) for name, value in options.items()}
    return {name: as_json(value) for name, value in values.items() if value != rows[name].default}


def as_json(value: object) -> object:
    """Return the value of an option in JSON's types."""
    return list(value) if isinstance(value, tuple) else value


def _spaced(name: str) -> str:
    return in_sentence(ALGORITHMS[name].label) if name in ALGORITHMS else name.replace("_", " ")


def did_you_mean(word: object, valid_words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the nearest valid word, as the end of a message; empty if none is near."""
    near = nearest_word(word, valid_words, cutoff)
    return translatable("; did you mean {near!r}?", near=near) if near else ""


def nearest_word(word: object, valid_words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the nearest valid word, upper and lower case being alike; empty if none is near."""
    words = tuple(valid_words)
    near = get_close_matches(str(word), words, n=1, cutoff=cutoff)
    if not near:
        folded = {each.lower(): each for each in words}
        near = [folded[each] for each in get_close_matches(str(word).lower(), folded, n=1, cutoff=cutoff)]
    return near[0] if near else ""


def misspellings(names: Iterable[str], valid_names: Collection[str], cutoff: float) -> Iterator[tuple[str, str]]:
    """Yield pairs of a name that is not valid, and the valid name that it resembles.

    A longer name that begins with a valid name, such as ``throttle_scope_map``, is no misspelling.
    """
    prefixes = tuple([f"{valid_name}_" for valid_name in valid_names])
    for name in names:
        near = get_close_matches(name, valid_names, n=1, cutoff=cutoff)
        if near and name not in valid_names and not name.startswith(prefixes):
            yield name, near[0]


def is_dotted(value: object) -> bool:
    """Return True for a text with the form of a path to a function, such as "shop.limits.tenant"."""
    return isinstance(value, str) and "." in value and all(part.isidentifier() for part in value.split("."))


def key_parts(key: str) -> tuple[str, ...]:
    """Return the keys that ``+`` joins, or the key itself."""
    return tuple(key.split("+"))


def functions(key: str) -> tuple[str, ...]:
    """Return the dotted paths among the parts of a key."""
    return tuple(part for part in key_parts(key) if is_dotted(part))


# Readers, one for each kind of option. They return the value as a rule stores it, or raise InvalidRule.


def _choice(option: str, value: object, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        pattern = gettext_noop("{option} must be one of {known}, not {given!r}{hint}")
        hint = did_you_mean(value, choices)
        fault = translatable(pattern, option=option, known=", ".join(choices), given=value, hint=hint)
        raise InvalidRule(fault, option)
    return value


def _whole(row: Option, value: object, otherwise: str = "") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not row.min_value <= value <= row.max_value:
        pattern = gettext_noop("{name} must be a whole number from {least:,} to {most:,}{otherwise}, not {given!r}")
        fault = translatable(
            pattern, name=row.name, least=row.min_value, most=row.max_value, otherwise=otherwise, given=value
        )
        raise InvalidRule(fault, row.name)
    return value


def _number(row: Option, value: object) -> float:
    hint = ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if row.min_value <= value <= row.max_value:  # False for NaN
            return float(value)
        hint = percent_hint(value) if row.max_value == MAX_MULTIPLE < value <= MAX_MULTIPLE * 100 else ""
    pattern = gettext_noop("{name} must be a number from {least} to {most}, not {given!r}{hint}")
    fault = translatable(pattern, name=row.name, least=row.min_value, most=row.max_value, given=value, hint=hint)
    raise InvalidRule(fault, row.name)


def _switch(row: Option, value: object) -> bool:
    if not isinstance(value, bool):
        fault = translatable("{name} must be True or False, not {given!r}", name=row.name, given=value)
        raise InvalidRule(fault, row.name)
    return value


def _name(row: Option, value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_LENGTH or not value.isprintable():
        raise InvalidRule(
            translatable("a name must have 1 to {most} printable characters", most=MAX_NAME_LENGTH), row.name
        )
    return value


OR_FUNCTION: Final = translatable(" or the path of a function")


def _cost(row: Option, value: object, otherwise: str = OR_FUNCTION) -> int | str:
    return value if isinstance(value, str) and is_dotted(value) else _whole(row, value, otherwise)


def _reserve(row: Option, value: object) -> int | str:
    otherwise = translatable(", {mean!r} or the path of a function", mean=MEAN)
    return value if value in (MEAN, "") else _cost(row, value, otherwise)


def _path(row: Option, value: object) -> str:
    if value == "" or is_dotted(value):
        return str(value)
    pattern = gettext_noop("{name} must be the path of a function, such as shop.limits.rows, not {given!r}")
    raise InvalidRule(translatable(pattern, name=row.name, given=value), row.name)


def _zone(row: Option, value: object) -> str:
    if not isinstance(value, str):
        fault = translatable("{name} must be a name like Europe/Berlin, not {given!r}", name=row.name, given=value)
        raise InvalidRule(fault, row.name)
    zone(value)
    return value


def _key(row: Option, value: object) -> str:
    if not isinstance(value, str):
        pattern = gettext_noop('{name} must be text such as "ip", or "ip+user" for both together, not {given!r}')
        raise InvalidRule(translatable(pattern, name=row.name, given=value), row.name)
    if is_dotted(value):
        return value  # the rulebook imports functions
    if "+" not in value:
        return _choice(row.name, value, KEY_KINDS)
    joinable, parts = joined_keys(), key_parts(value)
    for part in parts:
        if part not in joinable and not is_dotted(part):
            pattern = gettext_noop("a key must join {known} and paths of functions, not {part!r}{hint}")
            hint = did_you_mean(part, joinable)
            raise InvalidRule(translatable(pattern, known=", ".join(joinable), part=part, hint=hint), row.name)
    if len(set(parts)) < len(parts):
        raise InvalidRule(translatable("the key {given!r} has one of its parts twice", given=value), row.name)
    return value


def _rate(row: Option, value: object) -> Rate:
    if not isinstance(value, Rate):
        more = translatable('; several go into rates: ["10/s", "1000/day"]') if isinstance(value, (list, tuple)) else ""
        pattern = gettext_noop('a rate must be text such as "5/min", not {given!r}{more}')
        raise InvalidRule(translatable(pattern, given=value, more=more), row.name)
    return value


EXAMPLES: Final = {
    "scopes": '["search"]', "events": '["request"]', "methods": '["POST"]', "audience": '["staff"]',
    "rates": '["10/s", "1000/day"]', "warn_at": "[0.8, 1.0]", "count_on": "[401, 403]", "refund_on": '[304, "5xx"]',
}  # fmt: skip


def _list_fault(option: str, value: object) -> InvalidRule:
    pattern = gettext_noop("{option} must be a list such as {example}, not {given!r}")
    example = EXAMPLES.get(option, '["api"]')
    return InvalidRule(translatable(pattern, option=option, example=example, given=value), option)


def sequence(option: str, value: object) -> tuple[Any, ...]:
    """Return a list or tuple as a tuple. Raise InvalidRule for any other value."""
    if not isinstance(value, (list, tuple)):
        raise _list_fault(option, value)
    return tuple(value)


def names(option: str, value: object) -> tuple[str, ...]:
    """Return non-empty texts as a tuple. Raise InvalidRule for a bare text, which would be read letter by letter."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _list_fault(option, value)
    texts = tuple(value)
    if not all(isinstance(name, str) for name in texts):
        raise _list_fault(option, value)
    if not texts or not all(name.strip() for name in texts):
        pattern = gettext_noop("{option} needs at least one name and no empty ones, not {given!r}")
        raise InvalidRule(translatable(pattern, option=option, given=value), option)
    for name in texts:
        if "," in name or name != name.strip():
            pattern = gettext_noop("{option}: a name has no comma and no space around it, unlike {name!r}")
            raise InvalidRule(translatable(pattern, option=option, name=name), option)
    return texts


def _names(row: Option, value: object) -> tuple[str, ...]:
    return () if value in ((), []) and row.default == () else names(row.name, value)


def _methods(row: Option, value: object) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(name.upper() for name in _names(row, value)))
    for method in methods:
        if method not in METHODS:
            fault = translatable("there is no method {name!r}{hint}", name=method, hint=did_you_mean(method, METHODS))
            raise InvalidRule(fault, row.name)
    return methods


def _audience(row: Option, value: object) -> tuple[str, ...]:
    entries = tuple(dict.fromkeys(_names(row, value)))
    for entry in entries:
        check_audience(entry, row.name)
    return entries


def _plans(row: Option, value: object) -> tuple[str, ...]:
    def check(caller: str) -> None:
        path, colon, name = caller.partition(":")
        if not is_dotted(path) or (colon and name.strip() != name) or caller.endswith(":"):
            check_audience(caller, row.name)

    return read_plans(value, check)


def _shares(row: Option, value: object) -> tuple[float, ...]:
    shares = sequence(row.name, value)
    for share in shares:
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not (is_number and 0 < share <= MAX_MULTIPLE):
            pattern = gettext_noop(
                "{name} must have shares of the limit, above 0 and up to {most} ({hint}), not {given!r}"
            )
            hint = translatable("0.8 is 80 %")
            if is_number and 0 < share <= 1000:
                # No directive begins at the %, xgettext:no-python-format
                hint = translatable("{percent:g} % is {share:g}", percent=share, share=share / 100)
            raise InvalidRule(translatable(pattern, name=row.name, most=MAX_MULTIPLE, hint=hint, given=share), row.name)
    if len(shares) > MAX_WARNINGS:
        fault = translatable("{name} must have at most {most} shares", name=row.name, most=MAX_WARNINGS)
        raise InvalidRule(fault, row.name)
    return tuple(sorted(set(map(float, shares))))


def _statuses(row: Option, value: object) -> tuple[int | str, ...]:
    statuses = sequence(row.name, value)
    for status in statuses:
        is_class = isinstance(status, str) and STATUS_CLASS.fullmatch(status)
        if not is_class and (type(status) is not int or not 100 <= status <= 599):
            pattern = gettext_noop(
                '{name} must have HTTP statuses, from 100 to 599, or classes such as "4xx", not {status!r}'
            )
            raise InvalidRule(translatable(pattern, name=row.name, status=status), row.name)
    return tuple(sorted(set(statuses), key=str))


def _results(row: Option, value: object) -> tuple[str, ...]:
    results = tuple(map(str, sequence(row.name, value)))
    for result in results:
        if result != CANCELLED and not RESULT.fullmatch(result):
            pattern = gettext_noop(
                '{name} must have HTTP statuses such as 304, classes such as "5xx", or "{cancelled}", not {given!r}'
            )
            raise InvalidRule(translatable(pattern, name=row.name, cancelled=CANCELLED, given=result), row.name)
    return tuple(sorted(set(results)))


KINDS: Final[dict[str, Callable[[Option, object], object]]] = {
    "name": _name,
    "switch": _switch,
    "choice": lambda row, value: _choice(row.name, value, row.choices),
    "whole": _whole,
    "number": _number,
    "rate": _rate,
    "rates": lambda row, value: sequence(row.name, value),
    "zone": _zone,
    "cost": _cost,
    "reserve": _reserve,
    "path": _path,
    "key": _key,
    "names": _names,
    "scopes": lambda row, value: checked_scopes(names(row.name, value)),
    "events": lambda row, value: tuple(_choice(row.name, event, EVENTS) for event in names(row.name, value)),
    "methods": _methods,
    "audience": _audience,
    "plans": _plans,
    "shares": _shares,
    "statuses": _statuses,
    "results": _results,
}


RESULT: Final = re.compile("[1-5]([0-9][0-9]|xx)")
STATUS_CLASS: Final = re.compile("[1-5]xx")
#: Headings of the admin's form, in its order. Options without a heading stand above them.
TUNING: Final = "Fine-tuning of the algorithm"
CALLS: Final = "Only for some calls"
COUNTED: Final = "Which calls count"
QUOTA: Final = "Quota: warn first, refuse later"
COST: Final = "Cost and measuring"
WAITING: Final = "Waiting, no room, Redis down"
GROUPS: Final = (TUNING, CALLS, COUNTED, QUOTA, COST, WAITING)


@dataclass(frozen=True, slots=True)
class Options:
    """The options in the order of a rule's description. Each field's metadata is its row of the table.

    A subclass with more fields has a table with more rows.
    """

    # fmt: off
    name: str = option(
        "name", MISSING,
        help="Short and unique. Clients and logs see it. It replaces a rule of the same name in settings.",
    )
    rate: Rate | None = option(
        "rate", never=("concurrency",),
        help="For example 100/min, 5/10m or 1000/day. Separate several with commas; all of them apply.",
    )
    _: KW_ONLY
    key: str = option(
        "key", "user_or_ip", label="Limit per",
        help="Who gets an allowance of their own. “User” skips visitors; “User or address” counts them by address.",
    )
    scopes: tuple[str, ...] = option(
        "scopes", ("*",), label="Where", words=option_words.describe_scopes,
        help="throttle_scope values or route names, separated by commas. * matches any text; * alone means "
        "everywhere. A name after ! is left out, as in *, !health.",
    )
    events: tuple[str, ...] = option(
        "events", (), label="Counts", initial=("request",), help="Everything ticked shares one allowance.",
    )
    methods: tuple[str, ...] = option(
        "methods", (), label="HTTP methods", group=CALLS, words=option_words.describe_methods,
        help="For example POST, PUT. GET includes HEAD. If empty, all methods.",
    )
    audience: tuple[str, ...] = option(
        "audience", (), label="Only for", group=CALLS, words=option_words.describe_audience,
        help="anonymous, authenticated, staff, group:editors or tenant:acme. If empty, everyone.",
    )
    algorithm: str = option(
        "choice", "sliding_window", choices=ALGORITHMS, help="Keep “Sliding window” unless you need another one.",
    )
    rates: tuple[Rate, ...] = option(
        "rates", (), never=("concurrency", "damper"),
        help="Several rates at once instead of one, all to be kept. At most ten, each with another window.",
    )
    limit: int | None = option(
        "whole", label="Open at once", help="How many requests or WebSockets may be open at the same time."
    )
    burst: int | None = option(
        "whole", group=TUNING,
        help="Most calls at once after a pause; in a queue, most that may wait. If empty, the number in the rate.",
    )
    plans: tuple[str, ...] = option(
        "plans", (), label="Plans", group=CALLS, never=("damper",),
        help="One per line: group:premium = 1000/min. The first match replaces the rate. Calls already made still "
        "count.",
    )
    refill: str = option(
        "choice", "continuous", group=TUNING,
        choices={"continuous": Choice("Evenly"), "interval": Choice("All at once")},
        help="“Evenly” adds calls one by one, “All at once” once per period.",
    )
    resolution: int = option(
        "whole", 1, label="Sub-windows", group=TUNING, max_value=MAX_RESOLUTION,
        help="1 to 30; more make the limit smoother.",
    )
    strict: bool = option(
        "switch", False, label="Never exceed the rate", group=TUNING,
        help="Holds in every window, but refuses some calls early.",
    )
    timezone: str | None = option(
        "zone", label="Time zone", group=TUNING,
        help="Where days and months begin, for example Europe/Berlin. If empty, UTC.",
    )
    estimator: str = option(
        "choice", "fast", label="Reaction", group=TUNING,
        choices={"fast": Choice("Fast"), "average": Choice("Average of 24 seconds")},
        help="“Fast” follows traffic in seconds; “Average” is steadier.",
    )
    unit: str = option(
        "choice", "calls", group=COST, never=("concurrency",),
        choices={name: Choice(label) for name, (label, _) in UNITS.items()},
        help="What the rate counts. Measured units are corrected after the call.",
    )
    reserve: int | str = option(
        "reserve", "", label="Reserve", group=COST, never=("concurrency", "damper"), min_value=0,
        words=option_words.describe_reserve,
        help="Counted before a measured call: a number, a function or mean (recent average). If empty, 1.",
    )
    measure: str = option(
        "path", "", label="Measured by", group=COST, never=("concurrency", "damper"),
        words="measured by {}",
        help="Function that returns the units a call used. If empty, the units that the code spends.",
    )
    cost: int | str = option(
        "cost", 1, label="Cost per call", group=COST, never=("concurrency",), words=option_words.describe_cost,
        help="A whole number, or a function used by a rule in settings.",
    )
    count_on: tuple[int | str, ...] = option(
        "statuses", (), label="Count only these statuses", group=COUNTED, never=("concurrency", "damper"),
        words=option_words.describe_statuses,
        help="401, 403 counts failed logins only. If empty, every response counts.",
    )
    refund_on: tuple[str, ...] = option(
        "results", (), label="Do not count", group=COUNTED, never=("concurrency", "damper"),
        words=option_words.describe_results,
        help="304, 5xx or cancelled gives the call back. If empty, every response counts.",
    )
    count_denied: bool = option(
        "switch", False, label="Also count refused calls", group=COUNTED, never=("concurrency", "damper"),
        words="refused ones count too",
        help="A client that keeps trying stays locked out. Recommended for logins.",
    )
    prepaid: bool = option(
        "switch", False, label="Buy ahead", group=WAITING, never=("concurrency", "damper"),
        words="bought ahead by each process",
        help="For very busy limits: processes take calls in advance. The limit still holds.",
    )
    enforce_at: float = option(
        "number", 1.0, label="Refuse at", group=QUOTA, never=("concurrency", "damper"), max_value=MAX_MULTIPLE,
        words="tolerated up to {:,g} times as much",
        help="1 refuses at the limit, 2.5 at two and a half times the limit. Until then clients see 0 remaining.",
    )
    warn_at: tuple[float, ...] = option(
        "shares", (), label="Warn at", group=QUOTA, never=("concurrency", "damper"),
        words=option_words.describe_warnings,
        help="For example 80 %, 100 %. Sends the signal quota_warning once per window and caller.",
    )
    action: str = option(
        "choice", "reject", label="When over the limit", choices={
            "reject": Choice("Refuse"),
            "shadow": Choice("Only record", "recorded but never refused"),
            "delay": Choice("Delay"),
            "defer": Choice("Do it later"),
        },
        help="“Only record” refuses nobody and logs what it would refuse. “Delay” and “Do it later” need the leaky "
        "bucket.",
    )
    max_queue: int | None = option(
        "whole", label="Longest queue", group=WAITING,
        help="Most calls that may wait; set this or Burst.",
    )
    max_delay: float | None = option(
        "number", label="Longest wait", group=WAITING, min_value=0, max_value=MAX_WINDOW,
        help="Seconds; a call that would wait longer is refused. Required for “Delay”.",
    )
    at_limit: str = option(
        "choice", "reject", label="When all places are taken", group=WAITING,
        choices={
            "reject": Choice("Refuse the newcomer"),
            "evict_oldest": Choice("Close the oldest", "a new WebSocket closes the oldest"),
            "evict_idle": Choice(
                "Close the one silent for longest", "a new WebSocket closes the one silent for longest"
            ),
        },
        help="Which WebSocket closes to make room. Requests in flight are never cut off.",
    )
    on_store_failure: str = option(
        "choice", "local", label="If Redis is down", group=WAITING,
        choices={
            "local": Choice("Count in each process"),
            "allow": Choice("Let through", "let through while the store is away"),
            "deny": Choice("Refuse (503)", "refused while the store is away"),
        },
        help="“Count in each process” gives each its share.",
    )
    enabled: bool = option(
        "switch", True, words="switched off", help="Untick to switch the rule off without deleting it.",
    )
    # fmt: on
