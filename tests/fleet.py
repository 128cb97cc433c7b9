"""Several Redis servers that take over from one another: a master that Sentinels watch, and a Cluster."""

import socket
import subprocess
from contextlib import ExitStack, suppress
from typing import Any

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from tests.servers import RedisServer, free_port, need_binary, wait_until

DOWN_AFTER = 1.0
NODE_TIMEOUT = 1.0
READY = 60.0  # seconds that a busy machine may take
SYNC = ("--repl-diskless-sync-delay", "0")


class Sentinel(RedisServer):
    def __init__(self, master: int, *more: str) -> None:
        self.master, self.more = master, more
        super().__init__()

    def command(self) -> list[str]:
        settings = self.folder / "sentinel.conf"
        if not settings.exists():  # else it is what the Sentinel itself has made of it
            lines = [
                f"port {self.port}", f"sentinel monitor dt 127.0.0.1 {self.master} 2",
                f"sentinel down-after-milliseconds dt {DOWN_AFTER * 1000:.0f}", "sentinel failover-timeout dt 2000",
                *self.more,
            ]  # fmt: skip
            settings.write_text("\n".join(lines) + "\n")
        return [self.binary, str(settings), "--sentinel", "--bind", "127.0.0.1", "--dir", str(self.folder)]


class Guarded(RedisServer):
    """Redis with a user for those who count, ``app``, and one for those who watch and copy, ``watch``."""

    USERS = "--user default off --user app on >app ~* &* +@all --user watch on >watch ~* &* +@all"

    def __init__(self, *options: str) -> None:
        super().__init__(*SYNC, *self.USERS.split(), "--masteruser", "watch", "--masterauth", "watch", *options)

    def client(self, **options: object) -> Redis:
        return super().client(**{"username": "app", "password": "app", **options})

    def cut_off(self) -> None:
        """From now on no Sentinel and no replica reaches it, while it serves those who count."""
        with self.client() as client:
            client.execute_command("ACL", "SETUSER", "watch", "off")
            client.execute_command("CLIENT", "KILL", "USER", "watch")


class Sentinels(ExitStack):
    """A master, its replica, and three Sentinels; the two servers change places at every failover."""

    credentials = ""
    watching: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        first = self.enter_context(self.server())
        self.servers = [first, self.enter_context(self.server("--replicaof", "127.0.0.1", str(first.port)))]
        wait_until(lambda: self._link(self.servers[1]) == "up", timeout=READY)
        self.sentinels = [self.enter_context(Sentinel(first.port, *self.watching)) for _ in range(3)]
        self.settle()

    def server(self, *options: str) -> RedisServer:
        return RedisServer(*SYNC, *options)

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.credentials}{self.hosts}/dt/0"

    def master(self) -> RedisServer:
        with self.sentinels[0].client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "dt")
        return next(server for server in self.servers if server.port == int(port))

    def settle(self) -> None:
        """Wait until everyone sees everyone, and the replica is one and has all that the master has."""
        wait_until(lambda: all(map(self._is_calm, self.sentinels)), timeout=READY, every=0.05)

    def _is_calm(self, sentinel: RedisServer) -> bool:
        with sentinel.client() as client:
            row = client.execute_command("SENTINEL", "MASTER", "dt")
            state = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
        replica = next(server for server in self.servers if server.port != int(state["port"]))
        counts = (state["flags"], state["num-slaves"], state["num-other-sentinels"])
        return counts == ("master", "1", "2") and self._link(replica) == "up"

    @staticmethod
    def _link(server: RedisServer) -> str:
        with suppress(RedisError), server.client() as client:
            return str(client.info("replication").get("master_link_status"))
        return "down"


class GuardedSentinels(Sentinels):
    credentials = "app:app@"
    watching = ("sentinel auth-user dt watch", "sentinel auth-pass dt watch")

    def server(self, *options: str) -> RedisServer:
        return Guarded(*options)


class RedisCluster(ExitStack):
    def __init__(self, replicas: int = 1, *options: str, masters: int = 3) -> None:
        self.cli = need_binary("redis-cli")
        settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", f"{NODE_TIMEOUT * 1000:.0f}")
        more = ("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no")
        super().__init__()
        self.nodes = [
            self.enter_context(RedisServer(*SYNC, *settings, *more, *options, port=_bus_port()))
            for _ in range(masters + masters * replicas)
        ]
        hosts = [f"127.0.0.1:{node.port}" for node in self.nodes]
        self.run("create", *hosts, "--cluster-replicas", str(replicas))
        self.settle()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])

    def run(self, command: str, *arguments: str) -> str:
        line = [self.cli, "--cluster", command, *arguments, "--cluster-yes"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def owner(self, key: str) -> RedisServer:
        slot = key_slot(key.encode())
        (port,) = (port for first, last, (_, port, *_), *_ in self._slots() if first <= slot <= last)
        return self._by_port(port)

    def masters(self) -> list[RedisServer]:
        return [self._by_port(port) for port in sorted({row[2][1] for row in self._slots()})]

    def name_of(self, node: RedisServer) -> str:
        with node.client() as client:
            return str(client.execute_command("CLUSTER", "MYID"))

    def settle(self) -> None:
        """Wait until every node runs, knows of every slot, and every replica has what its master has."""
        wait_until(lambda: all(map(self._is_calm, self.nodes)), timeout=READY, every=0.05)

    def flush(self) -> None:
        for node in self.masters():
            with node.client() as client:
                client.flushall()

    def _is_calm(self, node: RedisServer) -> bool:
        with suppress(RedisError), node.client() as client:
            state = str(client.execute_command("CLUSTER", "INFO"))
            nodes = str(client.execute_command("CLUSTER", "NODES"))
            up = client.info("replication").get("master_link_status", "up") == "up"
            knows_all = "fail" not in nodes and nodes.count("\n") >= len(self.nodes) - 1
            return "cluster_state:ok" in state and knows_all and up
        return False

    def _slots(self) -> list[Any]:
        for node in self.nodes:
            with suppress(RedisError), node.client(socket_timeout=0.5) as client:
                return list(client.execute_command("CLUSTER", "SLOTS"))
        raise AssertionError("no node answers")

    def _by_port(self, port: int) -> RedisServer:
        return next(node for node in self.nodes if node.port == port)


def _bus_port() -> int:
    """A free port, of which the one 10,000 above is free too: there the nodes talk to each other."""
    while True:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 10_000)):
            return port
