"""``make demo``: the whole site on this machine, until Ctrl-C ends everything that it started.

python -m testproject.demo [--port PORT]
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testproject.prepare import LOGIN, PASSWORD
from testproject.services import ROOT, NotRunning, Services, start_site, stop_on_signals

SCRATCH = ROOT / ".demo"
WELCOME = """
  The page    http://127.0.0.1:{port}/
  The admin   http://127.0.0.1:{port}/admin/   login {login}, password {password}

  Try: pull a slider above 10 per second and watch what is refused; then sign in, change the rate of
       the rule "api" in the admin, and see the chart follow. Open six connections; kill -9 a worker.
  Redis at {redis}; logs in {folder}; Ctrl-C ends everything.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code is 0 after Ctrl-C or SIGTERM, 1 when something could not start."""
    port = _port(arguments)
    stop_on_signals()
    try:
        _check_port(port)
        return _serve(port)
    except NotRunning as reason:
        print(reason, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nEnded.")
        return 0


def _serve(port: int) -> int:
    with _scratch_folder(port) as folder, Services(folder) as services:
        start_site(services, port)
        redis, shown = services.environment["REDIS_URL"], folder.relative_to(ROOT)
        print(WELCOME.format(port=port, login=LOGIN, password=PASSWORD, redis=redis, folder=shown), flush=True)
        while (ended := services.ended()) is None:
            time.sleep(0.5)
        raise NotRunning(f"{ended} has ended; its last words:\n{services.last_words(ended)}")


def _port(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testproject.demo", description="Run the demo site.")
    parser.add_argument("--port", type=int, default=os.environ.get("PORT", "8000"), help="where to serve the site")
    port: int = parser.parse_args(arguments).port
    if not 1 <= port <= 65535:
        parser.error(f"{port} is not a port")
    return port


def _check_port(port: int) -> None:
    try:
        # As the server will ask for it: a connection that is still closing does not count.
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise NotRunning(f"Port {port} is not free ({error.strerror}): give another with PORT={port + 1}.") from None


@contextmanager
def _scratch_folder(port: int) -> Iterator[Path]:
    """A folder of its own for each port, so that two demos do not share a database; gone afterwards."""
    folder = SCRATCH / str(port)
    shutil.rmtree(folder, ignore_errors=True)  # what a demo left that was killed
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another demo is in there
            SCRATCH.rmdir()


if __name__ == "__main__":
    sys.exit(main())
