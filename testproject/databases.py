"""An address of a database, as the environment gives it, becomes the settings that Django asks for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

ENGINES = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
# Two workers and the refresher share the file: readers never wait, writers queue instead of failing.
SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def database_settings(address: str) -> dict[str, Any]:
    """``postgresql://user:password@host:port/name``, ``mysql://…``, or the path of a SQLite file."""
    if address in ENGINES:
        raise ValueError(f"DATABASE={address} says no place; `make test DATABASE={address}` starts one of its own")
    if "://" not in address:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": address or ":memory:", "OPTIONS": SQLITE_OPTIONS}
    parts = urlsplit(address)
    if parts.scheme not in ENGINES:
        raise ValueError(f"DATABASE must begin with one of {', '.join(ENGINES)}, or be a path; got {parts.scheme}://")
    if ENGINES[parts.scheme] == "mysql":
        _find_mysql_driver()
    return {
        "ENGINE": f"django.db.backends.{ENGINES[parts.scheme]}",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def _find_mysql_driver() -> None:
    """Django's own choice is mysqlclient, which needs a compiler; where it is missing PyMySQL stands in."""
    if find_spec("MySQLdb") is None:
        import_module("pymysql").install_as_MySQLdb()
