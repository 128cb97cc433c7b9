"""The meter: what it counts is what Django's query log lists and what was fetched, wherever a query is made from."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import DatabaseError, connection, connections
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test.utils import CaptureQueriesContext

from django_throttle.costs.meter import Meter, QueryUsage, current_meter, metered, table_of
from django_throttle.models import ThrottleRule

UNCOUNTED = ("BEGIN", "COMMIT", "ROLLBACK")
ROWS = 250  # more than Django fetches at a time


def logged(captured: CaptureQueriesContext) -> list[str]:
    found = [one["sql"] or "" for one in captured.captured_queries]  # psycopg knows none that a wrapper refused
    return [sql for sql in found if not sql.startswith(UNCOUNTED)]


@pytest.fixture
def groups(transactional_db: None) -> None:
    Group.objects.bulk_create(Group(name=f"group {number}") for number in range(ROWS))


@pytest.fixture
def other(groups: None, tmp_path: Any) -> Iterator[str]:
    """The alias of a second database, of SQLite, which has a table of groups."""
    # Not in the settings, as a test may use only the databases that were there before it began.
    mine = {**connection.settings_dict, "NAME": str(tmp_path / "other.sqlite3"), "OPTIONS": {}}
    connections["other"] = found = DatabaseWrapper(mine, "other")
    try:
        with found.cursor() as cursor:
            cursor.execute("CREATE TABLE auth_group (id integer PRIMARY KEY, name varchar(150))")
        yield "other"
    finally:
        found.close()
        del connections["other"]


def write() -> int:
    one = Group.objects.create(name="one more")
    Group.objects.filter(pk=one.pk).update(name="renamed")
    return 1 if connection.features.can_return_columns_from_insert else 0


def failing() -> int:
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")
    return len(Group.objects.all()[:2])


def by_cursor() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM auth_group ORDER BY id")
        found = [cursor.fetchone(), *cursor.fetchmany(7), *cursor.fetchmany(size=3), *cursor.fetchall()]
        assert (len(found), cursor.fetchone()) == (ROWS, None)
        cursor.execute("SELECT id FROM auth_group ORDER BY id")
        found += [row for _, row in zip(range(11), cursor, strict=False)]
    return len(found)


def by_many() -> int:
    with connection.cursor() as cursor:
        cursor.executemany("UPDATE auth_group SET name = %s WHERE id = %s", [("x", -1), ("y", -2), ("z", -3)])
    return 0


# What makes queries, and returns how many rows it has fetched.
WAYS: dict[str, Callable[[], int]] = {
    "every": lambda: len(Group.objects.all()),
    "piecewise": lambda: sum(1 for _ in Group.objects.iterator(chunk_size=20)),
    "values": lambda: len(Group.objects.values_list("name", flat=True)[:30]),
    "raw": lambda: len(list(Group.objects.raw("SELECT id, name FROM auth_group WHERE name LIKE %s", ["group 1%"]))),
    **{way.__name__: way for way in (write, failing, by_cursor, by_many)},
}


@pytest.mark.usefixtures("groups")
class TestQueriesAndRows:
    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    def test_are_those_of_the_log_and_those_fetched(self, way: Callable[[], int]) -> None:
        with CaptureQueriesContext(connection) as captured, metered() as meter:
            fetched = way()
        assert meter.queries == len(logged(captured)) > 0
        assert meter.rows == fetched
        assert meter.seconds > 0.0

    async def test_of_tasks_at_once_go_to_the_meter_of_each(self) -> None:
        async def ask(number: int) -> tuple[int, int]:
            with metered() as meter:
                for _ in range(number):
                    assert len([group async for group in Group.objects.all()[:30]]) == 30
            return meter.queries, meter.rows

        assert await asyncio.gather(*map(ask, range(6))) == [(number, 30 * number) for number in range(6)]

    def test_are_told_by_alias_and_model(self, other: str) -> None:
        with CaptureQueriesContext(connections[other]) as captured, metered() as meter:
            Group.objects.using(other).create(name="there")
            list(Group.objects.using(other).all())
            Group.objects.count()
            User.objects.count()
            list(User.objects.filter(groups__name="x"))
            list(ThrottleRule.objects.all())
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchone()
        found = meter.databases
        assert set(found) == {"default", other}
        assert found[other].queries == len(logged(captured))
        assert {name: (use.queries, use.rows) for name, use in found[other].models.items()} == {"auth.Group": (2, 2)}
        assert (found["default"].queries, found["default"].rows) == (5, 3)
        assert {name: (use.queries, use.rows) for name, use in found["default"].models.items()} == {
            "auth.Group": (1, 1),
            "auth.User": (2, 1),
            "django_throttle.ThrottleRule": (1, 0),
        }
        assert meter.queries == sum(use.queries for use in found.values())

    def test_of_a_meter_inside_another_go_to_both(self) -> None:
        with metered() as outer:
            WAYS["every"]()
            with metered() as inner:
                WAYS["values"]()
            assert current_meter.get() is outer
        assert (inner.queries, inner.rows) == (1, 30)
        assert (outer.queries, outer.rows) == (2, 30 + ROWS)


def test_measures_go_on_until_it_stops() -> None:
    meter = Meter(bytes=12)
    meter.uses["default", "", 0] = QueryUsage(3, 40, 0.25)
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert meter.stop()
    assert 20 <= meter.cpu_ms <= meter.wall_ms + 1
    found = meter.measures
    times = {"wall_ms": meter.wall_ms, "cpu_ms": meter.cpu_ms}
    assert found == {"queries": 3, "rows": 40, "db_ms": 250.0, "response_bytes": 12, **times}
    assert not meter.stop()
    assert meter.measures == found


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ('SELECT "a"."b" FROM "auth_user" WHERE "a"."b" = %s', '"auth_user"'),
        ("select b from auth_user", "auth_user"), ("SELECT [a] FROM [dbo].[auth_user]", "[dbo].[auth_user]"),
        ('SELECT EXTRACT(YEAR FROM "x") FROM "auth_user"', '"auth_user"'),
        ('SELECT (SELECT U0."x" FROM "auth_group" U0) AS "y" FROM "auth_user"', '"auth_user"'),
        ('SELECT COUNT(*) FROM (SELECT DISTINCT "x" FROM "auth_user") subquery', '"auth_user"'),
        ('(SELECT "x" FROM "auth_user") UNION (SELECT "x" FROM "auth_group")', '"auth_user"'),
        ('INSERT OR IGNORE INTO "auth_user" ("x") SELECT "x" FROM "auth_group"', '"auth_user"'),
        ('UPDATE "auth_user" SET "x" = %s', '"auth_user"'),
        ('DELETE FROM "auth_user" WHERE "id" IN (%s)', '"auth_user"'), ("WITH x AS (SELECT 1) SELECT * FROM x", ""),
        ("SAVEPOINT x", ""), ("SELECT 1", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_table_of_a_statement(sql: str, table: str) -> None:
    assert table_of(sql) == table
