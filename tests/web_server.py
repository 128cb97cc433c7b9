"""A web server as its users start it: processes of its own that serve an application of the tests."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.servers import free_port, slack, wait_until

ROOT: Final = Path(__file__).parents[1]


class WebServer:
    """One server in a session of its own, so that its end reaches its workers and nobody else.

    ``loaded`` is what each of its workers prints once it has the application.
    """

    def __init__(self, name: str, folder: Path, loaded: str, workers: int = 1) -> None:
        self.name, self.loaded, self.workers, self.port = name, loaded, workers, free_port()
        self.log = folder / f"{name}-{self.port}.log"

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_it_serves(self) -> None:
        wait_until(self._serves, timeout=slack(60), every=0.05)

    def _serves(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        if self.log.read_text().count(self.loaded) < self.workers:
            return False
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def signal(self) -> None:
        """SIGTERM to the process that was started, as a deployment does."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
