"""What a how-to page says under "What the client sees" is what its own code answers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import clear_url_caches, include, path

from django_throttle import limiter, rulebook
from django_throttle.site_queues import tasks_module
from tests.consumers import opened, socket
from tests.doors import Enforce, enforcer
from tests.outside.answers import assert_shown
from tests.pages import block, run, seen, shown

enforce = pytest.fixture(enforcer)
pytestmark = pytest.mark.django_db(transaction=True)
MIDDLEWARE = "django_throttle.middleware.ThrottleMiddleware"
ADDRESS = "ip:127.0.0.1"


class Site:
    """A site of one page: its rules are in force, and its modules are there under the names that it gives them."""

    def __init__(self, enforce: Enforce, settings: Any, patch: pytest.MonkeyPatch) -> None:
        self.enforce, self.settings, self.patch = enforce, settings, patch

    def rules(self, code: str, **more: Any) -> None:
        """Put in force what a page has in its settings."""
        given = {**run(code, MIDDLEWARE=[], INSTALLED_APPS=[])["DJANGO_THROTTLE"], **more}
        self.enforce(**given.pop("RULES"), **given)

    def module(self, name: str, **names: Any) -> None:
        package = name.partition(".")[0]
        module = ModuleType(name)
        vars(module).update(names)
        self.patch.setitem(sys.modules, package, sys.modules.get(package) or ModuleType(package))
        self.patch.setitem(sys.modules, name, module)
        self.patch.setattr(sys.modules[package], name.rpartition(".")[2], module, raising=False)

    def routes(self, *routes: Any) -> None:
        """Serve these routes, behind the middleware."""
        self.module("shown_urls", urlpatterns=list(routes))
        self.settings.ROOT_URLCONF = "shown_urls"
        clear_url_caches()
        self.settings.MIDDLEWARE = [*(one for one in self.settings.MIDDLEWARE if one != MIDDLEWARE), MIDDLEWARE]

    def view(self, name: str, view: Callable[..., Any] = lambda request: HttpResponse("found")) -> None:
        self.routes(path(name, view, name=name))

    def use(self, rule: str, ident: str, cost: int) -> None:
        """Have that much of a budget used up."""
        given = {one.name: one for one in rulebook.current().rules}
        assert limiter.Limiter([given[rule]], limiter.get_store()).acquire(ident, cost).allowed


Scenario = Callable[[Site], Iterator[str]]


def written(answer: Any) -> str:
    """An answer as it goes out."""
    head = "".join(f"{name}: {answer[name]}\n" for name in answer.headers)
    return f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}\n{head}\n{answer.content.decode()}"


def laid_out(text: str) -> list[str]:
    """The lines of an answer or a frame, its JSON one value a line."""
    *head, body = text.strip().split("\n\n", 1)
    if body.startswith("{"):
        body = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    return "\n".join([*head, body]).splitlines()


def logins(site: Site) -> Iterator[str]:
    rules, routes, _ = shown("logins")
    site.rules(rules)
    site.settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    site.routes(*run(routes)["urlpatterns"])
    form = {"username": "anna", "password": "wrong"}
    assert [Client().post("/admin/login/", form).status_code for _ in range(10)] == [200] * 10
    yield written(Client().post("/admin/login/", form))


def websockets(site: Site) -> Iterator[str]:
    rules, consumer = shown("websockets")
    site.rules(rules)
    app = run(consumer)["ChatConsumer"].as_asgi()
    mine = {"client": ("203.0.113.9", 1)}

    async def talk() -> list[Any]:
        """What one of three sockets gets for the eleventh message, and a fourth socket."""
        sockets = [await opened(app, **mine) for _ in range(3)]
        for number in range(10):
            await sockets[0].send_json_to(number)
            assert await sockets[0].receive_json_from() == number
        await sockets[0].send_json_to(10)
        frames = [await sockets[0].receive_json_from()]
        fourth = socket(app, **mine)
        assert (await fourth.connect())[0]
        frames.append(await fourth.receive_json_from())
        assert (await fourth.receive_output())["code"] == 4430
        for one in sockets:
            await one.disconnect()
        return frames

    yield from map(json.dumps, asyncio.run(talk()))


def streams(site: Site) -> Iterator[str]:
    async def tokens(request: Any) -> Any:
        for number in range(5000):
            yield f"token {number}"

    rules, _, _, events = shown("streams")
    site.rules(rules)
    site.module("mysite.model", tokens=tokens)
    site.view("answers", run(events)["answer"])

    async def last() -> list[str]:
        client = AsyncClient()
        anna = await User.objects.acreate(username="anna")
        await client.aforce_login(anna)
        site.use("tokens", f"user:{anna.pk}", 98_000)
        answer: Any = await client.get("/answers")
        parts = [part.decode() async for part in answer.streaming_content]
        again = await client.get("/answers")
        return ["".join(parts[-3:]), written(again)]

    yield from asyncio.run(last())


def later(site: Site) -> Iterator[str]:
    rules, task, view, _ = shown("later")[:4]
    site.rules(rules)
    task = task.replace("from django.tasks import", f"from {tasks_module()} import")
    site.module("shop.tasks", **run(task, __name__="shop.tasks"))
    site.routes(path("report", run(view)["report"]), path("later/", include("django_throttle.urls")))
    _, _, answer = (Client().post("/report", {"month": "May"}) for _ in range(3))
    yield written(answer)
    yield written(Client().get(answer["Location"]))
    site.use("reports", ADDRESS, 98)
    yield written(Client().post("/report", {"month": "May"}))


def proxy(site: Site) -> Iterator[str]:
    rule = {"rate": "100/min", "key": "ip"}
    site.enforce(api=rule, **run(block("proxy", '"::1"'))["DJANGO_THROTTLE"])
    site.view("search")
    one, other = ({"X-Forwarded-For": f"198.51.100.1, 203.0.113.{number}"} for number in (7, 8))
    _, *answers = (Client().get("/search", headers=sent) for sent in (one, one, other))
    yield from map(written, answers)
    site.enforce(api=rule, NO_ADDRESS="refuse")
    yield written(Client(REMOTE_ADDR="").get("/search"))


ALL = (later, logins, proxy, streams, websockets)
SCENARIOS: dict[str, Scenario] = {scenario.__name__: scenario for scenario in ALL}


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("page", SCENARIOS)
def test_the_page_says_what_its_code_answers(page: str, enforce: Enforce, settings: Any, monkeypatch: Any) -> None:
    answers = SCENARIOS[page](Site(enforce, settings, monkeypatch))
    for told, answer in zip(seen(page), answers, strict=True):
        assert_shown(laid_out(told), "\n".join(laid_out(answer)))
