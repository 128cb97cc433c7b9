"""Where the rules of a round are kept: a SQLite file, or PostgreSQL; and what is done to it."""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from testproject.services import NotRunning
from tests.databases import PostgreSQL


class SQLiteFile:
    def __init__(self, path: Path) -> None:
        self.address = str(path)

    def lock(self) -> None:
        self._other = sqlite3.connect(self.address, isolation_level=None)
        self._other.execute("BEGIN EXCLUSIVE")

    def free(self) -> None:
        self._other.close()

    def lose(self) -> None:
        self._away = Path(self.address).rename(Path(self.address).with_name("away"))

    def find(self) -> None:
        self._away.rename(self.address)


class Server:
    def __init__(self) -> None:
        server = postgresql()
        self.address = server.url
        self.lock, self.free = server.pause, server.resume
        self.lose, self.find = server.kill, server.start


Database = SQLiteFile | Server


@cache
def postgresql() -> PostgreSQL:
    return PostgreSQL()


def kept(kind: str) -> str:
    """Where a round of this kind keeps its rules on this machine, and why, if that is another place."""
    if kind == "PostgreSQL":
        try:
            postgresql()
        except NotRunning as reason:
            return f"SQLite in place of PostgreSQL ({str(reason).splitlines()[0]})"
    return kind


def database(kind: str, folder: Path) -> Database:
    """A database without our tables: of this kind, or what ``kept`` says in its place."""
    if kept(kind) == "PostgreSQL":
        return Server()
    with closing(sqlite3.connect(folder / "rules.sqlite3")):
        return SQLiteFile(folder / "rules.sqlite3")
