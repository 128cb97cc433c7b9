"""People who may log in to the admin, and how its pages read."""

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from django_throttle.checks import scopes

NASTY = '<img src=x onerror="alert(1)">'


def user(*permissions: str, staff: bool = True, superuser: bool = False) -> User:
    """Somebody with these permissions of this app, such as "view_throttlerule"."""
    somebody = User.objects.create_user("somebody", is_staff=staff, is_superuser=superuser)
    somebody.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return somebody


@pytest.fixture(autouse=True)
def no_decorators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that decorators of other tests name are not the rules of these pages."""
    monkeypatch.setattr(scopes, "decorated", {})


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(user(superuser=True))
    return client


def url(name: str, *args: Any) -> str:
    """The address of a page of the admin: ``url("throttlerule_add")``."""
    app = "throttle_console" if name.startswith(("throttlecandidate", "throttleoverview")) else "django_throttle"
    return reverse(f"admin:{app}_{name}", args=args)


def text(page: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.content.decode())).split())


def messages(answer: Any) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def errors(page: Any) -> dict[str, list[str]]:
    return {name: list(found) for name, found in page.context["adminform"].form.errors.items()}


def form(client: Client, page: str, **values: Any) -> dict[str, Any]:
    fields = client.get(page).context["adminform"].form
    shown = {name: fields[name].value() for name in fields.fields}
    return {name: "" if value is None else value for name, value in {**shown, **values}.items() if value is not False}


class Scripts(HTMLParser):
    """Collects what would run, or load what should not be there."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        source = self.get_starttag_text() or ""
        is_loaded = tag in ("img", "iframe", "object") and "/static/admin/" not in source
        if is_loaded or any(name.startswith("on") for name, _ in attrs):
            self.found.append(source)
