"""Rules of one socket alone: counted in the process, first of all, and gone with the socket."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import charge
from django_throttle.exceptions import InvalidRule
from django_throttle.identity import HttpWho, ScopeWho
from django_throttle.sockets.counters import MAX_DELAY, SocketCounters, with_capped_delay
from django_throttle.sockets.limits import size_of


def test_to_look_changes_nothing() -> None:
    counters = SocketCounters()
    charges = (charge(Rule("own", "1/min", algorithm="gcra", count_denied=True), "connection:x", 1),)
    assert [counters.peek(charges, 0.0).allowed for _ in range(3)] == [True] * 3
    assert [counters.charge(charges, 0.0).allowed for _ in range(2)] == [True, False]
    counters.clear()
    assert counters.charge(charges, 0.0).allowed


def test_nothing_waits_for_more_than_two_seconds() -> None:
    queue = Rule("queue", "1/s", burst=10, algorithm="leaky_bucket", action="delay", max_delay=8)
    assert with_capped_delay(queue).max_delay == MAX_DELAY
    assert with_capped_delay(with_capped_delay(queue)) is with_capped_delay(queue)
    plain = Rule("own", "1/s")
    assert with_capped_delay(plain) is plain
    slow = Rule("slow", "2/min", cost=2, algorithm="leaky_bucket", action="delay")
    assert with_capped_delay(slow).plan.limit == 2, "one message passes, whatever it costs"


MESSAGES = {"events": ("message",), "key": "connection"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({**MESSAGES, "events": ("request",)}, "takes the events message and send only"),
        ({**MESSAGES, "events": ("message", "connect")}, "takes the events message and send only"),
        ({**MESSAGES, "warn_at": (0.5,)}, "sends no warnings"),
        ({**MESSAGES, "on_store_failure": "deny"}, "without the store"),
        ({**MESSAGES, "algorithm": "damper", "rate": "5/s"}, "cannot have the key connection"),
        ({**MESSAGES, "algorithm": "fixed_window", "timezone": "Europe/Berlin", "rate": "5/day"}, "calendar"),
        ({**MESSAGES, "algorithm": "fixed_window", "rate": "5/month"}, "calendar"),
        ({**MESSAGES, "key": "user+connection"}, "not 'connection'"),
        ({"unit": "bytes", "events": ("connect",)}, "have bytes"),
        ({"unit": "bytes", "events": ("task",)}, "have bytes"),
        ({"unit": "bytes", "events": ("message", "publish")}, "have bytes"),
        ({"unit": "litres", "events": ("message",)}, "unit must be one of calls, bytes"),
    ],
)
def test_senseless_rules(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRule, match=reason):
        Rule.from_options("own", {"rate": "5/min", **options})


def test_only_an_open_socket_is_a_connection(rf: Any) -> None:
    assert HttpWho(rf.get("/")).ident("connection") is None
    assert ScopeWho({"type": "websocket"}).ident("connection") is None


def test_sizes() -> None:
    assert size_of({"text": "abc"}) == 3
    assert size_of({"text": "ü€", "bytes": None}) == 5
    assert size_of({"text": None, "bytes": b"\x00\x01"}) == 2
    assert size_of({}) == 0
    assert size_of({"text": "\ud800"}) == 3
