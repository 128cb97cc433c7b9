"""Sources of rules: settings, the database, and sources that apps add. The database is read in a separate thread."""

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
from django.db.models.sql import compiler as sql_compiler  # noqa: F401 - not imported during a call

from django_throttle.conf import Conf, conf
from django_throttle.core import Override, Rule
from django_throttle.core.key import without_setting
from django_throttle.core.options import key_parts
from django_throttle.core.overrides import Candidate
from django_throttle.core.texts import gettext_noop, text_of, translatable
from django_throttle.exceptions import InvalidOverride, InvalidRate, InvalidRule
from django_throttle.local.shared_clock import shared_now
from django_throttle.runtime import LogThrottle

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange

logger = logging.getLogger("django_throttle")

# Name of a rule or number of an override, and the Rule or Override, or a text about a fault.
Result = tuple[str | int, object]
# Results for the rows of a table, by the row's values from the database's driver.
Rows = Mapping[tuple[object, ...], Result]
NO_ROWS: Final[Rows] = {}


@dataclass(frozen=True, slots=True)
class SourceRules:
    """Rules of one source."""

    rules: Mapping[str, Rule]  #: by name
    faults: Mapping[str, str]  #: faults of invalid rules, by name
    overrides: tuple[Override, ...] = ()  #: of the database
    override_faults: Mapping[int, str] = field(default_factory=dict)  #: faults of invalid overrides, by number
    rows: tuple[Rows, Rows] = (NO_ROWS, NO_ROWS)  #: of rules and of overrides, in the database
    candidates: tuple[Candidate, ...] = ()  #: they count beside the rules of other sources


NO_RULES: Final = SourceRules({}, {})


class RuleSource:
    """Base class for a source of rules besides settings and the admin.

    Derive a class from this one, and add an instance in the method ``ready`` of an app config::

        class Contracts(RuleSource):
            name = "contracts"

            def read(self, before):
                rates = Contract.objects.values_list("scope", "rate")
                new = from_mapping({
                    scope: {"rate": rate, "scopes": [scope]} for scope, rate in rates
                })
                return before if new == before else new

        add_source(Contracts())

    Rules of the admin replace rules of a source with the same name, which replace rules of settings. Sources are read
    whenever the database is read, in the same thread. If ``DATABASE_RULES`` is False, they are not read. Call
    ``rulebook.changed()`` when rules were edited, or ``announce_edits`` once for a model.
    """

    name = "code"  #: name of the source in log lines

    def read(self, before: SourceRules) -> SourceRules:
        """Return the rules and candidates. Return ``before``, the last result, if nothing has changed.

        An exception is logged, and the last result stays in force.
        """
        raise NotImplementedError

    def promote_due(self) -> None:
        """Promote due candidates. Called in the reader's thread when the ``starts_at`` of a candidate has come."""


_sources: Final[list[RuleSource]] = []
_promotion_log: Final = LogThrottle()


def add_source(source: RuleSource) -> None:
    """Add a source of rules. Replace an earlier source of the same name."""
    _sources[:] = [*(other for other in _sources if other.name != source.name), source]


@dataclass(frozen=True, slots=True)
class Reading:
    """Rules of all sources, read together."""

    settings: SourceRules
    database: SourceRules = NO_RULES
    #: Added sources by name. A source that could not be read has its former rules.
    added: Mapping[str, SourceRules] = field(default_factory=dict)
    failure: Exception | None = None  #: of the database
    failures: Mapping[str, Exception] = field(default_factory=dict)  #: of added sources, by name
    #: Weak reference to the connection in whose open transaction the database was read, as it may be rolled back.
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

    def equals(self, before: Reading) -> bool:
        """Return True if nothing has changed in the database and in added sources."""
        unchanged = (source is before.added.get(name) for name, source in self.added.items())
        return self.database is before.database and all(unchanged)

    @property
    def faults(self) -> frozenset[tuple[str, str, str]]:
        """Source, name and fault of each invalid rule. Such rules are skipped."""
        sources = (("settings", self.settings), *self.added.items(), ("database", self.database))
        return frozenset((source, *fault) for source, result in sources for fault in result.faults.items())


