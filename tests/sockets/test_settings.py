"""What is done about refused messages, by the settings of a door."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.decision import conclude
from django_throttle.exceptions import InvalidSetting
from django_throttle.sockets.error_frames import ERROR_BURST, Escalation
from django_throttle.sockets.settings import SocketSettings, consumer_settings


def refused(retry_after: float | None = 0.0, reason: Reason = Reason.EXCEEDED) -> Decision:
    return conclude((Outcome("own", "connection:x", False, 1, 0, retry_after, 0.0, reason),))


class Guarded(ThrottledConsumerMixin):
    throttle_scope = "chat"


class TestConsumers:
    def test_those_of_a_class_share_theirs_as_long_as_it_says_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = consumer_settings(Guarded(), ThrottledConsumerMixin)
        assert consumer_settings(Guarded(), ThrottledConsumerMixin) is first
        monkeypatch.setattr(Guarded, "refuse", "frame")
        assert consumer_settings(Guarded(), ThrottledConsumerMixin).refuse == "frame"
        monkeypatch.setattr(Guarded, "refuse", "politely")
        for _ in range(2):
            with pytest.raises(InvalidSetting, match="politely"):
                consumer_settings(Guarded(), ThrottledConsumerMixin)

    def test_what_one_says_by_itself_is_its_own(self) -> None:
        own = Guarded()
        own.throttle_cost = lambda message: 7  # type: ignore[method-assign]
        assert consumer_settings(own, ThrottledConsumerMixin).cost is own.throttle_cost
        own.throttle_cost = lambda message: 8  # type: ignore[method-assign]
        assert consumer_settings(own, ThrottledConsumerMixin).cost is own.throttle_cost
        assert consumer_settings(Guarded(), ThrottledConsumerMixin).cost == 1

    def test_codes_that_are_changed_in_place_are_checked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        codes = {"idle": 4001}
        monkeypatch.setattr(Guarded, "throttle_close_codes", codes)
        assert consumer_settings(Guarded(), ThrottledConsumerMixin).close_code("idle") == 4001
        codes["idle"] = 7
        with pytest.raises(InvalidSetting, match="close code"):
            consumer_settings(Guarded(), ThrottledConsumerMixin)


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
