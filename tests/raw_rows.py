"""Rows as raw SQL leaves them: through the table's constraints, or past them, on each database."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DataError, connection, models


def write(model: type[models.Model], where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
    """Write these columns by SQL alone, of every row or of those where these others are so."""
    changes = ", ".join(map(_assigned, columns))
    condition = " AND ".join(map(_assigned, where or {}))
    statement = f"UPDATE {model._meta.db_table} SET {changes}" + (f" WHERE {condition}" if where else "")
    with connection.cursor() as cursor:
        cursor.execute(statement, [*columns.values(), *(where or {}).values()])


def _assigned(column: str) -> str:
    return f"{connection.ops.quote_name(column)} = %s"


def force(model: type[models.Model], where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
    """The same without the table's constraints; the test is skipped where the column's type alone refuses it."""
    with unconstrained(model):
        try:
            write(model, where, **columns)
        except DataError as error:
            pytest.skip(f"no such row on {connection.vendor}: {error}")


@contextmanager
def unconstrained(model: type[models.Model]) -> Iterator[None]:
    """No CHECK of the table counts; for PostgreSQL they are gone until the test's transaction is rolled back."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
            yield
            cursor.execute("PRAGMA ignore_check_constraints = OFF")
        elif connection.vendor == "mysql":
            cursor.execute("SET check_constraint_checks = 0")
            yield
            cursor.execute("SET check_constraint_checks = 1")
        else:
            assert connection.in_atomic_block, "mark the test django_db, without transaction=True"
            table = model._meta.db_table
            constraints = connection.introspection.get_constraints(cursor, table)
            for name in [name for name, found in constraints.items() if found["check"]]:
                cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
            yield