NOTHING_READ: Final = Reading(NO_RULES)

#: After this time without a request, the reader's thread ends. Longer than the usual interval between readings.
IDLE_SECONDS: Final = 5.0
READER_THREAD_NAME: Final = "django_throttle.rules"
#: Functions that return names of limits that are not rules, such as REST framework's own throttles.
unlisted_limits: Final[list[Callable[[], set[str]]]] = []


class Reader:
    """Reads the rules in a separate thread, because a database may hang.

    After IDLE_SECONDS without a request, the thread ends and closes its connection.
    """

    def __init__(self, read: Callable[[str | None], object]) -> None:
        self._read = read
        self._condition = Condition()
        self._request: tuple[str | None] | None = None  # version of the rules in Redis
        self._has_stopped = False
        self._thread: Thread | None = None

    def request(self, version: str | None) -> bool:
        """Request a reading, unless one is under way. Do not wait. Return False after ``stop``.

        Raise RuntimeError if no thread can be started.
        """
        with self._condition:
            if self._request is not None or self._has_stopped:
                return not self._has_stopped
            if self._thread is None:
                thread = Thread(target=self._run, name=READER_THREAD_NAME, daemon=True)
                thread.start()
                self._thread = thread
            self._request = (version,)
            self._condition.notify_all()
            return True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the reading has ended. Return False if it takes longer."""
        with self._condition:
            return self._condition.wait_for(lambda: self._request is None, seconds)

    def stop(self) -> None:
        """Ignore further requests, and end the thread after its reading."""
        with self._condition:
            self._has_stopped = True
            self._condition.notify_all()

    def _run(self) -> None:
        try:
            while (request := self._next_request()) is not None:
                self._read_once(*request)
        finally:
            connections.close_all()  # connections are per thread

    def _next_request(self) -> tuple[str | None] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._request is not None or self._has_stopped, IDLE_SECONDS)
            if self._request is None or self._has_stopped:
                self._thread = self._request = None
            return self._request

    def _read_once(self, version: str | None) -> None:
        try:
            _close_stale_connections()
            self._read(version)
        except Exception:
            logger.exception("the rules could not be read: those in force stay, and the next poll tries again")
        finally:
            with self._condition:
                self._request = None
                self._condition.notify_all()


def _close_stale_connections() -> None:
    """Close connections that the server has closed, whose last query failed, or whose transaction hides new rules.

    A failed query also shows that a SQLite file was replaced by an empty one while the connection stayed usable.
    """
    for connection in connections.all(initialized_only=True):
        is_open, is_live = connection.connection is not None, connection.settings_dict["AUTOCOMMIT"]
        if is_open and (connection.errors_occurred or not (is_live and connection.is_usable())):
            connection.close()


APP: Final = "django_throttle"
# Columns that decisions do not need. A date takes as long to read as all other columns.
UNREAD_COLUMNS: Final = frozenset(("description", "updated_at", "reason", "created_by", "created_at"))
_settings: tuple[Conf, SourceRules] | None = None


def read(before: Reading = NOTHING_READ) -> Reading:
    """Read all sources. Failures of the database are returned, not raised.

    A source without changes since the reading ``before`` keeps the same object of rules.
    """
    settings = from_settings()
    if not are_in_database():
        return Reading(settings)
    try:
        connection = connections[alias()]
        open_in = ref(connection) if connection.in_atomic_block else None
        with _savepoint():
            database = from_database(before.database)
    except Exception as error:  # noqa: BLE001  (no database, no table, no rights: the current rules stay)
        return Reading(settings, failure=error)
    added, failures = _read_added(before)
    return Reading(settings, database, added, failures=failures, open_in=open_in)


def _read_added(before: Reading) -> tuple[dict[str, SourceRules], dict[str, Exception]]:
    """Read the added sources. Return their rules, and the exceptions of those that could not be read."""
    added, failures = {}, {}
    for source in _sources:
        added[source.name] = last = before.added.get(source.name, NO_RULES)
        try:
            with _savepoint():
                added[source.name] = source.read(last)
        except Exception as error:  # noqa: BLE001  (the other sources are read nevertheless)
            failures[source.name] = error
    return added, failures


def _savepoint() -> AbstractContextManager[object]:
    """Return a context manager in which a failed query does not break an open transaction of the site."""
    is_inside = connections[alias()].in_atomic_block
    return transaction.atomic(using=alias()) if is_inside else nullcontext()


def rules() -> tuple[Rule, ...]:
    """Return the rules of all sources. Do not read the overrides, which may be many."""
    if not are_in_database():
        return tuple(from_settings().rules.values())
    rows = read_rows(_model()._default_manager.using(alias()).all(), "as_rule")
    added, _ = _read_added(NOTHING_READ)
    return Reading(from_settings(), SourceRules(split_faults(rows)[0], {}), added).rules


def from_settings() -> SourceRules:
    """Return the rules of DJANGO_THROTTLE["RULES"], cached for these settings."""
    global _settings
    settings, cached = conf(), _settings  # another thread may replace both
    if cached is None or cached[0] is not settings:
        rules = settings.RULES
        fault = translatable("must be a dictionary of rules, not {kind}", kind=type(rules).__name__)
        result = from_mapping(rules) if isinstance(rules, Mapping) else SourceRules({}, {"RULES": fault})
        cached = _settings = settings, result
    return cached[1]


def from_mapping(rules: Mapping[Any, Any]) -> SourceRules:
    """Return the rules of a mapping of names to options."""
    results = {name: _result(str(name), partial(Rule.from_options, str(name), opts)) for name, opts in rules.items()}
    return SourceRules(*split_faults(results))


def from_database(before: SourceRules = NO_RULES) -> SourceRules:
    """Return the rules and the overrides of the admin. Raise the exceptions of the database.

    Only rows that differ from those of ``before`` are validated. Return ``before`` itself if no row differs.
    """
    using = alias()
    rules = read_rows(_model()._default_manager.using(using).all(), "as_rule", before.rows[0])
    overrides = _model("ThrottleOverride")._default_manager.using(using).in_force()
    rows = rules, read_rows(overrides, "as_override", before.rows[1])
    if before is not NO_RULES and rows == before.rows:
        return before
    overrides_by_number, override_faults = split_faults(rows[1])
    valid, faults = split_faults(rules)
    return SourceRules(valid, faults, tuple(overrides_by_number.values()), override_faults, rows)


def read_rows(rows: Any, method: str, before: Rows = NO_ROWS) -> Rows:
    """Return the result of a method of each row, by the row's values from the database's driver.

    Results for the rows in ``before`` are reused, because validating ten thousand rows takes most of a second.
    """
    model, using = rows.model, rows.db
    columns = [field.attname for field in model._meta.concrete_fields if field.name not in UNREAD_COLUMNS]
    compiler = rows.order_by("pk").values_list(*columns).query.get_compiler(using)
    with connections[using].cursor() as cursor:
        cursor.execute(*compiler.as_sql())
        raw = list(map(tuple, cursor.fetchall()))
    new = [row for row in raw if row not in before]
    results = {}
    for row, values in zip(new, compiler.results_iter([new], tuple_expected=True), strict=True):
        instance = model.from_db(using, columns, values)
        name = instance.pk if method == "as_override" else instance.name
        results[row] = _result(name, getattr(instance, method))
    return {row: before[row] if row in before else results[row] for row in raw}


def fault_of(error: Exception) -> str:
    """Return the message of an error without the rule's name, which the core puts in front of it."""
    return error.fault if isinstance(error, InvalidRule) else text_of(error)


