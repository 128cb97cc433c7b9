"""The servers and the database of a round, and what is done to them."""

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path

from redis import Redis
from redis.exceptions import ResponseError

from testproject.services import NotRunning
from tests.databases import PostgreSQL
from tests.fleet import RedisCluster, Sentinels
from tests.lab.campaign.history import Fault
from tests.lab.campaign.plan import STEPS, Step
from tests.lab.matrix.__main__ import server_of, version_of
from tests.proxy import Proxy
from tests.servers import RedisServer, wait_until
from tests.steps import SteppingServer

PATIENCE = 30.0  # until a replica has taken over
SPLIT_SECONDS = 2.0  # until everybody has left a primary that wakes up and is none any more
TAKEOVER = ("+switch-master", "+convert-to-slave", "+fix-slave", "+elected", "+promoted", "-failover", "+role-change")
NOTHING_LOST = (0, 0, 0.0)
EXPIRED = 420  # a clock that steps ahead by more forgets slots


class Stage:
    """Servers of one kind; ``url`` is what clients use, ``direct`` what the verdict asks."""

    url: str
    direct: str

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    @property
    def version(self) -> str:
        return version_of(self.servers()[0].binary)

    def play(self, step: Step) -> list[Fault]:
        begin = time.monotonic()
        losses, slots_lost, more = getattr(self, "do_" + step.name.replace(" ", "_"))(step) or NOTHING_LOST
        return [Fault(begin, time.monotonic() + more, step.name, losses, slots_lost)]

    def servers(self) -> list[RedisServer]:
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until all of them are there again."""

    def log(self) -> list[str]:
        return []

    def failovers(self) -> list[tuple[float, float]]:
        """When, by the time of day, another server took over, whoever may have caused that."""
        return []

    def do_evict(self, step: Step) -> tuple[int, int, float]:
        node = self.servers()[step.choice % len(self.servers())]
        with full(node, "allkeys-lfu") as client:
            fill(client, step.seconds)
        return 1, 1, 0.0


class Single(Stage):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.server = stack.enter_context(SteppingServer())
        self.proxy = stack.enter_context(Proxy(self.server.port))
        self.url, self.direct = self.proxy.url, self.server.url
        self.copy = b""

    def servers(self) -> list[RedisServer]:
        return [self.server]

    def play(self, step: Step) -> list[Fault]:
        if not hasattr(self, "do_" + step.name.replace(" ", "_")):
            begin = time.monotonic()
            self.proxy.set(step.name, 0.01 + step.choice / 10_000)  # type: ignore[arg-type]  # the proxy's own words
            time.sleep(step.seconds)
            self.proxy.set("pass")
            return [Fault(begin, time.monotonic(), step.name)]
        return super().play(step)

    def do_stop(self, step: Step) -> None:
        stop(self.server, step.seconds)

    def do_kill(self, step: Step) -> tuple[int, int, float]:
        kill(self.server, step.seconds)
        return 1, 1, 0.0

    def do_copy(self, step: Step) -> None:
        """What it has now is what it comes back with at the next ``old copy``."""
        self.copy = self.server.copy()
        (self.server.folder / "dump.rdb").unlink()

    def do_old_copy(self, step: Step) -> tuple[int, int, float]:
        self.server.kill()
        time.sleep(step.seconds)
        self.server.restart_from(self.copy)
        (self.server.folder / "dump.rdb").unlink()  # else it would come back at the next kill
        return 1, 1, 0.0

    def do_clock(self, step: Step) -> tuple[int, int, float]:
        seconds = STEPS[step.choice % len(STEPS)]
        self.server.step(seconds)
        return 1, int(seconds > EXPIRED), 0.0

    def do_full(self, step: Step) -> None:
        with full(self.server, "noeviction"):
            time.sleep(step.seconds)


class Watched(Stage):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.fleet = stack.enter_context(Sentinels())
        self.url = self.direct = self.fleet.url

    def servers(self) -> list[RedisServer]:
        return [self.fleet.master()]

    def settle(self) -> None:
        self.fleet.settle()

    def log(self) -> list[str]:
        first = self.fleet.servers[0].port
        found = [f"servers {[server.port for server in self.fleet.servers]}, the first primary was {first}"]
        for number, sentinel in enumerate(self.fleet.sentinels):
            found += [f"sentinel {number}: {line}" for line in _said(sentinel, *TAKEOVER)]
        return found

    def failovers(self) -> list[tuple[float, float]]:
        return _spans(self.fleet.sentinels, "+elected-leader", "+switch-master")

    def do_stop_primary(self, step: Step) -> tuple[int, int, float]:
        """What wakes up as the primary that it was may count on until everybody has left it."""
        stop(self.fleet.master(), step.seconds)
        return 2, 2, SPLIT_SECONDS

    def do_kill_primary(self, step: Step) -> tuple[int, int, float]:
        old = self.fleet.master()
        old.kill()
        wait_until(
            lambda: all(self._names_another(one, old) for one in self.fleet.sentinels), timeout=PATIENCE, every=0.05
        )
        time.sleep(step.seconds)
        old.start()
        return 1, 1, 0.0

    def do_stop_sentinel(self, step: Step) -> None:
        stop(self.fleet.sentinels[step.choice % 3], step.seconds)

    def do_kill_sentinel(self, step: Step) -> None:
        kill(self.fleet.sentinels[step.choice % 3], step.seconds)

    @staticmethod
    def _names_another(sentinel: RedisServer, old: RedisServer) -> bool:
        with sentinel.client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "dt")
        return int(port) != old.port


class Sharded(Stage):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.cluster = stack.enter_context(RedisCluster())
        self.url = self.direct = self.cluster.url

    def servers(self) -> list[RedisServer]:
        return self.cluster.masters()

    def settle(self) -> None:
        self.cluster.settle()

    def log(self) -> list[str]:
        return [f"node {node.port}: {line}" for node in self.cluster.nodes for line in _said(node, "election")]

    def failovers(self) -> list[tuple[float, float]]:
        return _spans(self.cluster.nodes, "Start of election", "election won")

    def do_stop_node(self, step: Step) -> tuple[int, int, float]:
        stop(self._master(step), step.seconds)
        return 2, 2, SPLIT_SECONDS

    def do_kill_node(self, step: Step) -> tuple[int, int, float]:
        node = self._master(step)
        node.kill()
        wait_until(lambda: self._replaced(node), timeout=PATIENCE, every=0.05)
        time.sleep(step.seconds)
        node.start()
        return 1, 1, 0.0

    def _master(self, step: Step) -> RedisServer:
        self.cluster.settle()
        masters = self.cluster.masters()
        return masters[step.choice % len(masters)]

    def _replaced(self, node: RedisServer) -> bool:
        masters = self.cluster.masters()
        return node not in masters and len(masters) == 3


def stop(server: RedisServer, seconds: float) -> None:
    server.pause()
    time.sleep(seconds)
    server.resume()


def kill(server: RedisServer, seconds: float) -> None:
    server.kill()
    time.sleep(seconds)
    server.start()


def _spans(servers: Iterable[RedisServer], begins: str, ends: str) -> list[tuple[float, float]]:
    found = []
    for server in servers:
        begun = None
        for line in _said(server, begins, ends):
            if begins in line:
                begun = begun or _moment(line)
            elif begun is not None:
                found.append((begun, _moment(line)))
                begun = None
    return sorted(found)


def _said(server: RedisServer, *words: str) -> list[str]:
    lines = (server.folder / "log").read_text(errors="replace").splitlines()
    return [line for line in lines if any(word in line for word in words)]


def _moment(line: str) -> float:
    _, day, month, year, clock, *_ = line.split()
    return datetime.strptime(f"{day} {month} {year} {clock}", "%d %b %Y %H:%M:%S.%f").astimezone().timestamp()


@contextmanager
def full(server: RedisServer, policy: str) -> Iterator[Redis]:
    with server.client() as client:
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", used + (1_000_000 if policy != "noeviction" else 1))
        try:
            yield client
        finally:
            client.config_set("maxmemory", 0)


def fill(client: Redis, seconds: float) -> None:
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        number += 1
        with suppress(ResponseError):  # a Cluster's other nodes have that slot
            client.set(f"other:{{{number}}}", b"x" * 10_000, ex=10)
        time.sleep(0.02)


KINDS = {"Redis": Single, "Valkey": Single, "Sentinel": Watched, "Cluster": Sharded}


@contextmanager
def stage(kind: str) -> Iterator[Stage]:
    """Servers of this kind, all ended afterwards; of the usual Redis unless it says Valkey."""
    usual = os.environ.get("REDIS")
    try:
        if kind == "Valkey":
            os.environ["REDIS"] = server_of("Valkey 9")
        with ExitStack() as stack:
            yield KINDS[kind](stack)
    finally:
        os.environ.pop("REDIS", None)
        if usual is not None:
            os.environ["REDIS"] = usual


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
