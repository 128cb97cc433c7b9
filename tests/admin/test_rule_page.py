"""The admin's page of a rule in a real browser: what is ticked follows the algorithm, and is what gets saved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from django_throttle.core import Rule
from django_throttle.core.options import ALGORITHMS, table
from django_throttle.models.fields import stored
from tests.admin.test_connections_page import browser, operator, site

__all__ = ["browser", "operator", "site"]


@pytest.fixture
def page(operator: BrowserContext) -> Iterator[Page]:
    page = operator.new_page()
    page.goto("/admin/django_throttle/throttlerule/add/")
    yield page
    page.close()


def ticked(page: Page) -> list[str]:
    found: list[str] = page.evaluate("[...document.querySelectorAll('[name=events]:checked')].map((box) => box.value)")
    return found


def test_concurrency_takes_what_is_open_and_nothing_else(page: Page) -> None:
    assert ticked(page) == ["request"]
    page.select_option("[name=algorithm]", "concurrency")
    assert ticked(page) == ["connection"]
    page.fill("[name=name]", "open")
    page.fill("[name=limit]", "5")
    expect(page.locator("#rule-preview")).to_contain_text("5 open WebSockets at once")
    page.check("[name=events][value=inflight]")
    expect(page.locator("#rule-preview")).to_contain_text("HTTP requests in flight and open WebSockets together")
    page.check("[name=events][value=connect]")
    expect(page.locator("#rule-preview")).to_contain_text("not 'connect'; did you mean 'connection'?")
    page.select_option("[name=algorithm]", "gcra")
    assert ticked(page) == ["connect"]
    page.select_option("[name=algorithm]", "concurrency")
    page.check("[name=events][value=inflight]")
    page.uncheck("[name=events][value=connection]")
    page.click("[name=_continue]")
    expect(page.locator(".success")).to_contain_text("was added")
    assert ticked(page) == ["inflight"]
    expect(page.locator("#rule-preview")).to_contain_text("5 requests in flight at once")


def test_only_the_options_of_the_algorithm_are_shown(page: Page) -> None:
    def shown() -> set[str]:
        return {name for name in table(Rule) if page.locator(f".form-row.field-{name}").is_visible()}

    every = {name for name in shown() if not (table(Rule)[name].only or table(Rule)[name].never)}
    assert {"key", "algorithm", "action", "on_store_failure"} < every
    for algorithm in ALGORITHMS:
        page.select_option("[name=algorithm]", algorithm)
        taken = {name for name, row in stored(Rule).items() if row.takes(algorithm)}
        assert shown() == taken
    page.select_option("[name=algorithm]", "concurrency")
    page.fill("[name=limit]", "5")
    page.select_option("[name=algorithm]", "damper")
    assert "limit" in shown(), "a field that holds a value stays, or nobody would see why the rule is refused"
