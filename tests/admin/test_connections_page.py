"""The admin's page of open connections in a real browser: it is live, stays so, and closes what it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Locator, Page, expect, sync_playwright
from websockets.sync.client import ClientConnection, connect

from testproject.prepare import LOGIN, PASSWORD
from testproject.services import Services, start_site
from tests.demo.test_page import FLAGS
from tests.servers import free_port, slack, wait_until

ANSWER = slack(10)
Open = Callable[[], ClientConnection]


@pytest.fixture(scope="module")
def site(need_binary: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo, which has two processes: sockets are anywhere."""
    need_binary("redis-server")
    with pytest.MonkeyPatch.context() as patch, Services(tmp_path_factory.mktemp("site")) as services:
        patch.delenv("REDIS_URL", raising=False)
        services.environment["DEADLINE"] = "1"
        port = free_port()
        start_site(services, port)
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser(need_binary: Callable[[str], str]) -> Iterator[Browser]:
    chromium = need_binary("chromium")
    expect.set_options(timeout=ANSWER * 1000)
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=FLAGS) as browser:
        yield browser


@pytest.fixture(scope="module")
def operator(browser: Browser, site: str) -> Iterator[BrowserContext]:
    """Somebody who has logged in, and for whom time between two looks is four times as short."""
    context = browser.new_context(base_url=f"http://{site}")
    context.set_default_timeout(ANSWER * 1000)
    context.add_init_script("const real = setInterval; window.setInterval = (act, every) => real(act, every / 4);")
    page = context.new_page()
    page.goto("/admin/login/?next=/admin/")
    page.fill("[name=username]", LOGIN)
    page.fill("[name=password]", PASSWORD)
    page.click("[type=submit]")
    expect(page.locator("#site-name")).to_be_visible()
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(operator: BrowserContext) -> Iterator[Page]:
    """Nothing may go wrong on it, or load it again."""
    page = operator.new_page()
    mistakes: list[str] = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.goto("/admin/django_throttle/throttleconnection/")
    expect(page.locator(".connections-total")).to_contain_text("0 open connections")
    page.evaluate("window.loaded = 'once'")
    yield page
    page.close()
    assert mistakes == []


@pytest.fixture
def visit(site: str) -> Iterator[Open]:
    """Opens sockets from this address."""
    with ExitStack() as stack:

        def visit() -> ClientConnection:
            socket = stack.enter_context(connect(f"ws://{site}/ws/chat", proxy=None, origin=f"http://{site}"))
            assert json.loads(socket.recv(ANSWER))["type"] == "hello"
            return socket

        yield visit


def total(page: Page, words: str) -> None:
    expect(page.locator(".connections-total")).to_contain_text(words)
    assert page.evaluate("window.loaded") == "once"


def rows(page: Page) -> Locator:
    return page.locator("#connections section:nth-of-type(2) tbody tr:has(button)")


def is_closed(socket: ClientConnection) -> None:
    """By an operator, and told so."""
    assert json.loads(socket.recv(ANSWER))["code"] == "closed"
    wait_until(lambda: socket.close_code == 4410, timeout=ANSWER)


def test_a_button_pressed_while_the_page_waits_for_its_rows_is_not_taken_away(page: Page, visit: Open) -> None:
    socket = visit()
    total(page, "1 open connection")
    rows_of_page, held = re.compile("part=rows"), []
    page.route(rows_of_page, lambda route: held.append(route))  # noqa: PLW0108  (Playwright sets an attribute on it)
    with page.expect_request(rows_of_page):
        pass
    page.get_by_role("button", name="Close", exact=True).hover()
    page.mouse.down()
    with page.expect_response(rows_of_page) as answered:
        held[0].continue_()
    answered.value.finished()
    page.unroute(rows_of_page)
    page.mouse.up()
    is_closed(socket)


def test_it_shows_what_happens_without_being_loaded_again(page: Page, visit: Open) -> None:
    """And closes a socket, whichever process holds it, however long the button is pressed."""
    socket = visit()
    total(page, "1 open connection")
    cells = rows(page).locator("th, td")
    expect(cells.nth(0)).to_contain_text("ip:127.0.0.1")
    expect(cells.nth(3)).to_have_text("/ws/chat")
    expect(cells.nth(5)).to_have_text("none")
    expect(cells.nth(6)).to_have_text("0")
    age = cells.nth(4).inner_text()
    socket.send(json.dumps({"id": 1, "text": "hello"}))
    assert json.loads(socket.recv(ANSWER))["type"] == "echo"
    expect(cells.nth(6)).to_have_text("1")
    expect(cells.nth(5)).to_have_text(re.compile(r"^\d+ s ago$"))
    expect(cells.nth(4)).not_to_have_text(age)
    assert page.evaluate("window.loaded") == "once"

    page.get_by_role("button", name="Close", exact=True).click(delay=1200)  # two looks
    expect(page.locator(".messagelist")).to_contain_text("The connection of ip:127.0.0.1 (chat, /ws/chat) is being")
    is_closed(socket)
    expect(page.locator(".connections-total")).to_contain_text("0 open connections")


def test_a_question_that_was_dismissed_leaves_it_live_and_the_focus_where_it_was(page: Page, visit: Open) -> None:
    first = visit()
    asked: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    all_of_them = page.get_by_role("button", name="Close all")
    page.once("dialog", dismiss)
    all_of_them.click()
    assert len(asked) == 1 and asked[0].startswith("Close all 1 connections of")
    expect(all_of_them).to_be_focused()
    second = visit()
    total(page, "2 open connections")
    expect(all_of_them).to_be_focused()

    rows(page).last.get_by_role("button").focus()
    second.close()  # the newest is the last of its identity
    total(page, "1 open connection")
    expect(page.locator("#connections")).to_be_focused()

    page.once("dialog", lambda dialog: dialog.accept())
    all_of_them.click()
    expect(page.locator(".messagelist")).to_contain_text("being closed")
    is_closed(first)
