"""A database is chosen by its address, and a server of our own leaves nothing behind."""

from __future__ import annotations

import pytest

from testproject.databases import database_settings


@pytest.mark.parametrize(
    ("address", "engine", "name", "place"),
    [
        ("", "sqlite3", ":memory:", ("", "", "", "")),
        ("site.sqlite3", "sqlite3", "site.sqlite3", ("", "", "", "")),
        ("postgresql://anna:p%40ss@db:5433/site", "postgresql", "site", ("anna", "p@ss", "db", "5433")),
        ("postgres://db/site", "postgresql", "site", ("", "", "db", "")),
        ("mysql://anna@db/my%20site", "mysql", "my site", ("anna", "", "db", "")),
        ("mariadb://db:3307/site", "mysql", "site", ("", "", "db", "3307")),
    ],
)
def test_an_address_becomes_settings(address: str, engine: str, name: str, place: tuple[str, ...]) -> None:
    found = database_settings(address)
    assert (found["ENGINE"], found["NAME"]) == (f"django.db.backends.{engine}", name)
    assert tuple(found.get(key, "") for key in ("USER", "PASSWORD", "HOST", "PORT")) == place


@pytest.mark.parametrize(("address", "told"), [("oracle://db/site", "oracle"), ("postgresql", "make test DATABASE=")])
def test_an_address_that_leads_nowhere_is_said(address: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        database_settings(address)
