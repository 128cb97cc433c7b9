"""Where rules come from: settings, and the database, which wins where both have a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import ref

from django.apps import apps
from django.db import OperationalError, ProgrammingError, connections, router, transaction

from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.checks import MAX_NAME
from django_throttle.exceptions import InvalidRate, InvalidRule

APP: Final = "django_throttle"


@dataclass(frozen=True, slots=True)
class Found:
    """What one source holds: the rules that make sense, and for each other one its name and what is wrong."""

    rules: Mapping[str, Rule]
    faults: Mapping[str, str]


NOTHING: Final = Found({}, {})


class Transaction:
    """The one that is open in a connection of the database."""

    def __init__(self, connection: Any) -> None:
        self._connection = ref(connection)

    def lasts(self) -> bool:
        """True until it is committed or rolled back; may be asked in any thread."""
        connection = self._connection()
        return connection is not None and bool(connection.in_atomic_block)


@dataclass(frozen=True, slots=True)
class Reading:
    """Both sources, read one after the other. ``failure`` is why the database could not be read.

    ``open_in`` is the transaction that it was read in, which may have edits that are never committed.
    """

    settings: Found
    database: Found = NOTHING
    failure: Exception | None = None
    open_in: Transaction | None = None

    @property
    def settled(self) -> bool:
        return self.open_in is None

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple({**self.settings.rules, **self.database.rules}.values())

    @property
    def faults(self) -> frozenset[tuple[str, str, str]]:
        """What is wrong with rules that are skipped: source, name and message."""
        sources = (("settings", self.settings), ("database", self.database))
        return frozenset((source, *fault) for source, found in sources for fault in found.faults.items())


def read() -> Reading:
    """Read both sources; a database that fails is reported, never raised."""
    settings = from_settings()
    if not conf().DATABASE_RULES or not apps.is_installed(APP):
        return Reading(settings)
    try:
        connection = connections[alias()]
        open_in = Transaction(connection) if connection.in_atomic_block else None
        return Reading(settings, from_database(), open_in=open_in)
    except Exception as error:  # noqa: BLE001  (no database, no table, no rights: the rules in force stay)
        return Reading(settings, failure=error)


def from_settings() -> Found:
    """The rules of DJANGO_THROTTLE["RULES"]."""
    rules = conf().RULES
    if not isinstance(rules, Mapping):
        return Found({}, {"RULES": f"is a dictionary of rules, not {type(rules).__name__}"})
    return _collect((str(name), partial(Rule.from_options, str(name), options)) for name, options in rules.items())


def from_database() -> Found:
    """The rules of the admin; raises what the database raises."""
    using = alias()
    # In a transaction of somebody else's, a query that fails must not spoil the rest of it.
    guard = transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext()
    with guard:
        rows = list(_model()._default_manager.using(using).all())
    return _collect((row.name, row.as_rule) for row in rows)


def check_key(rule: Rule) -> Rule:
    """The rule itself; raises InvalidRule for a callable that the site's own settings never name.

    The callable will be imported and called for every client, so whoever edits rules may only choose among
    those that whoever writes the settings has put there.
    """
    if "." not in rule.key or rule.key in declared_keys():
        return rule
    message = f"rule {rule.name!r}: the key {rule.key!r} is used by no rule in settings; name it there first"
    raise InvalidRule(message, "key")


def sentence(name: str, error: Exception) -> str:
    """What is wrong, without the rule's name, which the core puts in front of it."""
    return str(error).removeprefix(f"rule {name[:MAX_NAME]!r}: ")


def advice(error: Exception) -> str:
    """Why the database cannot be read, in one line that says what to do about it where that is known."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    lacking = isinstance(error, (OperationalError, ProgrammingError)) and _model()._meta.db_table in text
    if lacking and "denied" not in text:
        return f"its table of rules is not there or not up to date: run `manage.py migrate` ({text})"
    return text


def declared_keys() -> tuple[str, ...]:
    """The dotted keys that rules in settings use, disabled ones included."""
    keys = {rule.key for rule in from_settings().rules.values()}
    return tuple(sorted(key for key in keys if "." in key))


def is_private() -> bool:
    """True when no other thread can read the rules' database: SQLite in memory."""
    connection: Any = connections[alias()]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _collect(makers: Iterable[tuple[str, Callable[[], Rule]]]) -> Found:
    rules, faults = {}, {}
    for name, make in makers:
        try:
            rules[name] = make()
        except (InvalidRule, InvalidRate) as error:
            faults[name] = sentence(name, error)
    return Found(rules, faults)


def _model() -> Any:
    return apps.get_model(APP, "ThrottleRule")


def alias() -> str:
    """The database of the rules: the one that is written, for a replica may not have a committed edit yet."""
    return router.db_for_write(_model())
