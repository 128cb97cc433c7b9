"""The sources of rules: settings, and the database, which wins where both have a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from django.apps import apps
from django.db import OperationalError, ProgrammingError, connections, router, transaction

from django_throttle.conf import Conf, conf
from django_throttle.core import Rule
from django_throttle.core.key import without_setting
from django_throttle.core.options import MAX_NAME, functions, parts
from django_throttle.exceptions import InvalidOverride, InvalidRate, InvalidRule
from django_throttle.rulebook.reader import NO_ROWS, NOTHING, Fault, Found, Made, Reading, Rows, Transaction

APP: Final = "django_throttle"
# Columns that say nothing to a call; a date costs as much to read as all the others.
REMARKS: Final = frozenset(("description", "updated_at", "reason", "created_by", "created_at"))
_settings: tuple[Conf, Found] | None = None


def read(before: Found = NOTHING) -> Reading:
    """Read both sources; a database that fails is reported, never raised.

    ``before`` is what the database had at the last reading; where nothing has changed, it is returned as it is.
    """
    settings = from_settings()
    if not are_in_database():
        return Reading(settings)
    try:
        connection = connections[alias()]
        open_in = Transaction(connection) if connection.in_atomic_block else None
        return Reading(settings, from_database(before), open_in=open_in)
    except Exception as error:  # noqa: BLE001  (no database, no table, no rights: the rules in force stay)
        return Reading(settings, failure=error)


def rules() -> tuple[Rule, ...]:
    """The rules of both sources, without the overrides, of which there may be very many."""
    rows = _read(_model()._default_manager.using(alias()).all(), "as_rule") if are_in_database() else {}
    return tuple({**from_settings().rules, **_divided(rows)[0]}.values())


def from_settings() -> Found:
    """The rules of DJANGO_THROTTLE["RULES"], made once for these settings."""
    global _settings
    settings, known = conf(), _settings  # another thread may replace both
    if known is None or known[0] is not settings:
        rules = settings.RULES
        fault = f"is a dictionary of rules, not {type(rules).__name__}"
        found = from_mapping(rules) if isinstance(rules, Mapping) else Found({}, {"RULES": fault})
        known = _settings = settings, found
    return known[1]


def from_mapping(rules: Mapping[Any, Any]) -> Found:
    """The rules of a mapping of names to options."""
    made = {name: _made(str(name), partial(Rule.from_options, str(name), options)) for name, options in rules.items()}
    return Found(*_divided(made))


def from_database(before: Found = NOTHING) -> Found:
    """The rules and the overrides of the admin; raises what the database raises.

    Only rows that differ from those of ``before`` are validated; where none does, ``before`` itself is returned.
    """
    using = alias()
    # A query that fails must not break a transaction of the site's.
    guard = transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext()
    with guard:
        rules = _read(_model()._default_manager.using(using).all(), "as_rule", before.rows[0])
        overrides = _read(_overrides()._default_manager.using(using).in_force(), "as_override", before.rows[1])
    if before is not NOTHING and (rules, overrides) == before.rows:
        return before
    in_force, unfit = _divided(overrides)
    return Found(*_divided(rules), tuple(in_force.values()), unfit, (rules, overrides))


def _read(rows: Any, make: str, before: Rows = NO_ROWS) -> Rows:
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
        made[row] = _made(one.name if make == "as_rule" else one.pk, getattr(one, make))
    return {row: before[row] if row in before else made[row] for row in raw}


def sentence(name: object, error: Exception) -> str:
    """What is wrong, without the rule's name, which the core puts in front of it."""
    return str(error).removeprefix(f"rule {str(name)[:MAX_NAME]!r}: ")


def advice(error: Exception) -> str:
    """Why the database cannot be read, in one line, and what to do where that is known."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    tables = (_model()._meta.db_table, _overrides()._meta.db_table)
    lacking = isinstance(error, (OperationalError, ProgrammingError)) and any(table in text for table in tables)
    if lacking and "denied" not in text:
        return f"its table of rules is missing or out of date: run `manage.py migrate` ({text})"
    return text


def declared(option: str) -> tuple[str, ...]:
    """The dotted paths of functions that rules in settings, disabled ones too, have as ``option`` (key or cost)."""
    found = {getattr(rule, option) for rule in from_settings().rules.values()}
    return tuple(sorted(path for path in found if isinstance(path, str) and "." in path))


def are_in_database() -> bool:
    """True when a database is asked for rules."""
    return conf().DATABASE_RULES and apps.is_installed(APP)


def is_private() -> bool:
    """True when no other thread can read the rules' database: SQLite in memory."""
    connection: Any = connections[alias()]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _made(name: Any, make: Callable[[], Any]) -> Made:
    try:
        return name, make()
    except (InvalidRule, InvalidRate, InvalidOverride) as error:
        return name, Fault(sentence(name, error))


def _divided(made: Mapping[Any, Made]) -> tuple[dict[Any, Any], dict[Any, Fault]]:
    """What makes sense, and what is wrong with the rest; each by its name or number."""
    faults = {name: one for name, one in made.values() if isinstance(one, Fault)}
    return {name: one for name, one in made.values() if name not in faults}, faults


def _model() -> Any:
    return apps.get_model(APP, "ThrottleRule")


def _overrides() -> Any:
    return apps.get_model(APP, "ThrottleOverride")


def alias() -> str:
    """The database of the rules: the one that is written, for a replica may not have a committed edit yet."""
    return router.db_for_write(_model())


def check_allowed(rule: Rule) -> Rule:
    """The rule itself; raises InvalidRule for a function, or a tenant, that settings do not name.

    A function is imported and called for every client, so who edits rules may only choose among those of settings.
    """
    _check_functions(rule, "key", functions(rule.key))
    _check_functions(rule, "cost", (rule.cost,) if isinstance(rule.cost, str) else ())
    for option, asked in (("key", parts(rule.key)), ("audience", rule.audience)):
        for kind in without_setting(asked, conf()):
            message = f"rule {rule.name!r}: the setting {kind.setting} does not say who the {kind.name} is"
            raise InvalidRule(message, option)
    return rule


def _check_functions(rule: Rule, option: str, paths: tuple[str, ...]) -> None:
    known = {path for given in declared(option) for path in parts(given)} if paths else ()
    for path in paths:
        if path not in known:
            message = f"rule {rule.name!r}: the {option} {path!r} is used by no rule in settings; name it there first"
            raise InvalidRule(message, option)
