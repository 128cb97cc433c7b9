"""The table of identities on the page about refused users: what it says to ask for is what a request counts under."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import RequestFactory

from django_throttle.core import Rule
from django_throttle.core.key import KEY_KINDS
from django_throttle.find_caller import find_caller
from django_throttle.identity import HttpWho
from django_throttle.rulebook import Snapshot
from django_throttle.stores import MemoryStore
from tests.doors import enforcer
from tests.pages import DOCS

enforce = pytest.fixture(enforcer)
pytestmark = pytest.mark.django_db
PAGE = (DOCS / "howto" / "explain.rst").read_text(encoding="utf-8")
ROW = re.compile(r"^``(\S+?)``[^`\n]* {2,}(\S.*)$", re.MULTILINE)
TABLE = dict(ROW.findall(PAGE[PAGE.index("How to write each identity") :].partition("- **Reset**")[0]))
LOGIN_NAME = "django_throttle.logins.login_name"


@pytest.fixture
def rules(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """A rule of each key of the table; a function of it is there."""
    limits: Any = ModuleType("shop.limits")
    limits.partner = lambda request: "acme"
    for name, module in (("shop", ModuleType("shop")), ("shop.limits", limits)):
        monkeypatch.setitem(sys.modules, name, module)
    settings.DJANGO_THROTTLE = {"TENANT": "user.tenant_id", "DATABASE_RULES": False, "AGENT": False}
    return Snapshot([Rule(f"rule {number}", "1/s", key=key) for number, key in enumerate(TABLE)])


def sent(address: str = "203.0.113.9", auth: object = None, anonymous: bool = False) -> Any:
    """A login of anna, who is user 42 of the tenant acme."""
    request: Any = RequestFactory().post("/", {"username": "Anna"}, REMOTE_ADDR=address)
    request.user = SimpleNamespace(pk=42, tenant_id="acme", is_authenticated=not anonymous)
    request.auth = auth
    request.session = SimpleNamespace(session_key="KEY", keys=lambda: ["a"], _session_cache={})
    return request


REQUESTS: dict[str, list[Any]] = {
    "user": [sent()] * 3,
    "ip": [sent(), sent("2001:db8::2")],
    "user_or_ip": [],
    "api_key": [sent(auth="KEY"), sent(auth=Group(pk=5))],
}


@pytest.mark.parametrize("key", TABLE)
def test_what_it_says_is_what_counts(key: str, rules: Snapshot) -> None:
    User.objects.create_user("anna", "anna@example.com", pk=42)
    texts = re.findall(r"``(.+?)``", TABLE[key])
    requests = REQUESTS.get(key, [sent()])
    assert len(texts) == len(requests)
    Group.objects.create(pk=5)
    texts = [text.replace("shop.apikey", "auth.group") for text in texts]  # a row that there is
    for typed, request in zip(texts, requests, strict=True):
        assert find_caller(typed, rules, MemoryStore()).name == HttpWho(request).ident(key)


def test_the_table_has_every_key() -> None:
    assert {*TABLE} == {*KEY_KINDS} - {"connection"} | {"tenant+user", "shop.limits.partner", LOGIN_NAME}


@pytest.mark.parametrize("page", ["logins", "tenants"])
def test_the_pages_of_rules_write_them_the_same_way(page: str, rules: Snapshot) -> None:
    User.objects.create_user("anna", pk=42)
    text = (DOCS / "howto" / f"{page}.rst").read_text(encoding="utf-8")
    found = re.findall(r"throttle_(?:explain|reset) (\S+?)``", text)
    assert found
    for typed in found:
        assert find_caller(typed, rules, MemoryStore()).name
