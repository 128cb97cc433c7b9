"""axe-core finds nothing on our pages, light or dark, nor when they are written from right to left."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.test import RequestFactory
from django.utils import translation
from playwright.sync_api import BrowserContext, Page

from django_throttle.core import Outcome, Reason
from django_throttle.core.decision import conclude
from django_throttle.http.refusal import refusal
from tests.admin.test_connections_page import browser, operator, site

__all__ = ["browser", "operator", "site"]
ADMIN = "/admin/django_throttle"
PAGES = (
    "throttlerule/",
    "throttlerule/add/",
    "throttlerule/overview/",
    "throttlerule/costs/",
    "throttlerule/explain/?ident=ip:192.0.2.1&scope=search",
    "throttleoverride/",
    "throttleoverride/add/",
    "throttlecandidate/",
    "throttlechange/",
    "throttleconnection/",
)


def violations(page: Page) -> list[str]:
    found = Axe().run(page, context={"exclude": [["#searchbar"]]}).response["violations"]  # Django's own
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_the_admin(operator: BrowserContext, scheme: str) -> None:
    page = operator.new_page()
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    found = {}
    for path in PAGES:
        page.goto(f"{ADMIN}/{path}")
        if wrong := violations(page):
            found[path] = wrong
    page.close()
    assert not found, "\n".join(f"{path} {one}" for path, wrong in found.items() for one in wrong)


@pytest.mark.parametrize("language", ["en", "de", "ja", "ar"])
def test_the_page_of_a_refusal(operator: BrowserContext, language: str) -> None:
    decision = conclude((Outcome("api", "user:1", False, 10, 0, 90.0, 90.0, Reason.EXCEEDED, window=60.0),))
    with translation.override(language):
        content = refusal(RequestFactory().get("/", headers={"Accept": "text/html"}), decision).content.decode()
    page = operator.new_page()
    page.set_content(content)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert not violations(page)
    page.close()
