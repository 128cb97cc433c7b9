"""Budgets that are given back and rules that are edited reach a socket whatever it remembers, flooded or not.

Here nothing that a socket or its process remembers ends by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_throttle import rulebook
from django_throttle.conf import conf
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.core import Override, Rule
from django_throttle.limiter import Limiter
from django_throttle.prepaid import give_back
from django_throttle.rulebook import Snapshot, in_force
from django_throttle.stores import RedisStore
from tests.clock import FrozenClock
from tests.inside import buys
from tests.sockets.guarded import Line, Live, becomes, live_enforcer, texts

enforce = pytest.fixture(live_enforcer)
IDENT = "ip:203.0.113.9"
CHAT = {"rate": "5/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
FOR_EVER = 3600.0


@pytest.fixture(autouse=True)
def nothing_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("core.prepaid.LONGEST", "sockets.limits.MATCH_LIFETIME", "stores.denials.LONGEST"):
        monkeypatch.setattr(f"django_throttle.{name}", FOR_EVER)
    open_sockets.clear()


@pytest.fixture(params=[False, True], ids=["remembered", "counted"])
def counts_denied(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def flooded() -> Line:
    """A socket that has used up its budget, and its questions."""
    line = await Line().open()
    line.send(*["x"] * 40)
    await becomes(lambda: sum(socket.received for socket in open_sockets.everyone()) == 40)
    await line.until(lambda: len(texts(line)) == 5 and line.told("error"))
    return line


async def test_a_reset_elsewhere_reaches_a_flooded_socket(enforce: Live, redis_url: str, counts_denied: bool) -> None:
    store = enforce(chat={**CHAT, "count_denied": counts_denied}, MAX_VIOLATIONS=0)
    Reconciler(store).beat()
    line = await flooded()
    duties = SocketControl(store)
    await asyncio.to_thread(duties)
    elsewhere = RedisStore(redis_url, secret=conf().KEY_SECRET, deadline=5.0)
    assert await Limiter([rulebook.current().rules[0]], elsewhere).areset(IDENT) == 1
    await asyncio.to_thread(duties)
    line.send(*["again"] * 9)
    await line.until(lambda: len(texts(line)) >= 10)
    assert len(texts(line)) == 10
    await line.close()


async def test_so_it_does_where_rules_are_the_socket_s_own(enforce: Live) -> None:
    enforce(own={**CHAT, "key": "connection"}, MAX_VIOLATIONS=0)
    line = await flooded()
    open_sockets.everyone()[0].reset()
    await asyncio.sleep(0)
    line.send(*["x"] * 9)
    await line.until(lambda: len(texts(line)) >= 10)
    assert len(texts(line)) == 10
    await line.close()


async def test_an_edited_rule_holds_for_a_flooded_socket(enforce: Live) -> None:
    enforce(chat=CHAT, MAX_VIOLATIONS=0)
    line = await flooded()
    before = rulebook.pin(Snapshot([rule("8/h")]))
    try:
        line.send(*["x"] * 9)
        await line.until(lambda: len(texts(line)) == 8)
    finally:
        rulebook.pin(before)
        await line.close()


@pytest.mark.parametrize("prepaid", [False, True], ids=["asked", "prepaid"])
async def test_an_override_that_runs_out_ends_what_was_refused_under_it(
    enforce: Live, prepaid: bool, clock: FrozenClock
) -> None:
    enforce(chat={**CHAT, "prepaid": prepaid}, MAX_VIOLATIONS=0)
    stricter = Override(subject=IDENT, effect="multiply", factor=0.2, until=clock() + 60)
    before = rulebook.pin(Snapshot(rulebook.current().rules, overrides=(stricter,), now=clock))
    try:
        line = await Line().open()
        line.send(*["x"] * 9)
        await line.until(lambda: len(texts(line)) == 1 and line.told("error"))
        clock.tick(61)
        in_force.end_overrides()
        line.send(*["x"] * 9)
        await line.until(lambda: len(texts(line)) >= 5)
        assert len(texts(line)) == 5
    finally:
        rulebook.pin(before)
        await line.close()


async def test_what_was_bought_goes_back_when_the_rule_is_edited(
    enforce: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next frame under it; without one, as what is not used."""
    buys(64, monkeypatch)
    store = enforce(chat={**CHAT, "rate": "1000/h"})
    line = await Line().open()
    line.send("x")
    await line.until(lambda: texts(line))
    assert used(store) == 64
    before = rulebook.pin(Snapshot([rule("900/h")]))
    try:
        line.send("x")
        await line.until(lambda: len(texts(line)) == 2)
        give_back(store)
        assert used(store) == 65
    finally:
        rulebook.pin(before)
        await line.close()


def rule(rate: str, name: str = "chat") -> Rule:
    return Rule(name, rate, events=("message",), key="ip", algorithm="fixed_window")


def used(store: Any) -> int:
    decision = Limiter([rule("1000/h")], store).peek(IDENT)
    assert decision.limit is not None and decision.remaining is not None
    return decision.limit - decision.remaining
