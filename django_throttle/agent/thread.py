"""The background thread of a store, and the jobs that it repeats."""

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
LONGEST_WAIT: Final = 1.0
IDLE_CHECK_SECONDS: Final = 0.05  # between two looks whether a process that ends holds anything still


@dataclass(slots=True)
class Job:
    """Something done every ``seconds``, or when ``work`` says by a number; times are on the monotonic clock.

    ``meaning`` says what it means for the site when it fails, and what to do.
    """

    name: str
    seconds: float
    work: Callable[[], object]
    due: float
    meaning: str
    log_throttle: LogThrottle = field(default_factory=LogThrottle)

    def run(self) -> None:
        """Do it; a failure is logged and tried again soon, never raised."""
        wait = self.seconds
        try:
            due_in = self.work()
            wait = due_in if isinstance(due_in, float) else wait
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on
            wait = min(wait, RETRY_SECONDS)
            if self.log_throttle.due(self.name):
                meaning = self.meaning and f"; {self.meaning}"
                logger.warning("%s failed, trying again: %s: %s%s", self.name, type(error).__name__, error, meaning)
        self.due = time.monotonic() + wait


class AgentThread:
    """A daemon thread and its jobs; a job that fails or blocks delays the others, and ends nothing."""

    def __init__(self) -> None:
        self._jobs: tuple[Job, ...] = ()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._check_idle: Callable[[], object] | None = None
        in_child(self, AgentThread._drop_jobs)

    def _drop_jobs(self) -> None:
        """In a forked child gevent has this thread go on."""
        self._jobs = ()

    def every(
        self, seconds: float, work: Callable[[], object], name: str, *, wait: float = 0.0, meaning: str = ""
    ) -> None:
        """Do ``work`` in ``wait`` seconds and every ``seconds`` from then on."""
        with self._lock:
            self._jobs = (*self._jobs, Job(name, seconds, work, time.monotonic() + wait, meaning))

    def wake(self, check_idle: Callable[[], object]) -> None:
        """The process ends: call this at once, and again and again from now on. A signal handler may call it."""
        self._check_idle = check_idle
        self._woken.put(None)

    def start(self) -> None:
        """Start the thread unless it runs. Raises RuntimeError when the system gives none."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="django_throttle agent", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self, seconds: float = 1.0) -> None:
        """End the thread; a job that is under way gets ``seconds`` to end."""
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
        return min(LONGEST_WAIT, max(0.0, due - time.monotonic()))
