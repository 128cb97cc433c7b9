"""The sources of rules: settings, and the database, which wins where both have a name.

The database is read on a thread of its own, over one connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import chain
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from django.apps import apps
from django.db import OperationalError, ProgrammingError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import compiler as sql_compiler  # noqa: F401 - so that no call does
from django.utils import timezone

from django_throttle.conf import Conf, conf
from django_throttle.core import Override, Rule
from django_throttle.core.key import without_setting
from django_throttle.core.options import key_parts
from django_throttle.core.overrides import Candidate
from django_throttle.core.texts import gettext_lazy, gettext_noop, text_of
from django_throttle.exceptions import InvalidOverride, InvalidRate, InvalidRule

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange

# The name of a rule or the number of an override, and what was made of it: a Rule, an Override, or what is wrong.
Made = tuple[str | int, object]
# The rows of a table by their values, as the database's driver gives them.
Rows = Mapping[tuple[object, ...], Made]
NO_ROWS: Final[Rows] = {}


@dataclass(frozen=True, slots=True)
class SourceRules:
    """The rules of one source, and for each invalid one its name and what is wrong (``faults``).

    The database has overrides too, and of each invalid one its number and what is wrong (``unfit``). ``candidates``
    count beside rules of other sources. ``rows`` are those of the tables that were read.
    """

    rules: Mapping[str, Rule]
    faults: Mapping[str, str]
    overrides: tuple[Override, ...] = ()
    unfit: Mapping[int, str] = field(default_factory=dict)
    rows: tuple[Rows, Rows] = (NO_ROWS, NO_ROWS)
    candidates: tuple[Candidate, ...] = ()


NO_RULES: Final = SourceRules({}, {})


class RuleSource:
    """A place that rules come from, besides settings and the admin.

    Derive a class from this one, and add an instance in the method ``ready`` of an app config::

        class Contracts(RuleSource):
            name = "contracts"

            def read(self, before):
                rates = Contract.objects.values_list("scope", "rate")
                new = from_mapping({scope: {"rate": rate, "scopes": [scope]} for scope, rate in rates})
                return before if new == before else new

        add_source(Contracts())

    Rules of the admin replace those of the same name, which replace those of settings. Sources are read in the thread
    that reads the database, whenever it reads it, and so not where ``DATABASE_RULES`` is off. Call
    ``rulebook.changed()`` when rules were edited, or ``announce_edits`` once for a model.
    """

    #: What log lines call the source.
    name = "code"

    def read(self, before: SourceRules) -> SourceRules:
        """Return the rules and candidates. Return ``before``, the last reading, if nothing has changed.

        If it raises, that is logged, and what it returned before stays in force.
        """
        raise NotImplementedError

    def promote_due(self) -> None:
        """Do what is due. Called in that thread before the rules are read, if a candidate's ``starts_at`` has come."""


_sources: Final[list[RuleSource]] = []


def add_source(source: RuleSource) -> None:
    """Read the rules of this source too, in place of an earlier source of the same name."""
    _sources[:] = [*(other for other in _sources if other.name != source.name), source]


@dataclass(frozen=True, slots=True)
class Reading:
    """All sources, as they were read. ``failure`` is why the database could not be read.

    ``added`` has the other sources by name. Those in ``failures`` could not be read, and have what they had before.
    ``open_in`` is a weak reference to the connection in whose open transaction it was read, which may be rolled back.
    """

    settings: SourceRules
    database: SourceRules = NO_RULES
    added: Mapping[str, SourceRules] = field(default_factory=dict)
    failure: Exception | None = None
    failures: Mapping[str, Exception] = field(default_factory=dict)
    open_in: Callable[[], BaseDatabaseWrapper | None] | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        merged = dict(self.settings.rules)
        for source in (*self.added.values(), self.database):
            merged |= source.rules
        return tuple(merged.values())

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(chain.from_iterable(source.candidates for source in self.added.values()))

    def is_as(self, before: Reading) -> bool:
        """Return True if nothing has changed in the database and in the sources that were added."""
        unchanged = (source is before.added.get(name) for name, source in self.added.items())
        return self.database is before.database and all(unchanged)

    @property
    def faults(self) -> frozenset[tuple[str, str, str]]:
        """What is wrong with rules that are skipped: source, name and message."""
        sources = (("settings", self.settings), *self.added.items(), ("database", self.database))
        return frozenset((source, *fault) for source, found in sources for fault in found.faults.items())