def failure_text(error: Exception) -> str:
    """Return the first line of an exception of the database. For a missing table, say what to do."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    tables = (model._meta.db_table for model in apps.get_models())
    names_table = isinstance(error, (OperationalError, ProgrammingError)) and any(table in text for table in tables)
    if names_table and "denied" not in text:
        return translatable(
            "its table of rules is missing or out of date: run `manage.py migrate` ({error})", error=text
        )
    return text


def declared(option: str) -> tuple[str, ...]:
    """Return the dotted paths of functions in this option of rules in settings, including disabled ones."""
    values = {getattr(rule, option) for rule in from_settings().rules.values()}
    return tuple(sorted(value for value in values if isinstance(value, str) and "." in value))


def are_in_database() -> bool:
    """Return True if rules are read from a database."""
    return conf().DATABASE_RULES and apps.is_installed(APP)


def is_private() -> bool:
    """Return True if no other thread can read the rules' database, as with SQLite in memory."""
    connection: Any = connections[alias()]  # only SQLite's has the method
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _result(name: str | int, make: Callable[[], object]) -> Result:
    try:
        return name, make()
    except (InvalidRule, InvalidRate, InvalidOverride) as error:
        return name, fault_of(error)


def split_faults(rows: Mapping[Any, Result]) -> tuple[dict[Any, Any], dict[Any, str]]:
    """Return the valid rules or overrides, and the faults of the others, each by its name or number."""
    faults = {name: result for name, result in rows.values() if isinstance(result, str)}
    return {name: result for name, result in rows.values() if name not in faults}, faults


