"""Reports decisions to hooks, the log and receivers of signals.

Hooks are functions of the site that are called with a report of each decision.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from django.core.signals import setting_changed
from django.dispatch import Signal, receiver
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.decision import Outcome, Reason, deciding_outcome
from django_throttle.core.key import ident_hash, secret_bytes
from django_throttle.identity.call import Call
from django_throttle.observe import recorders
from django_throttle.runtime import LogThrottle
from django_throttle.signals import layer_dropped, quota_warning, shadowed, store_failed, throttled

decisions_log = logging.getLogger("django_throttle.decisions")

LONGEST: Final = 200
HARD_SPACES: Final = "\u00a0\u202f"  # in numbers and before colons of some languages

refusal_throttle = LogThrottle(seconds=10.0)


def log_refusals(call: Call, decision: Decision) -> None:
    """Write a line for each rule that refuses the call, shadow rules included."""
    if not decisions_log.isEnabledFor(logging.WARNING):
        return
    for outcome in decision.outcomes:
        if not outcome.allowed and (left_out := refusal_throttle.left_out(outcome.rule, outcome.reason)) is not None:
            _log_refusal(call, outcome, left_out)


def log_left_out() -> None:
    """Write a line for each series of refusals that has ended, with the number of lines left out."""
    for (rule, reason), left_out in refusal_throttle.overdue():
        fields = {"rule": plain(rule), "reason": reason, "left_out": left_out}
        decisions_log.warning("rule %r (%s): left out %d lines like the last", rule, reason, left_out, extra=fields)


def _log_refusal(call: Call, outcome: Outcome, left_out: int) -> None:
    fields: dict[str, object] = {
        "rule": plain(outcome.rule),
        "outcome": outcome.verdict,
        "reason": outcome.reason.value,
        "scope": plain(call.scope),
        "event": _event(call, outcome),
        "ident": ident_for_logs(outcome.ident),
        "left_out": left_out,
    }
    decisions_log.warning(
        "%s by rule %r (%s): scope %r, event %s, ident %s; left out since the last such line: %d",
        fields["outcome"], fields["rule"], fields["reason"], fields["scope"], fields["event"] or "none",
        fields["ident"], left_out,
        extra=fields,
    )  # fmt: skip


def _event(call: Call, outcome: Outcome) -> str:
    """Return the event that the rule limits. Entry points name a rate's event first, and that of leases last."""
    is_lease = outcome.window is None and outcome.reason is not Reason.BLOCKED
    return call.events[-1 if is_lease else 0] if call.events else ""


def ident_for_logs(ident: str) -> str:
    """8 hex characters that tell callers apart in a log: the first 32 bits of the keyed hash in their store keys."""
    return _beginning(ident, conf().KEY_SECRET)


@lru_cache(maxsize=1024)  # who is refused is refused again
def _beginning(ident: str, secret: str) -> str:
    return urlsafe_b64decode(ident_hash(ident, secret_bytes(secret)) + "==")[:4].hex()


def reference(decision: Decision) -> str:
    """What a refused client may quote to an operator: the ident of the rule that refuses, as logs have it."""
    outcome = deciding_outcome(decision)
    return ident_for_logs(outcome.ident) if outcome is not None and outcome.ident else ""


def plain(text: str) -> str:
    """The beginning of the text, printable."""
    return printable(text[:LONGEST])


def printable(text: str) -> str:
    """The text on one line, whatever clients and operators have put into it: control characters are escaped."""
    if text.isprintable():
        return text
    return "".join(
        [one if one.isprintable() or one in HARD_SPACES else one.encode("unicode_escape").decode() for one in text]
    )


_work: list[Callable[[], object]] = [log_left_out]


def add_periodic_work(work: Callable[[], object]) -> None:
    """Call this every second in each process whose agent runs."""
    _work.append(work)


def run_periodic_work() -> None:
    for work in _work:
        work()


logger = logging.getLogger("django_throttle")


class Report(NamedTuple):
    """What happened: a call, what was decided of it, and how many seconds that took, a queue's delay aside.

    ``call.caller`` and each outcome's ``ident`` say who called: keep them out of whatever is kept.
    """

    call: Call
    decision: Decision
    seconds: float


Hook = Callable[[Report], object]  # runs inside the call, on an event loop too, so it is quick


@lru_cache(maxsize=1)
def installed_hooks() -> tuple[Hook, ...]:
    """The hooks of the setting HOOKS; one that cannot be imported is logged and ignored."""
    hooks = []
    for path in conf().HOOKS:
        try:
            hooks.append(load_hook(path))
        except Exception:  # whatever importing it raises
            logger.exception("the hook %r cannot be imported and is ignored: correct HOOKS", path)
    return tuple(hooks)


def load_hook(path: str) -> Hook:
    """The hook of a dotted path; of a class it is one instance. Raises whatever importing or making it raises."""
    found = import_string(path)
    hook: Hook = found() if isinstance(found, type) else found
    return hook


def call_hooks(report: Report) -> None:
    """Call each hook; one that fails is logged, at most once a minute, and the others are called all the same."""
    for hook in installed_hooks():
        try:
            hook(report)
        except Exception:  # whatever it is, the call that is reported goes on
            if _log_throttle.due(repr(hook)):
                logger.exception("the hook %r failed: the call went on, its report is lost to this hook", hook)


_log_throttle: Final = LogThrottle()


@receiver(setting_changed, dispatch_uid="django_throttle.hooks")
def _forget(*, setting: str, **_: object) -> None:
    if setting == "DJANGO_THROTTLE":
        installed_hooks.cache_clear()


SignalArguments = tuple[Signal, dict[str, object]]


def report(call: Call, decision: Decision, seconds: float = 0.0) -> None:
    """Tell hooks of a decision that took so many seconds, and the log and receivers of what is not ordinary."""
    for signal, told in _happened(call, decision, seconds):
        _send(signal, call=call, **told)


async def areport(call: Call, decision: Decision, seconds: float = 0.0) -> None:
    """The same, awaiting asynchronous receivers."""
    for signal, told in _happened(call, decision, seconds):
        await signal.asend_robust(sender=None, call=call, **told)


def report_dropped(method: str, queues: int) -> None:
    """Tell receivers that a channel layer has dropped a message in this method, as so many queues were full."""
    _send(layer_dropped, method=method, queues=queues)


def _send(signal: Signal, **told: object) -> None:
    try:
        signal.send_robust(sender=None, **told)
    except Exception:  # an asynchronous receiver, where an event loop runs in this thread
        logger.exception("a signal's asynchronous receiver was not called: make it synchronous, or await the call")


def _happened(call: Call, decision: Decision, seconds: float) -> Sequence[SignalArguments]:
    """Call the hooks and write the log; returns the signals that have receivers, with what those are told."""
    if installed_hooks():
        call_hooks(Report(call, decision, seconds))
    if decision.is_ordinary:
        return ()
    if (recorder := recorders.current) is not None:
        recorder.record(call, decision, seconds)
    log_refusals(call, decision)
    return _signals(decision)


def _signals(decision: Decision) -> list[SignalArguments]:
    found: list[SignalArguments] = []
    if throttled.receivers and not decision.allowed:
        found.append((throttled, {"decision": decision}))
    if shadowed.receivers and any(outcome.shadow and not outcome.allowed for outcome in decision.outcomes):
        found.append((shadowed, {"decision": decision}))
    if store_failed.receivers and decision.degraded:
        found.append((store_failed, {"decision": decision}))
    if quota_warning.receivers:
        found += [(quota_warning, {"outcome": one.outcome, "share": one.share}) for one in decision.crossed]
    return found
