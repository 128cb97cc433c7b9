"""The admin in a real browser: what its scripts do, and an operator's night from a complaint to a new limit.

With PICTURES=1 it renews the pictures of the page *Change a limit in safe steps*.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import cycle
from threading import Event, Thread
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.test import RequestFactory
from django.utils import translation
from playwright.sync_api import Browser, BrowserContext, Dialog, Locator, Page, expect
from websockets.sync.client import ClientConnection, connect

from django_throttle.core import Outcome, Reason, Rule
from django_throttle.core.decision import conclude
from django_throttle.core.options import ALGORITHMS, table
from django_throttle.http.refusal import refusal
from django_throttle.models.fields import stored
from tests.browser import PATIENCE, log_in, new_context, new_page
from tests.pages import DOCS
from tests.servers import slack, wait_until

ADMIN = "/admin/django_throttle"
RULES = f"{ADMIN}/throttlerule/"
PAGES = (
    *("throttlerule/", "throttlerule/add/", "throttlerule/overview/", "throttlerule/costs/", "throttleoverride/"),
    *("throttleoverride/add/", "throttlecandidate/", "throttlechange/", "throttleconnection/"),
    "throttlerule/explain/?ident=ip:192.0.2.1&scope=search",
)
PHONE: Any = {"width": 390, "height": 800}
Open = Callable[..., ClientConnection]


@pytest.fixture(scope="module")
def operator(browser: Browser, demo_site: str) -> Iterator[BrowserContext]:
    """Somebody who has logged in, and for whom time between two looks at a live page is four times as short."""
    context = new_context(browser, demo_site, viewport={"width": 1000, "height": 700})
    context.add_init_script("const real = setInterval; window.setInterval = (act, every) => real(act, every / 4);")
    with new_page(context) as page:
        log_in(page)
    yield context
    context.close()


@pytest.fixture
def page(operator: BrowserContext) -> Iterator[Page]:
    with new_page(operator) as page:
        yield page


@pytest.fixture
def visit(demo_site: str) -> Iterator[Open]:
    """Opens a chat, from an address of this machine."""
    with ExitStack() as stack:

        def visit(address: str = "127.0.0.1") -> ClientConnection:
            options: Any = {"proxy": None, "origin": f"http://{demo_site}", "source_address": (address, 0)}
            socket = stack.enter_context(connect(f"ws://{demo_site}/ws/chat", **options))
            assert json.loads(socket.recv(PATIENCE))["type"] == "hello"
            return socket

        yield visit


def violations(page: Page) -> list[str]:
    found = Axe().run(page, context={"exclude": [["#searchbar"]]}).response["violations"]  # Django's own
    return [f"{page.url} {rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit_a_phone(page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1280, "height": 720})
    found = []
    for path in PAGES:
        page.goto(f"{ADMIN}/{path}")
        found += violations(page)
    assert found == [], "\n".join(found)
    page.set_viewport_size(PHONE)
    for path in ("throttlerule/explain/?ident=ip:192.0.2.1&scope=search", "throttlerule/overview/"):
        page.goto(f"{ADMIN}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


@pytest.mark.parametrize("language", ["en", "de", "ja", "ar"])
def test_the_page_of_a_refusal_is_accessible(page: Page, language: str) -> None:
    decision = conclude((Outcome("api", "user:1", False, 10, 0, 90.0, 90.0, Reason.EXCEEDED, window=60.0),))
    with translation.override(language):
        content = refusal(RequestFactory().get("/", headers={"Accept": "text/html"}), decision).content.decode()
    page.set_content(content)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert violations(page) == []


class TestRuleForm:
    @pytest.fixture
    def page(self, page: Page) -> Page:
        page.goto(f"{RULES}add/")
        return page

    def ticked(self, page: Page) -> Any:
        return page.evaluate("[...document.querySelectorAll('[name=events]:checked')].map((box) => box.value)")

    def test_events_follow_the_algorithm_and_are_saved(self, page: Page) -> None:
        assert self.ticked(page) == ["request"]
        page.select_option("[name=algorithm]", "concurrency")
        assert self.ticked(page) == ["connection"]
        page.fill("[name=name]", "open")
        page.fill("[name=limit]", "5")
        expect(page.locator("#rule-preview")).to_contain_text("5 open WebSockets at once")
        page.check("[name=events][value=connect]")
        expect(page.locator("#rule-preview")).to_contain_text("not 'connect'; did you mean 'connection'?")
        page.select_option("[name=algorithm]", "gcra")
        assert self.ticked(page) == ["connect"]
        page.select_option("[name=algorithm]", "concurrency")
        page.check("[name=events][value=inflight]")
        page.uncheck("[name=events][value=connection]")
        page.click("[name=_continue]")
        expect(page.locator(".success")).to_contain_text("was added")
        assert self.ticked(page) == ["inflight"]
        expect(page.locator("#rule-preview")).to_contain_text("5 requests in flight at once")

    def test_only_the_options_of_the_algorithm_are_shown(self, page: Page) -> None:
        def shown() -> set[str]:
            return {name for name in table(Rule) if page.locator(f".form-row.field-{name}").is_visible()}

        for algorithm in ALGORITHMS:
            page.select_option("[name=algorithm]", algorithm)
            assert shown() == {name for name, row in stored(Rule).items() if row.takes(algorithm)}
        page.select_option("[name=algorithm]", "concurrency")
        page.fill("[name=limit]", "5")
        page.select_option("[name=algorithm]", "damper")
        assert "limit" in shown(), "a field that holds a value stays, or nobody would see why the rule is refused"


class TestConnections:
    @pytest.fixture
    def page(self, page: Page) -> Page:
        """The list of open connections, which must not be loaded again."""
        page.goto(f"{ADMIN}/throttleconnection/")
        self.total(page, "0 open connections")
        page.evaluate("window.loaded = 'once'")
        return page

    def total(self, page: Page, words: str) -> None:
        expect(page.locator(".connections-total")).to_contain_text(words)

    def rows(self, page: Page) -> Locator:
        return page.locator("#connections section:nth-of-type(2) tbody tr:has(button)")

    def is_closed(self, socket: ClientConnection) -> None:
        assert json.loads(socket.recv(PATIENCE))["code"] == "closed"
        wait_until(lambda: socket.close_code == 4410, timeout=PATIENCE)

    def test_a_button_pressed_while_new_rows_arrive_is_not_taken_away(self, page: Page, visit: Open) -> None:
        socket = visit()
        self.total(page, "1 open connection")
        rows_of_page, held = re.compile("part=rows"), []
        page.route(rows_of_page, lambda route: held.append(route))  # noqa: PLW0108  (Playwright sets an attribute)
        with page.expect_request(rows_of_page):
            pass
        page.get_by_role("button", name="Close", exact=True).hover()
        page.mouse.down()
        with page.expect_response(rows_of_page) as answered:
            held[0].continue_()
        answered.value.finished()
        page.unroute(rows_of_page)
        page.mouse.up()
        self.is_closed(socket)

    def test_it_is_live_and_closes_a_socket_of_any_process(self, page: Page, visit: Open) -> None:
        socket = visit()
        self.total(page, "1 open connection")
        cells = self.rows(page).locator("th, td")
        expect(cells.nth(0)).to_contain_text("ip:127.0.0.1")
        expect(cells.nth(6)).to_have_text("0")
        age = cells.nth(4).inner_text()
        socket.send(json.dumps({"id": 1, "text": "hello"}))
        assert json.loads(socket.recv(PATIENCE))["type"] == "echo"
        expect(cells.nth(6)).to_have_text("1")
        expect(cells.nth(5)).to_have_text(re.compile(r"^\d+ s ago$"))
        expect(cells.nth(4)).not_to_have_text(age)
        assert page.evaluate("window.loaded") == "once"
        page.get_by_role("button", name="Close", exact=True).click(delay=1200)  # for two looks
        expect(page.locator(".messagelist")).to_contain_text("The connection of ip:127.0.0.1 (chat, /ws/chat) is being")
        self.is_closed(socket)
        self.total(page, "0 open connections")

    def test_a_dismissed_question_leaves_it_live_and_the_focus_where_it_was(self, page: Page, visit: Open) -> None:
        first = visit()
        questions: list[str] = []

        def dismiss(dialog: Dialog) -> None:
            questions.append(dialog.message)
            dialog.dismiss()

        close_all = page.get_by_role("button", name="Close all")
        page.once("dialog", dismiss)
        close_all.click()
        assert len(questions) == 1 and questions[0].startswith("Close all 1 connections of")
        second = visit()
        self.total(page, "2 open connections")
        expect(close_all).to_be_focused()
        self.rows(page).last.get_by_role("button").focus()
        second.close()  # the newest is the last of its identity
        self.total(page, "1 open connection")
        expect(page.locator("#connections")).to_be_focused()
        assert page.evaluate("window.loaded") == "once"
        page.once("dialog", lambda dialog: dialog.accept())
        close_all.click()
        self.is_closed(first)


def test_a_trial_is_stale_after_an_edit_and_tells_a_mistake(page: Page) -> None:
    for _ in range(15):
        assert page.request.get("/api/search?q=a").ok
    page.goto(RULES)
    page.locator(".field-rule a", has_text="api").first.click()
    hour, answer = page.get_by_role("button", name="Try on the last hour"), page.locator("#rule-trial-answer")

    def is_recorded() -> bool:
        hour.click()
        expect(answer).to_have_attribute("aria-busy", "false")
        return "15 recorded calls" in answer.inner_text()

    wait_until(is_recorded, timeout=PATIENCE)  # processes send what they recorded every two seconds
    refused = page.locator("#rule-trial-refused td")
    expect(refused).to_have_text(["0", "0"])
    page.fill("[name=rate]", "5/hour")
    page.fill("[name=burst]", "5")
    expect(page.locator("#rule-trial-stale")).to_be_visible()
    hour.focus()
    page.keyboard.press("Enter")
    expect(refused).to_have_text(["0", "10"])
    expect(page.locator("#rule-trial-stale")).to_be_hidden()
    expect(page.get_by_role("img", name="edited rule: 10 refused")).to_be_visible()
    page.fill("[name=rate]", "many")
    page.get_by_role("button", name="Try on the last day").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was tried, as the form has a mistake")


CUSTOMER = "127.0.0.9"
CALLERS = [f"127.0.1.{number}" for number in range(1, 41)]
LONG = slack(30)


def search(site: str, caller: str) -> tuple[int, int]:
    """Return the status of a search, and the process that answered; 0 where the search was refused."""
    host, port = site.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE, source_address=(caller, 0))
    try:
        connection.request("GET", "/api/search?q=a")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()).get("worker", 0)
    finally:
        connection.close()


def refused(site: str) -> set[str]:
    """Return the callers who may not search six times in a row."""
    return {caller for caller in CALLERS if any(search(site, caller)[0] == 429 for _ in range(6))}


@pytest.fixture
def traffic(demo_site: str) -> Iterator[None]:
    """Searches by many callers, each of whom makes less than one a second; a stopped worker may keep one waiting."""
    ended = Event()

    def keep_searching(callers: list[str]) -> None:
        for caller in cycle(callers):
            if ended.wait(0.06):
                return
            with suppress(OSError):
                search(demo_site, caller)

    threads = [Thread(target=keep_searching, args=(CALLERS[half::2],)) for half in range(2)]
    for thread in threads:
        thread.start()
    yield
    ended.set()
    for thread in threads:
        thread.join()


def picture(page: Page, name: str) -> None:
    if os.environ.get("PICTURES"):
        page.screenshot(path=DOCS / "pictures" / f"rollout-{name}.png")


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Load the page again until the condition holds: processes send what they recorded every two seconds."""
    wait_until(lambda: bool(page.reload()) and condition(), timeout=LONG)


