"""A caller who logs in by a message: the slots of the socket follow, as its messages do."""

from __future__ import annotations

from typing import Any

import pytest
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser, User
from django.urls import re_path

from django_throttle import rulebook
from django_throttle.channels import ThrottleMiddleware
from tests.consumers import AsyncEcho, held
from tests.doors import BOTH, Enforce
from tests.sockets.guarded import IDENT, SOCKETS, Line, becomes, blocked, only

TABS = {**SOCKETS, "key": "user", "limit": 2}


class LoginConsumer(AsyncEcho):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        word, _, pk = (text_data or "").partition(" ")
        if word in ("login", "logout"):
            self.scope["user"] = User(pk=int(pk)) if pk else AnonymousUser()
        await self.send(text_data)


APP = LoginConsumer.as_asgi()
ROUTED = ThrottleMiddleware(URLRouter([re_path("", APP)]), "chat")  # the scope of a router is a copy


async def says(client: Line, text: str) -> None:
    number = len(client.frames)
    client.send(text)
    await client.until(lambda: len(client.frames) > number)
    assert client.frames[-1] == text


@pytest.mark.parametrize("app", [APP, ROUTED], ids=["consumer", "routed"])
@BOTH
async def test_one_too_many_of_a_user_is_closed(enforce: Enforce, app: Any) -> None:
    store = enforce(tabs=TABS)
    first, second, third = [await Line(app).open() for _ in range(3)]
    assert held(store) == 0, "nobody has logged in"
    for number, client in enumerate((first, second), 1):
        await says(client, "login 42")
        await becomes(lambda number=number: held(store) == number)
        await says(client, "again")
    third.send("login 42")
    assert (await third.closing())["code"] == 4430
    assert third.told("error")[0]["rule"] == "tabs"
    await says(first, "still here")
    await first.close()
    await becomes(lambda: held(store) == 1)
    await second.close()
    assert held(store) == 0


@BOTH
async def test_the_slot_of_an_address_becomes_one_of_the_user(enforce: Enforce) -> None:
    store = enforce(sockets={**TABS, "key": "user_or_ip", "limit": 1}, house={**TABS, "key": "ip"})
    async with Line(APP) as client:
        assert pairs() == {("house", IDENT), ("sockets", IDENT)}
        await says(client, "login 42")
        await becomes(lambda: ("sockets", "user:42") in pairs())
        assert pairs() == {("house", IDENT), ("sockets", "user:42")}
        assert held(store) == 2
        async with Line(APP):
            assert held(store) == 4
        await says(client, "logout")
        await becomes(lambda: ("sockets", IDENT) in pairs())
        assert (held(store), len(pairs())) == (2, 2)
    assert held(store) == 0


async def test_a_rule_for_visitors_alone_lets_go_of_who_logs_in(enforce: Enforce) -> None:
    store = enforce(visitors={**TABS, "key": "ip", "audience": ["anonymous"], "limit": 1})
    async with Line(APP) as client:
        assert held(store) == 1
        await says(client, "login 42")
        await becomes(lambda: held(store) == 0)


async def test_who_is_blocked_is_closed_at_once(enforce: Enforce, change: Any) -> None:
    enforce(tabs=TABS)
    change(*rulebook.current().rules, overrides=(blocked("user:42"),))
    client = await Line(APP).open()
    client.send("login 42")
    assert (await client.closing())["code"] == 4403
    assert client.told("error")[0]["rule"] == "tabs"


async def test_a_client_that_leaves_meanwhile_leaves_no_slot(enforce: Enforce) -> None:
    store = enforce(tabs=TABS)
    for _ in range(5):
        client = await Line(APP).open()
        client.send("login 42")
        await client.close()
    await becomes(lambda: held(store) == 0)


async def test_messages_follow_at_once(enforce: Enforce) -> None:
    enforce(
        visitors={"rate": "2/min", "events": ["message"], "key": "ip", "audience": ["anonymous"]},
        users={"rate": "4/min", "events": ["message"], "key": "user"},
    )
    async with Line(APP) as client:
        for text in ("login 42", "word a", "word b", "word c", "word d"):
            await says(client, text)
        client.send("e")
        assert (await client.error())["rule"] == "users"


def pairs() -> set[tuple[str, str]]:
    """The names of rules, and idents, of which the only open socket holds slots."""
    names = {rule.id: rule.name for rule in rulebook.current().rules}
    return {(names[rule], ident) for lease in only().leases for rule, ident in lease.holds}
