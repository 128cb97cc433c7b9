"""The admin's history in a real browser: an edit, why it was made, and its revert in one click."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.admin.test_connections_page import browser, operator, site

__all__ = ["browser", "operator", "site"]
PHONE = {"width": 375, "height": 740}


@pytest.fixture
def page(operator: BrowserContext) -> Iterator[Page]:
    page = operator.new_page()
    mistakes: list[str] = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    yield page
    page.close()
    assert mistakes == []


def test_a_rule_is_edited_and_reverted_by_one_click_each(page: Page) -> None:
    page.goto("/admin/django_throttle/throttlerule/add/")
    page.fill("[name=name]", "night")
    page.fill("[name=rate]", "50/min")
    page.click("[name=_continue] >> nth=0")
    expect(page.locator(".success")).to_contain_text("was added")
    page.fill("[name=rate]", "20/min")
    page.fill("[name=edit_reason]", "the database is slow")
    page.click("[name=_continue] >> nth=0")
    expect(page.locator(".success")).to_contain_text("was changed")
    page.get_by_role("link", name="History", exact=True).first.click()
    line = page.locator("#result_list tbody tr").first
    for text in ("Rule night", "rate: 50/min → 20/min", "the database is slow", "(admin)"):
        expect(line).to_contain_text(text)

    line.get_by_role("button", name="Revert").click()
    expect(page.locator(".success")).to_contain_text("Reverted: rate: 20/min → 50/min.")
    expect(page.locator("#result_list tbody tr").first).to_contain_text("reverted")

    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.locator("#result_list tbody tr").nth(1).get_by_role("link").first.click()
    expect(page.locator("pre.history-json").last).to_contain_text('"rate": "20/min"')
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    button = page.get_by_role("button", name="Revert")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("nothing to revert")