def ask(page: Page, who: str) -> None:
    page.get_by_label("Who").fill(who)
    page.get_by_label("Who").press("Enter")


@pytest.mark.usefixtures("traffic")
def test_from_a_complaint_to_a_limit_that_is_changed_in_safe_steps(page: Page, demo_site: str, visit: Open) -> None:
    socket = visit(CUSTOMER)
    for number in range(100):
        socket.send(json.dumps({"id": number, "text": "x"}))
    frames = iter(lambda: json.loads(socket.recv(PATIENCE)), None)
    reference = next(frame["reference"] for frame in frames if frame["type"] == "error")

    page.goto(f"{RULES}explain/?ident={reference}")
    until(page, lambda: "api" in page.locator("#explain-recent").inner_text())
    page.goto(RULES)
    page.get_by_role("link", name="Why is this caller refused?").click()
    ask(page, reference)
    expect(page.locator("#explain-recent")).to_contain_text("api")
    picture(page, "explain")

    ask(page, CUSTOMER)
    page.get_by_role("link", name="Relief for two hours").click()
    expect(page.locator("#id_lasting")).to_have_value("7200")
    page.locator("[name=_save]").first.click()
    expect(page.locator(".messagelist")).to_contain_text("was added successfully")
    picture(page, "relief")

    def would_refuse() -> bool:
        page.goto(RULES)
        page.locator("#result_list th a", has_text="api").first.click()
        page.fill("[name=rate]", "5/min")
        page.fill("[name=burst]", "2")
        page.get_by_role("button", name="Try on the last hour").click()
        edited = page.locator("#rule-trial-refused td").last
        expect(edited).to_be_visible()
        return int(edited.inner_text().replace(",", "")) > 0

    wait_until(would_refuse, timeout=LONG)
    page.locator("#rule-trial").evaluate("part => part.scrollIntoView()")
    picture(page, "try")

    page.get_by_role("button", name="Save as candidate").click()
    expect(page.locator(".success")).to_contain_text("The candidate of api counts beside it")
    only_candidate = page.locator(".candidate-comparison tr", has_text="Only the candidate would").locator("td")
    until(page, lambda: int(only_candidate.inner_text()) > 10)
    picture(page, "compare")

    page.fill("[name=share]", "0.1")
    page.click("[name=_continue] >> nth=0")
    expect(page.locator("[name=share]")).to_have_value("0.1")
    wait_until(lambda: 0 < len(refused(demo_site)) < len(CALLERS) / 2, timeout=LONG)
    page.get_by_role("button", name="Promote").click()
    expect(page.locator(".success")).to_contain_text("Promoted: api is")
    picture(page, "all")
    wait_until(lambda: refused(demo_site) == set(CALLERS), timeout=LONG)

    name_a_stopped_worker(page, demo_site)

    page.goto(RULES)
    page.locator("#result_list th a", has_text="api").first.click()
    page.locator(".object-tools").get_by_role("link", name="History").click()
    page.locator("#result_list tbody tr", has_text="promoted").first.get_by_role("button", name="Revert").click()
    expect(page.locator(".success")).to_contain_text("Reverted: rate: 5/min → 10/s; burst: 2 → 20")
    picture(page, "revert")
    wait_until(lambda: not refused(demo_site), timeout=LONG)


def name_a_stopped_worker(page: Page, site: str) -> None:
    """The browser's connections may be the stopped worker's: one with new connections is answered by the other."""
    worker = next(filter(None, (search(site, f"127.0.2.{number}")[1] for number in range(1, 50))))
    browser = page.context.browser
    assert browser is not None
    os.kill(worker, signal.SIGSTOP)
    context = new_context(browser, site, storage_state=page.context.storage_state())
    try:
        with new_page(context) as overview:
            overview.goto(f"{RULES}overview/")
            words = overview.locator("#overview-processes")
            until(overview, lambda: f"process {worker}" in words.inner_text())
            picture(overview, "overview")
    finally:
        context.close()
        with suppress(ProcessLookupError):  # the server replaces one that does not answer
            os.kill(worker, signal.SIGCONT)
