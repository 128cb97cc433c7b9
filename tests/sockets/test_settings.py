"""What is done about refused messages, by the settings of a door."""

from __future__ import annotations

from typing import Any

from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.decision import conclude
from django_throttle.sockets.error_frames import ERROR_BURST, Escalation
from django_throttle.sockets.settings import SocketSettings


def refused(retry_after: float | None = 0.0, reason: Reason = Reason.EXCEEDED) -> Decision:
    return conclude((Outcome("own", "connection:x", False, 1, 0, retry_after, 0.0, reason),))


class TestMeasures:
    def test_by_default_each_is_told_and_the_tenth_closes(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {}
        assert [SocketSettings("chat").action(n) for n in (1, 9, 10, 50)] == ["error", "error", "close", "close"]

    def test_a_ladder_of_ones_own(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"MAX_VIOLATIONS": 0}
        terms = SocketSettings("chat", ladder={"error": 3, "delay": 5, "close": 7})
        assert [terms.action(n) for n in range(1, 9)] == [
            "drop", "drop", "error", "error", "delay", "delay", "close", "close",
        ]  # fmt: skip
        silent = SocketSettings("chat", ladder={"error": 0})
        assert {silent.action(n) for n in range(1, 99)} == {"drop"}

    def test_our_own_failure_is_no_violation(self, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {}
        ladder = Escalation()
        ours = refused(1.0, Reason.STORE_FAILED)
        assert {ladder.refused(ours, SocketSettings("chat").action) for _ in range(50)} == {"error"}
        assert ladder.violations == 0

    def test_error_frames_are_few_even_where_streaks_are_short(self) -> None:
        ladder, told = Escalation(), 0
        for _ in range(1000):
            ladder.reset()
            told += ladder.may_send_error(refused(0.001))
        assert told == ERROR_BURST