NOTHING_READ: Final = Reading(NO_RULES)

logger = logging.getLogger("django_throttle")

# Longer than two polls are usually apart where each of them reads.
IDLE_SECONDS: Final = 5.0
READER: Final = "django_throttle.rules"  # the thread's name
#: Functions that return the names of limits that are not rules, such as those of REST framework's own throttles.
unlisted_limits: Final[list[Callable[[], set[str]]]] = []


class Reader:
    """Calls ``read`` in a thread of its own, so that a database that hangs holds up nothing else.

    The thread ends, and its connection with it, after ``idle`` seconds without a request.
    """

    def __init__(self, read: Callable[[str | None], object], idle: float = IDLE_SECONDS) -> None:
        self._read = read
        self._idle = idle
        self._news = Condition()
        self._asked: tuple[str | None] | None = None
        self._ended = False
        self._thread: Thread | None = None

    def ask(self, seen: str | None) -> bool:
        """Have it read, unless it is reading; never waits. False after ``end``.

        Raises RuntimeError where no thread can be started.
        """
        with self._news:
            if self._asked is not None or self._ended:
                return not self._ended
            if self._thread is None:
                thread = Thread(target=self._run, name=READER, daemon=True)
                thread.start()
                self._thread = thread
            self._asked = (seen,)
            self._news.notify_all()
            return True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the reading has ended; False when it takes longer."""
        with self._news:
            return self._news.wait_for(lambda: self._asked is None, seconds)

    def end(self) -> None:
        """End the thread, after the present reading; further requests are ignored."""
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _run(self) -> None:
        try:
            while (asked := self._next()) is not None:
                self._read_once(*asked)
        finally:
            connections.close_all()  # this thread's own

    def _next(self) -> tuple[str | None] | None:
        with self._news:
            self._news.wait_for(lambda: self._asked is not None or self._ended, self._idle)
            if self._asked is None or self._ended:
                self._thread = self._asked = None
            return self._asked

    def _read_once(self, seen: str | None) -> None:
        try:
            _drop_what_fails()
            self._read(seen)
        except Exception:
            logger.exception("the rules could not be read: those in force stay, and the next poll tries again")
        finally:
            with self._news:
                self._asked = None
                self._news.notify_all()


def _drop_what_fails() -> None:
    """Close connections that the server has closed, whose last query failed, or whose transaction hides new rules.

    One to a SQLite file that was away for a moment is usable, but has opened an empty file in its place.
    """
    for connection in connections.all(initialized_only=True):
        is_open, is_live = connection.connection is not None, connection.settings_dict["AUTOCOMMIT"]
        if is_open and (connection.errors_occurred or not (is_live and connection.is_usable())):
            connection.close()


APP: Final = "django_throttle"
# Columns that say nothing to a call; a date costs as much to read as all the others.
REMARKS: Final = frozenset(("description", "updated_at", "reason", "created_by", "created_at"))
_settings: tuple[Conf, SourceRules] | None = None


def read(before: Reading = NOTHING_READ) -> Reading:
    """Read all sources; a database that fails is reported, never raised.

    ``before`` is the last reading: of a source in which nothing has changed, the same rules are returned.
    """
    settings = from_settings()
    if not are_in_database():
        return Reading(settings)
    try:
        connection = connections[alias()]
        open_in = ref(connection) if connection.in_atomic_block else None
        with _guarded():
            database = from_database(before.database)
    except Exception as error:  # noqa: BLE001  (no database, no table, no rights: the rules in force stay)
        return Reading(settings, failure=error)
    added, failures = _read_added(before)
    return Reading(settings, database, added, failures=failures, open_in=open_in)


def _read_added(before: Reading) -> tuple[dict[str, SourceRules], dict[str, Exception]]:
    """Read the sources that were added. Return their rules, and why some of them could not be read."""
    added, failures = {}, {}
    for source in _sources:
        added[source.name] = last = before.added.get(source.name, NO_RULES)
        try:
            with _guarded():
                added[source.name] = source.read(last)
        except Exception as error:  # noqa: BLE001  (whatever it is, the others are read all the same)
            failures[source.name] = error
    return added, failures


def _guarded() -> AbstractContextManager[object]:
    """Return what keeps a transaction of the site whole where a query inside fails."""
    is_inside = connections[alias()].in_atomic_block
    return transaction.atomic(using=alias()) if is_inside else nullcontext()


def rules() -> tuple[Rule, ...]:
    """The rules of all sources, without the overrides, of which there may be very many."""
    if not are_in_database():
        return tuple(from_settings().rules.values())
    rows = read_rows(_model()._default_manager.using(alias()).all(), "as_rule")
    added, _ = _read_added(NOTHING_READ)
    return Reading(from_settings(), SourceRules(divided(rows)[0], {}), added).rules


def from_settings() -> SourceRules:
    """The rules of DJANGO_THROTTLE["RULES"], made once for these settings."""
    global _settings
    settings, known = conf(), _settings  # another thread may replace both
    if known is None or known[0] is not settings:
        rules = settings.RULES
        fault = gettext_lazy("must be a dictionary of rules, not {kind}", kind=type(rules).__name__)
        found = from_mapping(rules) if isinstance(rules, Mapping) else SourceRules({}, {"RULES": fault})
        known = _settings = settings, found
    return known[1]


def from_mapping(rules: Mapping[Any, Any]) -> SourceRules:
    """The rules of a mapping of names to options."""
    made = {name: _made(str(name), partial(Rule.from_options, str(name), options)) for name, options in rules.items()}
    return SourceRules(*divided(made))


def from_database(before: SourceRules = NO_RULES) -> SourceRules:
    """The rules and the overrides of the admin; raises what the database raises.

    Only rows that differ from those of ``before`` are validated; where none does, ``before`` itself is returned.
    """
    using = alias()
    rules = read_rows(_model()._default_manager.using(using).all(), "as_rule", before.rows[0])
    overrides = _model("ThrottleOverride")._default_manager.using(using).in_force()
    rows = rules, read_rows(overrides, "as_override", before.rows[1])
    if before is not NO_RULES and rows == before.rows:
        return before
    in_force, unfit = divided(rows[1])
    found, faults = divided(rules)
    return SourceRules(found, faults, tuple(in_force.values()), unfit, rows)


def read_rows(rows: Any, make: str, before: Rows = NO_ROWS) -> Rows:
    """What the method ``make`` returns for each row, by the values that the driver gives for it.

    Rows that ``before`` has are taken from there: to validate ten thousand takes most of a second.
    """
    model, using = rows.model, rows.db
    columns = [field.attname for field in model._meta.concrete_fields if field.name not in REMARKS]
    compiler = rows.order_by("pk").values_list(*columns).query.get_compiler(using)
    with connections[using].cursor() as cursor:
        cursor.execute(*compiler.as_sql())
        raw = list(map(tuple, cursor.fetchall()))
    new = [row for row in raw if row not in before]
    made = {}
    for row, values in zip(new, compiler.results_iter([new], tuple_expected=True), strict=True):
        one = model.from_db(using, columns, values)
        made[row] = _made(one.pk if make == "as_override" else one.name, getattr(one, make))
    return {row: before[row] if row in before else made[row] for row in raw}


def sentence(error: Exception) -> str:
    """What is wrong, without the rule's name, which the core puts in front of it."""
    return error.fault if isinstance(error, InvalidRule) else text_of(error)


