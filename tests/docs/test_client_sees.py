"""What a how-to page says under "What the client sees" is what its own code answers."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import clear_url_caches, include, path
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from django_throttle import limiter, rulebook
from django_throttle.call_facts import Facts
from django_throttle.core import Override
from django_throttle.drf import RuleThrottle
from django_throttle.identity import HttpWho
from django_throttle.site_queues import tasks_module
from django_throttle.stores import RedisStore
from tests.consumers import opened, socket
from tests.doors import Enforce, enforcer
from tests.inside import count_in
from tests.outside.answers import assert_shown
from tests.pages import DOCS, block, run, seen, shown

enforce = pytest.fixture(enforcer)
pytestmark = pytest.mark.django_db(transaction=True)
MIDDLEWARE = "django_throttle.middleware.ThrottleMiddleware"
ADDRESS = "ip:127.0.0.1"
#: How-to pages that limit no client of the site.
WITHOUT = {
    *("alerts", "candidates", "containers", "deployment", "explain", "outgoing", "redis", "rollout", "sites", "testing")
}


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
    head = [
        f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}",
        *(f"{one}: {answer[one]}" for one in answer.headers),
    ]
    return "\n".join(head) + "\n\n" + answer.content.decode()


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


def plans(site: Site) -> Iterator[str]:
    site.rules(shown("plans")[0])
    site.view("search")
    anna = User.objects.create(username="anna")
    anna.groups.add(Group.objects.create(name="premium"))
    client = Client()
    client.force_login(anna)
    yield written(client.get("/search"))
    request = RequestFactory().get("/search")
    request.user = anna
    assert limiter.decide(Facts("search", ("request",), HttpWho(request), 999, method="GET")).allowed
    yield written(client.get("/search"))


def tenants(site: Site) -> Iterator[str]:
    class Search(APIView):
        throttle_classes = (RuleThrottle,)
        throttle_cost = 150

        def get(self, request: Any) -> Response:
            return Response({"found": []})

    site.rules(shown("tenants")[0])
    request = APIRequestFactory().get("/")
    user = SimpleNamespace(pk=1, tenant_id="acme", is_authenticated=True)
    force_authenticate(request, user=user, token="a-key")  # type: ignore[arg-type]
    *_, answer = (Search.as_view()(request) for _ in range(3))
    yield written(answer.render())


def quotas(site: Site) -> Iterator[str]:
    site.rules(shown("quotas")[0])
    site.view("search")
    client = Client()
    client.force_login(anna := User.objects.create(username="anna"))
    site.use("monthly", f"user:{anna.pk}", 71_999)
    yield written(client.get("/search"))
    site.use("monthly", f"user:{anna.pk}", 108_000)
    yield written(client.get("/search"))


def tasks(site: Site) -> Iterator[str]:
    rules, code, *_ = shown("tasks")
    site.rules(rules)
    code = code.replace("from django.tasks import", f"from {tasks_module()} import")
    shop = run(code, __name__="shop.mails")
    site.module("shop.mails", **shop)

    def remind(request: HttpRequest) -> HttpResponse:
        shop["send_invoice"].enqueue(user_id=1)
        return HttpResponse("It is on its way.")

    site.view("invoice", remind)
    site.use("mails", "user:1", 1001)
    yield written(Client().get("/invoice"))


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


def publishing(site: Site) -> Iterator[str]:
    rules, consumer = shown("publishing")
    site.rules(rules)
    app = run(consumer)["RoomConsumer"].as_asgi()

    async def talk() -> Any:
        one = await opened(app, client=("203.0.113.9", 1), user=SimpleNamespace(pk=1, is_authenticated=True))
        for _ in range(25):
            await one.send_json_to({"text": "hello"})
            assert await one.receive_json_from() == {"text": "hello"}
        await one.send_json_to({"text": "hello"})
        frame = await one.receive_json_from()
        assert await one.receive_nothing()
        await one.disconnect()
        return frame

    yield json.dumps(asyncio.run(talk()))


def uploads(site: Site) -> Iterator[str]:
    site.rules(shown("uploads")[0])
    site.view("upload")
    sizes = (60_000_000, 60_000_000, 200_000_000)
    _, second, third = (Client().post("/upload", b"x", "text/plain", CONTENT_LENGTH=str(size)) for size in sizes)
    yield written(second)
    yield written(third)


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


def graphql(site: Site) -> Iterator[str]:
    cost, rules, _ = shown("graphql")
    site.module("shop.limits", **run(cost))
    site.rules(rules)
    site.view("graphql")
    (text,) = re.findall(
        r"code-block:: graphql\n\n((?: {3}.*\n)+)", (DOCS / "howto" / "graphql.rst").read_text("utf-8")
    )
    first, *_ = re.findall(r"a1: (.*)", text)
    query = " ".join(f"a{number}: {first}" for number in range(1, 31))
    answers = [Client().post("/graphql", {"query": f"mutation {{ {query} }}"}, "application/json") for _ in range(3)]
    assert answers[0]["RateLimit"].startswith(f'"graphql";r={1000 - 345};')
    yield written(answers[2])


def costs(site: Site) -> Iterator[str]:
    def orders(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str([User.objects.count() for _ in range(9)]))

    site.rules(shown("costs")[0])
    site.view("orders", orders)
    yield written(Client().get("/orders"))
    site.use("database", ADDRESS, 19_900)
    yield written(next(answer for _ in range(500) if (answer := Client().get("/orders")).status_code == 429))


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


def overrides(site: Site) -> Iterator[str]:
    site.enforce(api={"rate": "100/min"})
    site.view("search")
    until = limiter.get_store().clock() + 7200
    block = Override(subject=ADDRESS, effect="block", until=until)
    rules = rulebook.current().rules
    rulebook.pin(rulebook.Snapshot(rules, overrides=[block], now=limiter.get_store().clock))
    try:
        yield written(Client().get("/search"))
    finally:
        rulebook.pin(None)


def proxy(site: Site) -> Iterator[str]:
    rule = {"rate": "100/min", "key": "ip"}
    site.enforce(api=rule, **run(block("proxy", '"::1"'))["DJANGO_THROTTLE"])
    site.view("search")
    one, other = ({"X-Forwarded-For": f"198.51.100.1, 203.0.113.{number}"} for number in (7, 8))
    _, *answers = (Client().get("/search", headers=sent) for sent in (one, one, other))
    yield from map(written, answers)
    site.enforce(api=rule, NO_ADDRESS="refuse")
    yield written(Client(REMOTE_ADDR="").get("/search"))


def outages(site: Site) -> Iterator[str]:
    answers = {}
    site.view("search")
    for policy in ("allow", "local", "deny"):
        site.enforce(api={"rate": "100/min", "on_store_failure": policy})
        count_in(RedisStore("redis://127.0.0.1:1/0"), site.patch)
        answers[policy] = Client().get("/search")
    assert [answers[policy].status_code for policy in ("allow", "local")] == [200, 200]
    assert not {"RateLimit", "RateLimit-Policy"} & {*answers["allow"].headers, *answers["local"].headers}
    yield written(answers["deny"])


def switching(site: Site) -> Iterator[str]:
    _, _, _, before, after, *_ = shown("switching")
    cache.clear()
    for code in (before, after):
        found = run(code)
        if "DJANGO_THROTTLE" in found:
            site.rules(code)
        site.view("signup", found["view"])
        answers = [Client(raise_request_exception=False).post("/signup") for _ in range(4)]
        assert [answer.status_code for answer in answers[:3]] == [200] * 3
        yield written(answers[3])
    cache.clear()


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        *(costs, graphql, later, logins, outages, overrides, plans, proxy, publishing, quotas, streams, switching),
        *(tasks, tenants, uploads, websockets),
    )
}


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("page", SCENARIOS)
def test_the_page_says_what_its_code_answers(
    page: str, enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = SCENARIOS[page](Site(enforce, settings, monkeypatch))
    for told, answer in zip(seen(page), answers, strict=True):
        assert_shown(laid_out(told), "\n".join(laid_out(answer)))


def test_each_page_about_limiting_has_it() -> None:
    assert {path.stem for path in (DOCS / "howto").glob("*.rst")} - WITHOUT == {*SCENARIOS}
