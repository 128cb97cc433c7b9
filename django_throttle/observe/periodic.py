"""What the background thread does for observers, once a second."""

from __future__ import annotations

from collections.abc import Callable

from django_throttle.observe import logs

_work: list[Callable[[], object]] = [logs.catch_up]


def every_second(work: Callable[[], object]) -> None:
    """Have this done, too, in each process whose background thread runs."""
    _work.append(work)


def keep_up() -> None:
    """Do it all."""
    for work in _work:
        work()
