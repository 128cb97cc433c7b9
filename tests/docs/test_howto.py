"""How-to pages whose code is small: it is run, and does what the page says."""

from __future__ import annotations

import hashlib
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import uvicorn
import yaml
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client, RequestFactory

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.core import Decision, Rule
from django_throttle.core.descriptions import describe
from django_throttle.exceptions import Refused
from django_throttle.identity import HttpWho
from django_throttle.management.commands.refresh_connections import Command
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock
from tests.consumers import opened, socket
from tests.doors import Enforce, enforcer
from tests.pages import DOCS, run, shown

enforce = pytest.fixture(enforcer)


def put_in_force(enforce: Enforce, code: str, **names: Any) -> dict[str, Any]:
    given = run(code, **names)["DJANGO_THROTTLE"]
    enforce(**given.pop("RULES"), **given)
    return given


def sent_by(user: int | None, tenant: str = "", **headers: str) -> HttpRequest:
    request: Any = RequestFactory().post("/", headers=headers)
    request.user = SimpleNamespace(pk=user, tenant_id=tenant, is_authenticated=user is not None)
    return request  # type: ignore[no-any-return]


def decide(request: HttpRequest, cost: int = 1, scope: str = "upload") -> Decision:
    return limiter.decide(Facts(scope, ("request",), HttpWho(request), cost, method="POST"))


async def test_the_eleventh_message_and_the_fourth_socket_are_refused(enforce: Enforce) -> None:
    settings, consumer = shown("websockets")
    put_in_force(enforce, settings)
    app = run(consumer)["ChatConsumer"].as_asgi()
    mine = {"client": ("203.0.113.9", 1)}
    open_ones = [await opened(app, **mine) for _ in range(3)]
    for number in range(11):
        await open_ones[number % 3].send_json_to(number)
        told = await open_ones[number % 3].receive_json_from()
        assert (told == number) == (number < 10)
    for varying in ("reference", "detail", "retry_after"):
        assert told.pop(varying)
    said = {"type": "error", "code": "rate_limited", "rule": "messages", "limit": 10, "remaining": 0, "window": 10}
    assert told == said
    fourth = socket(app, **mine)
    assert (await fourth.connect())[0]
    assert (await fourth.receive_json_from())["code"] == "connection_limit"
    assert (await fourth.receive_output())["code"] == 4430
    for one in open_ones:
        await one.disconnect()


def test_a_key_has_less_than_its_user_and_a_user_less_than_the_tenant(enforce: Enforce) -> None:
    put_in_force(enforce, shown("tenants")[0])

    def passed(user: int, key: str) -> int:
        """Of 20 requests of 100 calls each."""
        request: Any = sent_by(user, "acme")
        request.auth = key
        return 100 * sum(decide(request, cost=100).allowed for _ in range(20))

    assert [passed(1, key) for key in "abcde"] == [300, 300, 300, 100, 0]
    assert sum(passed(user, f"{user} {key}") for user in range(2, 8) for key in "abcd") == 4000
    assert decide(sent_by(1, "other"), cost=100).allowed


