"""A caller who logs in by a message: the slots of the socket follow, as its messages do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser, User
from django.urls import re_path

from django_throttle import rulebook
from django_throttle.channels import ThrottleMiddleware
from tests.consumers import AsyncEcho, SyncEcho, held, opened
from tests.doors import BOTH, Enforce
from tests.sockets.guarded import SOCKETS, becomes, blocked, only

TABS = {**SOCKETS, "key": "user", "limit": 2}
HERE = {"client": ["203.0.113.9", 1]}


class LoginConsumer(AsyncEcho):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        log_in(self, text_data)
        await self.send(text_data)


class SyncLoginConsumer(SyncEcho):
    def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        log_in(self, text_data)
        self.send(text_data)


def log_in(consumer: Any, text: str | None) -> None:
    word, _, pk = (text or "").partition(" ")
    if word == "login":
        consumer.scope["user"] = User(pk=int(pk))
    elif word == "logout":
        consumer.scope["user"] = AnonymousUser()


def routed(consumer: Any) -> Any:
    """A consumer that has the scope of a router: a copy."""
    return ThrottleMiddleware(URLRouter([re_path("", consumer)]), "chat")


APPS = {"async": LoginConsumer.as_asgi(), "sync": SyncLoginConsumer.as_asgi(), "both": routed(LoginConsumer.as_asgi())}
EACH_APP = pytest.mark.parametrize("app", APPS.values(), ids=APPS)


async def says(client: Any, text: str) -> None:
    await client.send_to(text)
    assert await client.receive_from() == text


async def closing(client: Any) -> tuple[int, str | None]:
    """The close code, and the rule that the last frame before it names."""
    rule = None
    while (event := await client.receive_output())["type"] != "websocket.close":
        rule = event["text"].partition('"rule": "')[2].partition('"')[0] or rule
    await client.wait()
    return event["code"], rule


@EACH_APP
@BOTH
async def test_one_too_many_of_a_user_is_closed(enforce: Enforce, app: Any) -> None:
    store = enforce(tabs=TABS)
    clients = [await opened(app, **HERE) for _ in range(3)]
    assert held(store) == 0, "nobody has logged in"
    for number, client in enumerate(clients[:2], 1):
        await says(client, "login 42")
        await becomes(lambda number=number: held(store) == number)
        await says(client, "again")
    await says(clients[2], "login 42")
    assert await closing(clients[2]) == (4430, "tabs")
    await says(clients[0], "still here")
    await clients[0].disconnect()
    await becomes(lambda: held(store) == 1)
    await clients[1].disconnect()
    assert held(store) == 0


@BOTH
async def test_the_slot_of_an_address_becomes_one_of_the_user(enforce: Enforce) -> None:
    store = enforce(sockets={**TABS, "key": "user_or_ip", "limit": 1}, house={**TABS, "key": "ip"})
    client = await opened(APPS["async"], **HERE)
    assert pairs() == {("house", "ip:203.0.113.9"), ("sockets", "ip:203.0.113.9")}
    await says(client, "login 42")
    await becomes(lambda: ("sockets", "user:42") in pairs())
    assert pairs() == {("house", "ip:203.0.113.9"), ("sockets", "user:42")}
    assert held(store) == 2
    second = await opened(APPS["async"], **HERE)
    await second.disconnect()
    await says(client, "logout")
    await becomes(lambda: ("sockets", "ip:203.0.113.9") in pairs())
    assert (held(store), len(pairs())) == (2, 2)
    await client.disconnect()
    assert held(store) == 0


async def test_a_rule_for_visitors_alone_lets_go_of_who_logs_in(enforce: Enforce) -> None:
    store = enforce(visitors={**TABS, "key": "ip", "audience": ["anonymous"], "limit": 1})
    client = await opened(APPS["async"], **HERE)
    assert held(store) == 1
    await says(client, "login 42")
    await becomes(lambda: held(store) == 0)
    other = await opened(APPS["async"], **HERE)
    for socket in (other, client):
        await socket.disconnect()
    assert held(store) == 0


async def test_the_oldest_makes_room_where_the_rule_evicts(enforce: Enforce) -> None:
    store = enforce(tabs={**TABS, "limit": 1, "at_limit": "evict_oldest"})
    clients = [await opened(APPS["async"], **HERE) for _ in range(2)]
    for client in clients:
        await says(client, "login 42")
    await becomes(lambda: held(store) == 1)
    await says(clients[1], "here")
    for client in clients:
        await client.disconnect()


async def test_who_is_blocked_is_closed_at_once(enforce: Enforce, change: Any) -> None:
    enforce(tabs=TABS)
    change(*rulebook.current().rules, overrides=(blocked("user:42"),))
    client = await opened(APPS["async"], **HERE)
    await client.send_to("login 42")
    assert await closing(client) == (4403, "tabs")


async def test_a_client_that_leaves_meanwhile_leaves_no_slot(enforce: Enforce) -> None:
    store = enforce(tabs=TABS)
    for _ in range(5):
        client = await opened(APPS["async"], **HERE)
        await client.send_to("login 42")
        await client.send_input({"type": "websocket.disconnect", "code": 1000})
        await client.wait()
    await asyncio.sleep(0)
    await becomes(lambda: held(store) == 0)


async def test_messages_follow_at_once(enforce: Enforce) -> None:
    enforce(
        visitors={"rate": "2/min", "events": ["message"], "key": "ip", "audience": ["anonymous"]},
        users={"rate": "4/min", "events": ["message"], "key": "user"},
    )
    client = await opened(APPS["async"], **HERE)
    for text in ("login 42", *"abcd"):
        await says(client, text)
    await client.send_to("e")
    assert (await client.receive_json_from())["rule"] == "users"
    await client.disconnect()


def pairs() -> set[tuple[str, str]]:
    """The names of rules, and idents, of which the one open socket holds slots."""
    names = {rule.id: rule.name for rule in rulebook.current().rules}
    return {(names[rule], ident) for lease in only().leases for rule, ident in lease.holds}