def _model(name: str = "ThrottleRule") -> Any:  # the models have different methods
    return apps.get_model(APP, name)


def alias() -> str:
    """Return the alias of the rules' database for writes, because a replica may lack a committed edit."""
    return router.db_for_write(_model())


MAX_PAST_EDITS: Final = 1000


def past_edits(seconds: float) -> list[tuple[float, Rule, Rule]]:
    """Return the edits of the last ``seconds``, oldest first: age in seconds, rule before, and rule after.

    Edits of settings are in the history, too. Raise the exceptions of the database.
    """
    if not are_in_database():
        return []
    now = shared_now()
    rows = _model("ThrottleChange")._base_manager.using(alias())
    rows = rows.filter(kind="rule", at__gt=now - timedelta(seconds=seconds)).order_by("-pk")[:MAX_PAST_EDITS]
    edits = [
        ((now - change.at).total_seconds(), _past_rule(change, change.before), _past_rule(change, change.after))
        for change in reversed(rows)
    ]
    return [(age, before, after) for age, before, after in edits if before is not None and after is not None]


def _past_rule(change: ThrottleChange, state: Mapping[str, object] | None) -> Rule | None:
    """Return the rule with this state before or after a change. Return None without one, or if it is not valid now."""
    if change.row is None:  # an edit of settings
        rule = state and _result(change.name, partial(Rule.from_options, change.name, state))[1]
    elif state is None:
        rule = from_settings().rules.get(change.name)  # a row replaces it
    else:
        rule = _result(change.name, _model().from_state({**state, "name": change.name}).as_rule)[1]
    return rule if isinstance(rule, Rule) else None


def promote_due() -> None:
    """Replace rules by candidates that are due. Several processes may call this at once. Errors are only logged."""
    for source in _sources:
        try:
            source.promote_due()
        except Exception as error:  # noqa: BLE001  (edited rules are read nevertheless)
            if _promotion_log.try_acquire(source.name):
                logger.warning("due %s were not promoted, the next poll tries again: %s", source.name, error)


def check_allowed(rule: Rule) -> Rule:
    """Return the rule. Raise InvalidRule for a function, or a key or trait that needs a setting, absent from settings.

    Functions are imported and called for every client. Editors of rules may choose only functions named in settings.
    """
    rules = from_settings().rules.values() if rule.functions else ()
    allowed = {function for from_file in rules for function in from_file.functions}
    for option, path in rule.functions:
        if (option, path) not in allowed:
            pattern = gettext_noop("the {option} {path!r} is used by no rule in settings; name it there first")
            raise InvalidRule(translatable(pattern, option=option, path=path), option, rule.name)
    for option, values in (("key", key_parts(rule.key)), ("audience", rule.audience), ("plans", rule.plans)):
        for kind in without_setting(values, conf()):
            pattern = gettext_noop("the setting {setting} does not say who the {kind} is")
            raise InvalidRule(translatable(pattern, setting=kind.setting, kind=kind.name), option, rule.name)
    return rule
