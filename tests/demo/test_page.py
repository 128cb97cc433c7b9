"""The page in a real browser: what a visitor does has real effects, and the console stays silent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from testproject.prepare import LOGIN
from tests.browser import log_in, new_context
from tests.pages import DOCS
from tests.servers import slack


@pytest.fixture
def context(browser: Browser, demo_site: str) -> Iterator[BrowserContext]:
    """A visitor's window; nothing may be written to its console, nothing may come from elsewhere."""
    site = f"http://{demo_site}"
    context = new_context(browser, demo_site, viewport={"width": 1200, "height": 900})
    complaints: list[str] = []
    context.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    context.on("request", lambda request: request.url.startswith(site) or complaints.append(f"asks for {request.url}"))
    yield context
    context.close()
    assert complaints == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("/")
    expect(page.locator("[data-rule=api] [data-show=words]")).to_contain_text("10 requests per second")
    return page


def wait_for(page: Page, condition: str, seconds: float) -> None:
    page.wait_for_function(condition, timeout=slack(seconds) * 1000, polling=50)  # frames stop in a hidden tab


def seen(selector: str) -> str:
    return f"Number(document.querySelector('{selector}').textContent)"


def heights(page: Page, layer: str) -> list[float]:
    """How far the drawn line of this colour is above the bottom of the chart, from old to new."""
    d = page.locator(f"#chart .{layer} .line").last.get_attribute("d") or ""
    bottom = float(page.locator("#chart .grid line").first.get_attribute("y1") or 0)
    return [bottom - float(y) for y in re.findall(r",([\d.]+)", d)]


def test_the_chart_shows_what_is_allowed_and_what_is_refused(page: Page) -> None:
    page.locator("#http-pace").fill("30")
    wait_for(page, f"{seen('#allowed')} < 13 && {seen('#allowed')} > 7 && {seen('#refused')} > 12", 15)
    allowed, refused = heights(page, "allowed"), heights(page, "refused")
    assert 0 < allowed[-1] < refused[-1], "the refused ones stand on the allowed ones"
    for verdict, least in (("allowed", 20), ("refused", 12)):
        assert int(page.locator(f"fieldset[data-lane=http] [data-count={verdict}]").inner_text()) >= least
    wait_for(page, "document.querySelector('[data-rule=api] [data-show=remaining]').textContent <= 2", 3)

    page.click("#stop")
    wait_for(page, f"{seen('#allowed')} + {seen('#refused')} === 0", 3)
    wait_for(page, "document.querySelector('[data-rule=api] [data-show=remaining]').textContent === '20'", 5)
    if os.environ.get("PICTURES"):
        page.screenshot(path=DOCS / "pictures" / "demo.png")


def test_an_edit_in_the_admin_changes_the_chart_within_a_second(context: BrowserContext, page: Page) -> None:
    admin = context.new_page()
    log_in(admin)
    expect(page.locator("#account")).to_have_text(f"signed in as {LOGIN}")
    page.locator("#http-pace").fill("30")
    wait_for(page, f"{seen('#allowed')} < 13 && {seen('#allowed')} > 7 && {seen('#refused')} > 12", 15)
    try:
        with context.expect_page() as opened:
            page.click("[data-rule=api] .edit")
        rule = opened.value
        rule.fill("[name=rate]", "3/s")
        rule.locator("[name=_save]").first.click(no_wait_after=True)
        # A second for every worker to learn it, half a second until the page looks again.
        wait_for(page, "document.querySelector('#chart .limit text').textContent === 'limit 3/s'", 1.5)
        # What is shown is the second before.
        wait_for(page, f"{seen('#allowed')} <= 4", 2)
        assert "10/s → 3/s" in page.locator("#chart .marks").text_content()
        before, after = heights(page, "allowed")[-9], heights(page, "allowed")[-1]
        assert after < before
    finally:
        page.click("#stop")
        admin.goto(page.locator("[data-rule=api] .edit").get_attribute("href") or "")
        admin.fill("[name=rate]", "10/s")
        admin.locator("[name=_save]").first.click()
    expect(page.locator("[data-rule=api] [data-show=words]")).to_contain_text("10 requests per second")
