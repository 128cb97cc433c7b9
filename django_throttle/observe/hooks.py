"""Hooks: whatever the setting HOOKS names is called with a frozen report of every decision."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.facts import Facts
from django_throttle.stores.complaints import Complaints

logger = logging.getLogger("django_throttle")


class Report(NamedTuple):
    """What happened: a call, what was decided of it, and how many seconds that took, a queue's delay aside.

    ``facts.who`` and each outcome's ``ident`` say who called: keep them out of whatever is kept.
    """

    facts: Facts
    decision: Decision
    seconds: float


class Hook(Protocol):
    """Anything that can be called with a report. It runs inside the call, on an event loop too, so it is quick."""

    def __call__(self, report: Report, /) -> object: ...


@lru_cache(maxsize=1)
def installed() -> tuple[Hook, ...]:
    """The hooks of the setting; one that cannot be imported is logged, and left out."""
    return tuple(hook for path in conf().HOOKS if (hook := _load(path)) is not None)


def load(path: str) -> Hook:
    """The hook of a dotted path; of a class it is one instance. Raises whatever importing or making it raises."""
    found = import_string(path)
    hook: Hook = found() if isinstance(found, type) else found
    return hook


def call(report: Report) -> None:
    """Call each hook; one that fails is logged, at most once a minute, and the others are called all the same."""
    for hook in installed():
        try:
            hook(report)
        except Exception:  # whatever it is, the call that is reported goes on
            if _complaints.due(repr(hook)):
                logger.exception("the hook %r failed", hook)


def _load(path: str) -> Hook | None:
    try:
        return load(path)
    except Exception:
        logger.exception("the hook %r is left out", path)
        return None


_complaints: Final = Complaints()


@receiver(setting_changed, dispatch_uid="django_throttle.hooks")
def _forget(*, setting: str, **_: object) -> None:
    if setting == "DJANGO_THROTTLE":
        installed.cache_clear()
