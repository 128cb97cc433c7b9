"""Hooks: functions of the site that are called with a report of each decision."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from django.core.signals import setting_changed
from django.dispatch import Signal, receiver
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.facts import Facts
from django_throttle.log_throttling import LogThrottle
from django_throttle.observe import logs
from django_throttle.signals import quota_warning, shadowed, store_failed, throttled

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
    """The hooks of the setting HOOKS; one that cannot be imported is logged and ignored."""
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
            if _log_throttle.due(repr(hook)):
                logger.exception("the hook %r failed: the call went on, its report is lost to this hook", hook)


def _load(path: str) -> Hook | None:
    try:
        return load(path)
    except Exception:
        logger.exception("the hook %r cannot be imported and is ignored: correct HOOKS", path)
        return None


_log_throttle: Final = LogThrottle()


@receiver(setting_changed, dispatch_uid="django_throttle.hooks")
def _forget(*, setting: str, **_: object) -> None:
    if setting == "DJANGO_THROTTLE":
        installed.cache_clear()


Told = tuple[Signal, dict[str, Any]]


def tell(facts: Facts, decision: Decision, seconds: float = 0.0) -> None:
    """Tell hooks of a decision that took so many seconds, and the log and receivers of what is not ordinary."""
    for signal, told in _happened(facts, decision, seconds):
        try:
            signal.send_robust(sender=None, facts=facts, **told)
        except Exception:  # an asynchronous receiver, where an event loop runs in this thread
            logger.exception("an asynchronous receiver could not be called, as an event loop runs in this thread")


async def atell(facts: Facts, decision: Decision, seconds: float = 0.0) -> None:
    """The same, awaiting asynchronous receivers."""
    for signal, told in _happened(facts, decision, seconds):
        await signal.asend_robust(sender=None, facts=facts, **told)


def _happened(facts: Facts, decision: Decision, seconds: float) -> tuple[Told, ...]:
    """Call the hooks and write the log; returns the signals that have receivers, with what those are told."""
    if installed():
        call(Report(facts, decision, seconds))
    if decision.is_ordinary:
        return ()
    logs.write(facts, decision)
    return tuple(told for told in _signals(decision) if told[0].receivers and told[0].has_listeners())


def _signals(decision: Decision) -> Iterator[Told]:
    whole = {"decision": decision}
    if not decision.allowed:
        yield throttled, whole
    if any(outcome.shadow and not outcome.allowed for outcome in decision.outcomes):
        yield shadowed, whole
    if decision.degraded:
        yield store_failed, whole
    for crossing in decision.crossed:
        yield quota_warning, {"outcome": crossing.outcome, "share": crossing.share}
