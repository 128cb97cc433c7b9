"""Reports of decisions to hooks, the log and receivers of signals.

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
from django_throttle.identity.caller import KeyedCaller
from django_throttle.observe import recorders
from django_throttle.runtime import LogThrottle
from django_throttle.signals import layer_dropped, quota_warning, shadowed, store_failed, throttled

decisions_log = logging.getLogger("django_throttle.decisions")

MAX_LOGGED_CHARACTERS: Final = 200
HARD_SPACES: Final = "\u00a0\u202f"  # used in numbers and before colons in some languages

refusal_throttle = LogThrottle(seconds=10.0)


def log_refusals(call: Call, decision: Decision) -> None:
    """Log a line for each rule that refuses the call, shadow rules included."""
    if not decisions_log.isEnabledFor(logging.WARNING):
        return
    for outcome in decision.outcomes:
        if not outcome.allowed and (left_out := refusal_throttle.left_out(outcome.rule, outcome.reason)) is not None:
            _log_refusal(call, outcome, left_out)


def log_left_out() -> None:
    """Log the number of lines left out for each series of refusals that has ended."""
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
    """Return the event that the rule limits. Entry points name the event of rates first, that of leases last."""
    is_lease = outcome.window is None and outcome.reason is not Reason.BLOCKED
    return call.events[-1 if is_lease else 0] if call.events else ""


def ident_for_logs(ident: str) -> str:
    """Return the first 8 hex characters of the ident hash, which identify a caller in logs."""
    return _short_hash(ident, conf().KEY_SECRET)


@lru_cache(maxsize=1024)  # refused callers are often refused again
def _short_hash(ident: str, secret: str) -> str:
    return urlsafe_b64decode(ident_hash(ident, secret_bytes(secret)) + "==")[:4].hex()


def reference(decision: Decision) -> str:
    """Return a refused client's reference for the operator: the ident of the refusing rule as in logs."""
    outcome = deciding_outcome(decision)
    return ident_for_logs(outcome.ident) if outcome is not None and outcome.ident else ""


def plain(text: str) -> str:
    """Return the beginning of the text for a log line."""
    return printable(text[:MAX_LOGGED_CHARACTERS])


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that it stays on one line."""
    if text.isprintable():
        return text
    return "".join(
        [
            character
            if character.isprintable() or character in HARD_SPACES
            else character.encode("unicode_escape").decode()
            for character in text
        ]
    )


_work: list[Callable[[], object]] = [log_left_out]


def add_periodic_work(work: Callable[[], object]) -> None:
    """Call ``work`` every second in each process whose agent runs."""
    _work.append(work)


def run_periodic_work() -> None:
    """Do the work of ``add_periodic_work``."""
    for work in _work:
        work()


logger = logging.getLogger("django_throttle")


class Report(NamedTuple):
    """The report of a decision.

    ``call.caller`` and the ``ident`` of outcomes are personal data: do not store them.
    """

    call: Call
    decision: Decision
    seconds: float  #: time that the decision took, without a delay


Hook = Callable[[Report], object]  # runs inside the call, also on event loops, so it has to be quick


@lru_cache(maxsize=1)
def installed_hooks() -> tuple[Hook, ...]:
    """Return the hooks of the setting HOOKS. Log and ignore hooks that cannot be imported."""
    hooks = []
    for path in conf().HOOKS:
        try:
            hooks.append(load_hook(path))
        except Exception:  # importing may raise anything
            logger.exception("the hook %r cannot be imported and is ignored: correct HOOKS", path)
    return tuple(hooks)


def load_hook(path: str) -> Hook:
    """Return the hook at a dotted path: a function, or an instance of a class. Raise the errors of both."""
    imported = import_string(path)
    hook: Hook = imported() if isinstance(imported, type) else imported
    return hook


def call_hooks(report: Report) -> None:
    """Call each hook. Log an error of a hook at most once a minute, and go on with the others."""
    for hook in installed_hooks():
        try:
            hook(report)
        except Exception:  # a hook may raise anything, and the reported call goes on
            if _log_throttle.try_acquire(repr(hook)):
                logger.exception("the hook %r failed: the call went on, and its report is lost to this hook", hook)


_log_throttle: Final = LogThrottle()


@receiver(setting_changed, dispatch_uid="django_throttle.hooks")
def _forget(*, setting: str, **_: object) -> None:
    if setting == "DJANGO_THROTTLE":
        installed_hooks.cache_clear()


SignalArguments = tuple[Signal, dict[str, object]]


def report(call: Call, decision: Decision, seconds: float = 0.0) -> None:
    """Report a decision to hooks. If it is not ordinary, report it to the log and to receivers of signals too.

    ``seconds`` is the time that the decision took.
    """
    for signal, arguments in _report_to_hooks_and_log(call, decision, seconds):
        send(signal, call=call, **arguments)


async def areport(call: Call, decision: Decision, seconds: float = 0.0) -> None:
    """Report a decision as ``report`` does, and await asynchronous receivers."""
    for signal, arguments in _report_to_hooks_and_log(call, decision, seconds):
        await signal.asend_robust(sender=None, call=call, **arguments)


def report_dropped(method: str, queues: int) -> None:
    """Send the signal for a message that a channel layer has dropped in ``method``, with the number of full queues."""
    send(layer_dropped, method=method, queues=queues)


def send(signal: Signal, **arguments: object) -> None:
    """Send a signal. Log the errors of its receivers."""
    try:
        signal.send_robust(sender=None, **arguments)
    except Exception:  # an asynchronous receiver while an event loop runs in this thread
        logger.exception("a signal's asynchronous receiver was not called: make it synchronous, or await the call")


def _report_to_hooks_and_log(call: Call, decision: Decision, seconds: float) -> Sequence[SignalArguments]:
    """Call the hooks and write the log. Return the signals to send, with their arguments."""
    if installed_hooks():
        call_hooks(Report(call, decision, seconds))
    if decision.is_ordinary:
        return ()
    if (recorder := recorders.current) is not None:
        recorder.record(call, decision, seconds)
    log_refusals(call, decision)
    return _signals(call, decision)


def _signals(call: Call, decision: Decision) -> list[SignalArguments]:
    signals: list[SignalArguments] = []
    if throttled.receivers and not decision.allowed:
        signals.append((throttled, {"decision": decision}))
    if shadowed.receivers and any(outcome.shadow and not outcome.allowed for outcome in decision.outcomes):
        signals.append((shadowed, {"decision": decision}))
    if store_failed.receivers and decision.degraded:
        signals.append((store_failed, {"decision": decision}))
    if quota_warning.receivers:
        for outcome, share in ((threshold.outcome, threshold.share) for threshold in decision.crossed):
            row = call.caller.row(outcome.ident) if isinstance(call.caller, KeyedCaller) else None
            signals.append((quota_warning, {"outcome": outcome, "share": share, "row": row}))
    return signals