def advice(error: Exception) -> str:
    """Why the database cannot be read, in one line, and what to do where that is known."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    tables = (model._meta.db_table for model in apps.get_models())
    lacking = isinstance(error, (OperationalError, ProgrammingError)) and any(table in text for table in tables)
    if lacking and "denied" not in text:
        return gettext_lazy(
            "its table of rules is missing or out of date: run `manage.py migrate` ({error})", error=text
        )
    return text


def declared(option: str) -> tuple[str, ...]:
    """The dotted paths of functions that rules in settings, disabled ones too, have as ``option``."""
    found = {getattr(rule, option) for rule in from_settings().rules.values()}
    return tuple(sorted(path for path in found if isinstance(path, str) and "." in path))


def are_in_database() -> bool:
    """True when a database is asked for rules."""
    return conf().DATABASE_RULES and apps.is_installed(APP)


def is_private() -> bool:
    """True when no other thread can read the rules' database: SQLite in memory."""
    connection: Any = connections[alias()]  # only SQLite's has the method
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _made(name: str | int, make: Callable[[], object]) -> Made:
    try:
        return name, make()
    except (InvalidRule, InvalidRate, InvalidOverride) as error:
        return name, sentence(error)


def divided(rows: Mapping[Any, Made]) -> tuple[dict[Any, Any], dict[Any, str]]:
    """Return the valid rows and the faults of the others, each by its name or number."""
    faults = {name: result for name, result in rows.values() if isinstance(result, str)}
    return {name: result for name, result in rows.values() if name not in faults}, faults


