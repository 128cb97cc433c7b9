"""What was refused, and what was not, asked of whatever a test has in hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Final, NamedTuple

from django_throttle.core import Decision
from django_throttle.exceptions import Refused
from django_throttle.http.request_state import kept
from django_throttle.signals import throttled

FRAMES: Final = ("rate_limited", "connection_limit")


class _Answer(NamedTuple):
    """What one call came to; ``decisions`` are those that are known of it."""

    given: Any
    decisions: tuple[Decision, ...]

    @property
    def status(self) -> int | None:
        return getattr(self.given, "status_code", None)

    @property
    def is_refused(self) -> bool:
        if self.status is not None:
            return self.status == 429
        if isinstance(self.given, Mapping):
            return _is_refusal(self.given)
        return any(not decision.allowed and not decision.unavailable for decision in self.decisions)

    @property
    def refusers(self) -> set[str]:
        """The names of the rules that refuse it, as far as they are known."""
        if isinstance(self.given, Mapping):
            return {self.given["rule"]} if _is_refusal(self.given) and self.given.get("rule") else set()
        outcomes = [one for decision in self.decisions if not decision.allowed for one in decision.outcomes]
        return {one.rule for one in outcomes if not one.allowed and not one.shadow}

    def __str__(self) -> str:
        by = f" by {_named(self.refusers)}" if self.refusers else ""
        if self.is_refused:
            return f"refused{by}"
        if by:
            return f"turned away{by} as the store failed"
        if self.status:
            return f"answered with status {self.status}"
        return f"let through: {self.given!r}" if isinstance(self.given, str | Mapping) else "let through"


def assert_throttled(
    answers: Any, *, after: int | None = None, times: int | None = None, rule: str | None = None
) -> Any:
    """Fail unless calls were refused for being too many; returns the last answer.

    ``answers`` is a function without arguments, which is called; or the answer to a call; or several, in their
    order. An answer is a response of Django's or REST framework's, a Decision, the Refused that was raised, or what a
    WebSocket was sent: a frame, decoded or not.
    ``after`` calls come first, which must pass. ``times`` is how many are refused: 1 when calling, and of answers
    that are given all others; without ``after`` they may be anywhere among those. ``rule`` names the
    rule that must have refused.
    """
    __tracebackhide__ = True
    if callable(answers) and not _is_answer(answers):
        made = [_call(answers) for _ in range((after or 0) + (1 if times is None else times))]
    else:
        made = [_answer(one) for one in ([answers] if _is_answer(answers) else answers)]
    _demand(bool(made), "no call was made")
    if after is None and times is not None:
        refused = [answer for answer in made if answer.is_refused]
        _demand(len(refused) == times, f"{len(refused)} of {len(made)} calls were refused, not {times}")
    else:
        _in_order(made, after or 0, times)
    for answer in made:
        if rule is not None and answer.is_refused:
            _by(answer, rule)
    return made[-1].given


def _in_order(made: list[_Answer], after: int, times: int | None) -> None:
    __tracebackhide__ = True
    _demand(len(made) >= after + (1 if times is None else times), f"only {len(made)} calls were made")
    for number, answer in enumerate(made, 1):
        if number <= after:
            _demand(not answer.is_refused, f"call {number} was {answer}, though the first {after} should pass")
        elif times is None or number <= after + times:
            _demand(answer.is_refused, f"call {number} should have been refused, but was {answer}")
        else:
            _demand(not answer.is_refused, f"call {number} was {answer}, though only {times} should be")


def _by(answer: _Answer, rule: str) -> None:
    __tracebackhide__ = True
    _demand(bool(answer.refusers), f"nobody knows which rule refused: {answer.given!r} came from no test client")
    _demand(rule in answer.refusers, f"refused by {_named(answer.refusers)}, not by {rule!r}")


def _demand(is_so: bool, otherwise: str) -> None:
    """An assertion that ``python -O`` leaves in, and that pytest does not take apart."""
    __tracebackhide__ = True
    if not is_so:
        raise AssertionError(otherwise)


def _call(function: Callable[[], Any]) -> _Answer:
    with _listening() as heard:
        try:
            given = function()
        except Exception as error:
            if not _is_answer(error):
                raise
            given = error
    if _is_answer(given):
        given = _decoded(given)
    if isawaitable(given):
        getattr(given, "close", lambda: None)()
        raise TypeError("await each call, and give assert_throttled the list of their answers")
    return _Answer(given, _decisions(given) or tuple(heard))


@contextmanager
def _listening() -> Iterator[list[Decision]]:
    heard: list[Decision] = []

    def hear(decision: Decision, **_: object) -> None:
        heard.append(decision)

    throttled.connect(hear, weak=False)
    try:
        yield heard
    finally:
        throttled.disconnect(hear)


def _is_answer(given: Any) -> bool:
    return isinstance(given, Decision | Refused | str | Mapping) or hasattr(given, "status_code")


def _answer(given: Any) -> _Answer:
    if not _is_answer(given):
        raise TypeError(f"an answer is a response, a Decision, a Refused or a frame, not {given!r}")
    given = _decoded(given)
    return _Answer(given, _decisions(given))


def _decoded(given: Any) -> Any:
    """A frame that is text and JSON as what it says."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given


def _is_refusal(frame: Mapping[str, Any]) -> bool:
    """Whether it is what a WebSocket is told that is refused a message, or a connection."""
    return frame.get("type") == "error" and frame.get("code") in FRAMES


def _decisions(given: Any) -> tuple[Decision, ...]:
    if isinstance(given, Decision):
        return (given,)
    if isinstance(given, Refused):
        return (given.decision,)
    request = getattr(given, "wsgi_request", None) or getattr(given, "asgi_request", None)
    return () if request is None else kept(request)


def _named(rules: Iterable[str]) -> str:
    return "rule " + ", ".join(map(repr, sorted(rules)))
