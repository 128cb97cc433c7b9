"""The page in a real browser: what a visitor does has real effects, and the console stays silent."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from testproject.prepare import LOGIN
from testproject.services import Services
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


def pace(page: Page, lane: str, per_second: int) -> None:
    page.locator(f"#{lane}-pace").fill(str(per_second))


def number(page: Page, selector: str) -> int:
    return int(page.locator(selector).inner_text())


def wait_for(page: Page, condition: str, seconds: float) -> float:
    """Wait until a JavaScript condition holds; returns the seconds it took."""
    started = time.monotonic()
    page.wait_for_function(condition, timeout=slack(seconds) * 1000, polling=50)  # frames stop in a hidden tab
    return time.monotonic() - started


def seen(selector: str) -> str:
    return f"Number(document.querySelector('{selector}').textContent)"


def heights(page: Page, layer: str) -> list[float]:
    """How far the drawn line of this colour is above the bottom of the chart, from old to new."""
    d = page.locator(f"#chart .{layer} .line").last.get_attribute("d") or ""
    bottom = float(page.locator("#chart .grid line").first.get_attribute("y1") or 0)
    return [bottom - float(y) for y in re.findall(r",([\d.]+)", d)]


def test_the_chart_shows_what_is_allowed_and_what_is_refused(page: Page) -> None:
    pace(page, "http", 30)
    wait_for(page, f"{seen('#allowed')} < 13 && {seen('#allowed')} > 7 && {seen('#refused')} > 12", 15)
    allowed, refused = heights(page, "allowed"), heights(page, "refused")
    assert 0 < allowed[-1] < refused[-1], "the refused ones stand on the allowed ones"
    assert number(page, "fieldset[data-lane=http] [data-count=allowed]") >= 20
    assert number(page, "fieldset[data-lane=http] [data-count=refused]") >= 12
    wait_for(page, "document.querySelector('[data-rule=api] [data-show=remaining]').textContent <= 2", 3)

    page.click("#stop")
    wait_for(page, f"{seen('#allowed')} + {seen('#refused')} === 0", 3)
    wait_for(page, "document.querySelector('[data-rule=api] [data-show=remaining]').textContent === '20'", 5)
    if os.environ.get("PICTURES"):
        page.screenshot(path=DOCS / "pictures" / "demo.png")


def test_a_report_over_the_rate_is_made_later(context: BrowserContext, page: Page) -> None:
    page.click("#report")
    expect(page.locator("#report-state")).to_contain_text("done, at once")
    page.click("#report")
    expect(page.locator("#report-state")).to_contain_text("number 1 in the queue")
    expect(page.locator("#report-progress")).to_have_attribute("value", re.compile(r"\d"))
    status = context.new_page()
    status.goto(page.locator("#report-page").get_attribute("href") or "")
    expect(status.get_by_role("heading")).to_contain_text("waiting")
    expect(status.get_by_role("progressbar")).to_have_attribute("aria-label", "Time waited so far")
    patience = slack(30) * 1000
    expect(status.get_by_role("heading")).to_contain_text("done", timeout=patience)  # it looks again by itself
    expect(page.locator("#report-state")).to_contain_text("is done", timeout=patience)


def test_an_edit_in_the_admin_changes_the_chart_within_a_second(context: BrowserContext, page: Page) -> None:
    admin = context.new_page()
    log_in(admin)
    expect(page.locator("#account")).to_have_text(f"signed in as {LOGIN}")
    pace(page, "http", 30)
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


def test_messages_and_requests_draw_on_one_budget(page: Page) -> None:
    pace(page, "http", 15)
    pace(page, "message", 15)
    wait_for(page, f"{seen('#allowed')} < 13 && {seen('#allowed')} > 7 && {seen('#refused')} > 12", 15)
    for lane in ("http", "message"):
        for verdict in ("allowed", "refused"):
            assert number(page, f"[data-lane={lane}] [data-count={verdict}]") > 0
    expect(page.locator("#here")).to_have_text("1")


def test_a_redis_that_hangs_is_said_and_nothing_is_made_up(page: Page, demo_services: Services) -> None:
    for count in ("1", "2"):
        page.click("[data-sockets=open]")
        expect(page.locator("#here")).to_have_text(count)
    expect(page.locator("#held")).to_have_text("2")
    redis = demo_services.running["redis"]
    redis.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#trouble")).to_contain_text("Redis does not answer")
        state = page.locator("[data-rule=sockets] .state")
        expect(state).to_have_text(
            "2 held by this page; what else you hold is not known, Redis does not answer", use_inner_text=True
        )
        expect(page.locator("#slots .here")).to_have_count(2)
        expect(page.locator("#slots .unheard")).to_have_count(3)
        expect(page.locator("[data-rule=api] [data-show=remaining]")).to_have_text("?")
        expect(page.locator("[data-rule=orders] [data-show=retry]")).to_have_text("?")
    finally:
        redis.send_signal(signal.SIGCONT)
    expect(state).to_have_text("2 held by this page, 2 by you in all", use_inner_text=True, timeout=slack(20) * 1000)
    expect(page.locator("#trouble")).to_be_hidden()
    page.click("[data-sockets=close-all]")
    expect(page.locator("#held")).to_have_text("0")


def test_a_socket_past_the_cap_is_refused_and_closing_frees_its_slot(page: Page) -> None:
    for _ in range(6):
        page.click("[data-sockets=open]")
    expect(page.locator("#here")).to_have_text("5")
    expect(page.locator("#held")).to_have_text("5")
    expect(page.locator("#slots .here")).to_have_count(5)
    expect(page.locator("#socket-note")).to_contain_text("Refused: Too many open connections.")
    page.click("[data-sockets=close]")
    expect(page.locator("#slots .free")).to_have_count(1)
    page.click("[data-sockets=open]")
    expect(page.locator("#held")).to_have_text("5")
    page.click("[data-sockets=close-all]")
    expect(page.locator("#held")).to_have_text("0")


def test_a_refused_order_shows_how_long_to_wait(context: BrowserContext, page: Page) -> None:
    log_in(context.new_page())  # so that the order needs its CSRF token
    expect(page.locator("#ident")).to_have_text(re.compile("user:"))
    page.click("[data-lane=order] [data-burst='6']")
    expect(page.locator("[data-rule=orders] [data-count=allowed]")).to_have_text("5")
    expect(page.locator("[data-rule=orders] [data-count=refused]")).to_have_text("1")
    countdown = page.locator("[data-rule=orders] [data-show=retry]")
    expect(countdown).to_have_text(re.compile(r"in \d+\.\d s"))
    expect(countdown).to_have_text("now", timeout=slack(13) * 1000)


def test_the_page_works_by_keyboard(page: Page) -> None:
    page.locator("#http-pace").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("fieldset[data-lane=http] output")).to_have_text("3")
    page.locator("fieldset[data-lane=http] [data-burst='1']").focus()
    page.keyboard.press("Enter")
    wait_for(page, f"{seen('[data-count=allowed]')} > 0", 3)
    unnamed = "[...document.querySelectorAll('input, button, meter, a')].filter(e => !(e.labels?.length || e.ariaLabel"
    assert page.evaluate(f"{unnamed} || e.textContent.trim())).length") == 0


def test_the_page_fits_a_phone_and_a_dark_room(page: Page, tmp_path: Path) -> None:
    light = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != light
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("#chart").bounding_box()["width"] > 300  # type: ignore[index]
