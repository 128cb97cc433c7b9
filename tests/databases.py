"""Real PostgreSQL and MariaDB servers: each in a folder of its own, on loopback, ended by its own process id.

``python -m tests.databases COMMAND…`` runs the command. Where DATABASE in the environment is ``postgresql`` or
``mariadb``, it starts that server first, and DATABASE then leads there.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from testproject.databases import database_settings
from testproject.services import NotRunning
from tests.servers import LocalServer

USER = "throttle"
PLACES = ("usr/lib/postgresql/*/bin", "usr/sbin")


class DatabaseServer(LocalServer):
    """A server that forgets everything when it ends. Root starts it as another user: no server here runs as root."""

    scheme: str
    account: str  # the user that Debian's package makes
    database: str
    start_seconds, ending = 60.0, signal.SIGQUIT  # on a busy machine

    def __init__(self) -> None:
        super().__init__()
        self.password = secrets.token_hex(8)
        if os.geteuid() == 0:
            account = pwd.getpwnam(self.account)
            self.identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"{self.scheme}://{USER}:{self.password}@127.0.0.1:{self.port}/{self.database}"

    def first_words(self) -> str:
        """What the file ``first`` says: the password of its user, as this server wants to read it."""
        raise NotImplementedError

    def preparation(self) -> list[str]:
        raise NotImplementedError

    def _prepare(self) -> None:
        first = self.folder / "first"
        first.write_text(self.first_words())
        for path in (self.folder, first) if self.identity else ():
            os.chown(path, self.identity["user"], self.identity["group"])
        options: dict[str, Any] = {"cwd": self.folder, "capture_output": True, "text": True, **self.identity}
        done = subprocess.run(self.preparation(), check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr

    def answers(self) -> bool:
        try:
            execute(self.url, "SELECT 1")
        except OSError:
            return False
        return True


class PostgreSQL(DatabaseServer):
    scheme, account, database = "postgresql", "postgres", "postgres"

    def first_words(self) -> str:
        return self.password

    def preparation(self) -> list[str]:
        command = [program("initdb"), "--pgdata=data", f"--username={USER}", "--pwfile=first"]
        return [*command, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]

    def command(self) -> list[str]:
        place = [f"-p{self.port}", "-hlocalhost", f"-k{self.folder}"]
        hasty = ["-cfsync=off", "-csynchronous_commit=off", "-cfull_page_writes=off"]
        return [program("postgres"), "-Ddata", *place, *hasty]


class MariaDB(DatabaseServer):
    scheme, account, database = "mysql", "mysql", "throttle"

    def first_words(self) -> str:
        return (
            f"CREATE DATABASE {self.database};\n"
            f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1';\n"
        )

    def preparation(self) -> list[str]:
        command = [program("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}"]
        return [*command, "--auth-root-authentication-method=socket", "--skip-test-db", "--skip-name-resolve"]

    def command(self) -> list[str]:
        folder = self.folder
        place = [f"--datadir={folder / 'data'}", f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}"]
        network = [f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve"]
        # What Debian's settings say; without them letters would be those of western Europe.
        letters = ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci"]
        hasty = ["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF", f"--init-file={folder / 'first'}"]
        return [program("mariadbd"), "--no-defaults", *place, *network, *letters, *hasty]


SERVERS = {"postgresql": PostgreSQL, "postgres": PostgreSQL, "mariadb": MariaDB, "mysql": MariaDB}


def program(name: str) -> str:
    """The path of a program of a server's; raises NotRunning where there is none."""
    # Debian keeps PostgreSQL's off PATH, and MariaDB's among root's.
    folders = [str(folder) for place in PLACES for folder in sorted(Path("/").glob(place), reverse=True)]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise NotRunning(f"{name} is not installed (Debian: apt install postgresql mariadb-server)")
    return found


@contextmanager
def new_database(folder: Path) -> Iterator[str]:
    """The address of an empty database for a test's processes: a file, or one more on the server of DATABASE."""
    server = os.environ.get("DATABASE", "")
    if "://" not in server:
        yield str(folder / "db.sqlite3")
        return
    parts, name = urlsplit(server), f"throttle_{secrets.token_hex(4)}"
    execute(server, f"CREATE DATABASE {name}")
    try:
        yield parts._replace(path=f"/{name}").geturl()
    finally:
        execute(server, f"DROP DATABASE {name}" + (" WITH (FORCE)" if parts.scheme.startswith("postgres") else ""))


def execute(address: str, statement: str) -> None:
    """Run one statement, outside of any transaction; raises OSError while no server answers there."""
    given = database_settings(address)
    place = {"host": given["HOST"], "port": int(given["PORT"] or 0) or None}
    caller = {"user": given["USER"], "password": given["PASSWORD"], "autocommit": True}
    driver: Any  # imported here, so that a suite on SQLite does without
    if given["ENGINE"].endswith("postgresql"):
        import psycopg as driver

        place["dbname"] = given["NAME"]
    else:
        import pymysql as driver

        place["database"] = given["NAME"]
    try:
        with closing(driver.connect(**place, **caller)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
    except driver.OperationalError as error:
        raise OSError(str(error)) from error


def main(command: list[str]) -> int:
    """Run a command beside the server that DATABASE names, if it names one; returns the command's exit code."""
    if (wanted := os.environ.get("DATABASE", "")) not in SERVERS:
        return subprocess.call(command)
    try:
        started = SERVERS[wanted]()
    except NotRunning as reason:
        sys.exit(str(reason))
    with started as server:
        # Both are for the command, which ends by itself.
        signal.signal(signal.SIGINT, lambda *_: None)
        process = subprocess.Popen(command, env={**os.environ, "DATABASE": server.url})
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