def test_only_keys_that_were_handed_out_have_budgets(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ModuleType("shop.limits")
    vars(limits).update(run(shown("tenants")[1]))
    limits.PARTNERS[hashlib.sha256(b"a-key").hexdigest()] = "acme"
    for name, module in (("shop", ModuleType("shop")), ("shop.limits", limits)):
        monkeypatch.setitem(sys.modules, name, module)
    enforce(partners={"rate": "2/min", "key": "shop.limits.partner"})

    def ask(key: str) -> list[bool]:
        return [decide(sent_by(1, **{"X-Partner-Key": key})).allowed for _ in range(3)]

    assert ask("a-key") == [True, True, False]
    assert ask("made up") == [True] * 3


class TestTasks:
    """Its worker is played by tests/outside."""

    QUEUE, MAILS, TRY, BUCKET, REMINDERS = shown("tasks")

    def options(self, code: str) -> dict[str, Any]:
        found = run(code, INSTALLED_APPS=[])["DJANGO_THROTTLE"]["RULES"]["mails"]
        assert isinstance(found, dict)
        return found

    def test_mails_wait_for_their_turn(self) -> None:
        told = describe(Rule.from_options("mails", self.options(self.QUEUE)))
        assert told.startswith("each user: 10 tasks per minute, evenly spaced, up to 1,000 waiting their turn")

    @pytest.mark.parametrize(("code", "at_once"), [(QUEUE, 1), (BUCKET, 10)])
    def test_what_ten_a_minute_means(self, clock: FrozenClock, code: str, at_once: int) -> None:
        mails = limiter.Limiter([Rule.from_options("mails", self.options(code))], MemoryStore(clock))
        *first, then = (mails.acquire("user:1") for _ in range(at_once + 1))
        assert all(one.allowed and not one.outcomes[0].put_off for one in first)
        assert (then.outcomes[0].put_off or then.retry_after) == pytest.approx(6)

    def test_celery_s_draw_on_the_same_rule(self, enforce: Enforce) -> None:
        enforce(mails=self.options(self.BUCKET))
        remind = run(self.REMINDERS, __name__="shop.reminders")["send_reminder"]
        assert remind.name == "shop.reminders.send_reminder"
        for _ in range(10):
            remind(1)
        with pytest.raises(Refused):
            remind(1)
        remind(2)


@pytest.mark.django_db
def test_clients_see_what_is_measured(enforce: Enforce, settings: Any) -> None:
    code = shown("costs")[0]
    settings.MIDDLEWARE = run(code, MIDDLEWARE=[*settings.MIDDLEWARE])["MIDDLEWARE"]
    put_in_force(enforce, code, MIDDLEWARE=[])
    answer = Client().get("/admin/login/")
    assert answer["RateLimit-Policy"] == '"database";q=20000;qu="db_ms";w=60'


def test_sites_on_one_redis_count_apart_unless_they_have_one_prefix(redis_url: str, settings: Any) -> None:
    rules = {"api": {"rate": "1/min", "key": "user"}}
    (code,) = (code for code in shown("sites") if "PREFIX" in code)
    shop = {**run(code)["DJANGO_THROTTLE"], "REDIS": redis_url, "RULES": rules, "DATABASE_RULES": False, "AGENT": False}
    shop |= {"DEADLINE": 5.0, "TESTS_IN_MEMORY": False}
    allowed = []
    for site in (shop, {**shop, "PREFIX": "news"}, shop, {**shop, "KEY_SECRET": "another"}):
        settings.DJANGO_THROTTLE = site
        allowed.append(decide(sent_by(1)).allowed)
    assert allowed == [True, True, False, True]


@pytest.mark.django_db
def test_the_logins_count_what_fails(enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    login, routes, _ = shown("logins")
    put_in_force(enforce, login, MIDDLEWARE=[])
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.MIDDLEWARE = run(login, MIDDLEWARE=[*settings.MIDDLEWARE])["MIDDLEWARE"]
    urls = ModuleType("shop.urls")
    vars(urls).update(run(routes))
    monkeypatch.setitem(sys.modules, "shop.urls", urls)
    settings.ROOT_URLCONF = "shop.urls"
    User.objects.create_superuser("anna", password="right")

    def log_in(name: str, password: str, address: str = "192.0.2.1") -> int:
        form = {"username": name, "password": password}
        return Client(REMOTE_ADDR=address).post("/admin/login/", form).status_code

    assert [log_in("anna", "right") for _ in range(12)] == [302] * 12
    assert [log_in("anna", "wrong") for _ in range(11)] == [200] * 10 + [429]
    assert log_in("anna", "right", "192.0.2.2") == 429
    assert [log_in(f"user{number}", "wrong") for number in range(11)] == [200] * 10 + [429]


def test_uploads_count_by_their_size(enforce: Enforce) -> None:
    put_in_force(enforce, shown("uploads")[0])
    first, second = (
        limiter.decide(Facts("upload", ("request",), HttpWho(sent_by(1)), method="POST", size=60_000_000))
        for _ in range(2)
    )
    assert first.allowed and not second.allowed


def test_a_pod_has_what_its_containers_need() -> None:
    """The refresher sees the server's processes, and the server ends before the pod is killed."""
    (text,) = re.findall(
        r"code-block:: yaml\n\n((?: {3}.*\n)+)", (DOCS / "howto" / "containers.rst").read_text("utf-8")
    )
    pod = yaml.safe_load(text)["spec"]
    web, refresher = pod["containers"]
    assert pod["shareProcessNamespace"]
    server = uvicorn.main.make_context("uvicorn", web["command"][1:]).params
    assert server["app"] == "mysite.asgi:application"
    assert server["timeout_graceful_shutdown"] < pod["terminationGracePeriodSeconds"]
    for command in (refresher["command"], refresher["livenessProbe"]["exec"]["command"]):
        assert command[:3] == ["python", "manage.py", "refresh_connections"]
        Command().create_parser("manage.py", command[2]).parse_args(command[3:])
