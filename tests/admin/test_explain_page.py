"""The page that says why somebody is refused, in a real browser: from a client's error to relief."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from websockets.sync.client import connect

from testproject.prepare import LOGIN, PASSWORD
from tests.admin.test_connections_page import ANSWER, browser, site
from tests.servers import wait_until

__all__ = ["browser", "site"]


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    """An operator's, on a phone, in the dark; nothing may go wrong on it."""
    size = {"width": 390, "height": 800}
    context = browser.new_context(base_url=f"http://{site}", viewport=size, color_scheme="dark")  # type: ignore[arg-type]
    page = context.new_page()
    mistakes: list[str] = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.goto("/admin/login/?next=/admin/django_throttle/throttlerule/")
    page.fill("[name=username]", LOGIN)
    page.fill("[name=password]", PASSWORD)
    page.click("[type=submit]")
    yield page
    context.close()
    assert mistakes == []


def refused(site: str) -> str:
    """The reference in the error of a client that sends too many messages."""
    with connect(f"ws://{site}/ws/chat", proxy=None, origin=f"http://{site}") as socket:  # type: ignore[arg-type]
        for number in range(2000):
            socket.send(json.dumps({"id": number, "text": "x"}))
        while True:
            frame = json.loads(socket.recv(ANSWER))
            if frame["type"] == "error":
                return str(frame["reference"])


def test_from_the_error_of_a_client_to_relief(page: Page, site: str) -> None:
    reference = refused(site)
    page.get_by_role("link", name="Why is this caller refused?").click()

    def is_listed() -> bool:
        page.get_by_label("Who").fill(reference)
        page.get_by_label("Who").press("Enter")
        return "chat" in page.locator("#content").inner_text()

    wait_until(is_listed, timeout=ANSWER)  # processes send what they recorded every two seconds
    expect(page.locator("#explain-recent")).to_contain_text("api")

    page.get_by_label("Who").fill("127.0.0.1")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#explain-sentence")).to_contain_text("by ip:127.0.0.1 would be")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.get_by_role("link", name="Relief for two hours").click()
    expect(page.locator("#id_value")).to_have_value("127.0.0.1")
    expect(page.locator("#id_lasting")).to_have_value("7200")
    page.locator("[name=_save]").first.click()
    expect(page.locator(".messagelist")).to_contain_text("was added successfully")
    page.get_by_role("link", name="Why is this caller refused?").click()
    page.get_by_label("Who").fill("127.0.0.1")
    page.get_by_label("Who").press("Enter")
    expect(page.locator("#explain-overrides")).to_contain_text("2 ×")
    page.locator("#explain-reset").click()
    expect(page.locator(".messagelist")).to_contain_text("The budgets of ip:127.0.0.1 are full again.")
