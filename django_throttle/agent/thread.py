"""Background thread of a store, and its periodic jobs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from django_throttle.runtime import LogThrottle, in_child

logger = logging.getLogger("django_throttle")

RETRY_SECONDS: Final = 1.0
MAX_WAIT_SECONDS: Final = 1.0
IDLE_CHECK_SECONDS: Final = 0.05  # between two checks whether a process that ends still holds something


@dataclass(slots=True)
class Job:
    """A periodic job."""

    name: str  #: noun phrase for the log, such as "sending the beat"
    seconds: float
    work: Callable[[], object]  #: Does the work. If it returns a float, the next run is due in so many seconds.
    due: float  #: time of the next run, on the monotonic clock
    meaning: str  #: consequence of a failure for the site and the remedy, for the log; may be empty
    log_throttle: LogThrottle = field(default_factory=LogThrottle)

    def run(self) -> None:
        """Do the work. An error is logged, and the job runs again in RETRY_SECONDS at most."""
        wait = self.seconds
        try:
            due_in = self.work()
            wait = due_in if isinstance(due_in, float) else wait
        except Exception as error:  # noqa: BLE001 - the other jobs go on after any error
            wait = min(wait, RETRY_SECONDS)
            if self.log_throttle.try_acquire(self.name):
                meaning = self.meaning and f"; {self.meaning}"
                logger.warning("%s failed, trying again: %s: %s%s", self.name, type(error).__name__, error, meaning)
        self.due = time.monotonic() + wait


class AgentThread:
    """A daemon thread and its jobs. A job that blocks delays the others."""

    def __init__(self) -> None:
        self._jobs: tuple[Job, ...] = ()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._check_idle: Callable[[], object] | None = None
        in_child(self, AgentThread._drop_jobs)

    def _drop_jobs(self) -> None:
        """Drop the jobs in a forked child, where gevent lets this thread go on."""
        self._jobs = ()

    def every(
        self, seconds: float, work: Callable[[], object], name: str, *, wait: float = 0.0, meaning: str = ""
    ) -> None:
        """Add a job that runs after ``wait`` seconds, and then every ``seconds``."""
        with self._lock:
            self._jobs = (*self._jobs, Job(name, seconds, work, time.monotonic() + wait, meaning))

    def wake(self, check_idle: Callable[[], object]) -> None:
        """Call ``check_idle`` now and every IDLE_CHECK_SECONDS, as the process ends. Signal handlers may call this."""
        self._check_idle = check_idle
        self._woken.put(None)

    def start(self) -> None:
        """Start the thread unless it runs. Raise RuntimeError if the system cannot start one."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="django_throttle agent", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self, seconds: float = 1.0) -> None:
        """End the thread, and wait ``seconds`` at most for a running job."""
        self._stopped.set()
        self._woken.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with suppress(Empty):
                self._woken.get(timeout=self._wait())
            if self._stopped.is_set():
                return
            if self._check_idle is not None:
                self._check_idle()
            for job in self._jobs:
                if self._jobs and job.due <= time.monotonic() and not self._stopped.is_set():
                    job.run()

    def _wait(self) -> float:
        if self._check_idle is not None:
            return IDLE_CHECK_SECONDS
        due = min((job.due for job in self._jobs), default=float("inf"))
        return min(MAX_WAIT_SECONDS, max(0.0, due - time.monotonic()))