def _model(name: str = "ThrottleRule") -> Any:  # each model has methods of its own
    return apps.get_model(APP, name)


def alias() -> str:
    """The database of the rules: the one that is written, for a replica may not have a committed edit yet."""
    return router.db_for_write(_model())


MOST_EDITS: Final = 1000  # that a process which begins looks back at


def past_edits(seconds: float) -> list[tuple[float, Rule, Rule]]:
    """The edits of rules in the last so many seconds, the oldest first: how many seconds ago, the rule before, after.

    By the history, which has the settings' rules too; raises what the database raises.
    """
    if not are_in_database():
        return []
    now = timezone.now()
    lines = _model("ThrottleChange")._base_manager.using(alias())
    lines = lines.filter(kind="rule", at__gt=now - timedelta(seconds=seconds)).order_by("-pk")[:MOST_EDITS]
    found = [((now - line.at).total_seconds(), _past(line, "before"), _past(line, "after")) for line in reversed(lines)]
    return [(age, before, after) for age, before, after in found if before is not None and after is not None]


def _past(line: ThrottleChange, name: str) -> Rule | None:
    """Return the rule before or after an edit; None if there was none, or if it is no longer valid."""
    state = getattr(line, name)
    if line.row is None:  # of settings
        rule = state and _made(line.name, partial(Rule.from_options, line.name, state))[1]
    elif state is None:
        rule = from_settings().rules.get(line.name)  # which a row replaces
    else:
        rule = _made(line.name, _model().from_state({**state, "name": line.name}).as_rule)[1]
    return rule if isinstance(rule, Rule) else None


def promote_due() -> None:
    """Have candidates whose time has come replace their rules; each once, whichever process is first."""
    for source in _sources:
        source.promote_due()


def check_allowed(rule: Rule) -> Rule:
    """The rule itself; raises InvalidRule for a function, or a tenant, that settings do not name.

    A function is imported and called for every client, so who edits rules may only choose among those of settings.
    """
    named = {one for each in from_settings().rules.values() for one in each.functions} if rule.functions else ()
    for option, path in rule.functions:
        if (option, path) not in named:
            pattern = gettext_noop("the {option} {path!r} is used by no rule in settings; name it there first")
            raise InvalidRule(gettext_lazy(pattern, option=option, path=path), option, rule.name)
    for option, asked in (("key", key_parts(rule.key)), ("audience", rule.audience), ("plans", rule.plans)):
        for kind in without_setting(asked, conf()):
            pattern = gettext_noop("the setting {setting} does not say who the {kind} is")
            raise InvalidRule(gettext_lazy(pattern, setting=kind.setting, kind=kind.name), option, rule.name)
    return rule
