"""An operator's night in a real browser: a complaint is explained and relieved, a stricter limit tried and rolled out.

Each step takes three clicks and a second at most. With PICTURES=1 it renews the pictures of the page *Change a limit*.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from threading import Event, Thread

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from websockets.sync.client import connect

from testproject.check.standstill import elapsed
from tests.admin.test_connections_page import ANSWER, browser, operator, site
from tests.servers import slack, wait_until

__all__ = ["browser", "operator", "site"]
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = {"width": 1000, "height": 700}
CUSTOMER = "127.0.0.9"
CALLERS = [f"127.0.1.{number}" for number in range(1, 41)]
RULES = "/admin/django_throttle/throttlerule/"
PATIENCE = slack(30)
PAUSE = 0.03  # seconds between calls: each caller makes less than one a second
MOST_CLICKS, MOST_SECONDS = 3, slack(1.0)


def search(site: str, caller: str) -> tuple[int, int]:
    """The status of a search from an address of this machine, and the process that answered, 0 where it was refused."""
    host, port = site.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER, source_address=(caller, 0))
    try:
        connection.request("GET", "/api/search?q=a")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()).get("worker", 0)
    finally:
        connection.close()


def refused(site: str) -> set[str]:
    """The callers who may not search six times in a row."""
    return {caller for caller in CALLERS if any(search(site, caller)[0] == 429 for _ in range(6))}


@pytest.fixture
def traffic(site: str) -> Iterator[None]:
    """Searches by many callers, each below the limit, until the test ends; a stopped worker may keep one waiting."""
    ended = Event()

    def keep_searching(callers: list[str]) -> None:
        for caller in cycle(callers):
            if ended.wait(PAUSE * 2):
                return
            with suppress(OSError):
                search(site, caller)

    threads = [Thread(target=keep_searching, args=(CALLERS[half::2],)) for half in range(2)]
    for thread in threads:
        thread.start()
    yield
    ended.set()
    for thread in threads:
        thread.join()


class Night:
    """The pages of one operator, whose clicks and seconds are counted by step; nothing may go wrong on them."""

    def __init__(self, operator: BrowserContext, site: str) -> None:
        self.context, self.site = operator, f"http://{site}"
        self.clicks = 0
        self.mistakes: list[str] = []
        self.page = self._new_page()

    def begin_again(self) -> None:
        """With new connections, still logged in."""
        browser = self.context.browser
        assert browser is not None
        self.page.close()
        self.context = browser.new_context(base_url=self.site, storage_state=self.context.storage_state())
        self.page = self._new_page()

    def _new_page(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(ANSWER * 1000)
        page.set_viewport_size(SIZE)  # type: ignore[arg-type]
        page.on("pageerror", lambda error: self.mistakes.append(str(error)))
        page.expose_function("clicked", self._clicked)
        page.add_init_script("addEventListener('click', event => event.isTrusted && window.clicked(), true);")
        return page

    def _clicked(self) -> None:
        self.clicks += 1

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.clicks, began = 0, time.monotonic()
        yield
        took = elapsed(began)
        print(f"{name}: {self.clicks} clicks, {took:.2f} s")
        assert self.clicks <= MOST_CLICKS
        assert took <= MOST_SECONDS

    def picture(self, name: str) -> None:
        if os.environ.get("PICTURES"):
            self.page.screenshot(path=PICTURES / f"rollout-{name}.png")


@pytest.fixture
def night(operator: BrowserContext, site: str) -> Iterator[Night]:
    found = Night(operator, site)
    yield found
    found.page.close()
    assert found.mistakes == []


def complaint(site: str) -> str:
    """The reference in the error that a customer's chat shows."""
    with connect(f"ws://{site}/ws/chat", proxy=None, origin=f"http://{site}", source_address=(CUSTOMER, 0)) as socket:  # type: ignore[arg-type]
        for number in range(100):
            socket.send(json.dumps({"id": number, "text": "x"}))
        while True:
            frame = json.loads(socket.recv(ANSWER))
            if frame["type"] == "error":
                return str(frame["reference"])


def explained(night: Night, reference: str) -> None:
    page = night.page
    page.goto(f"{RULES}explain/?ident={reference}")
    shown = page.locator("#explain-recent")
    wait_until(lambda: bool(page.reload()) and shown.count() > 0, timeout=PATIENCE)  # it is sent every two seconds
    page.goto(RULES)
    with night.step("explain"):
        page.get_by_role("link", name="Why is this caller refused?").click()
        page.get_by_label("Who").fill(reference)
        page.get_by_label("Who").press("Enter")
        expect(shown).to_contain_text("api")
    night.picture("explain")


def relieved(night: Night) -> None:
    page = night.page
    with night.step("relief"):
        page.get_by_label("Who").fill(CUSTOMER)
        page.get_by_label("Who").press("Enter")
        page.get_by_role("link", name="Relief for two hours").click()
        expect(page.locator("#id_lasting")).to_have_value("7200")
        page.locator("[name=_save]").first.click()
        expect(page.locator(".messagelist")).to_contain_text("was added successfully")
    night.picture("relief")


def tried(night: Night) -> None:
    page = night.page
    edited = page.locator("#rule-trial-refused td").last

    def try_stricter() -> None:
        page.locator("#result_list th a", has_text="api").first.click()
        page.fill("[name=rate]", "5/min")
        page.fill("[name=burst]", "2")
        page.get_by_role("button", name="Try on the last hour").click()
        expect(edited).to_be_visible()

    def would_refuse() -> bool:
        page.goto(RULES)
        try_stricter()
        return int(edited.inner_text().replace(",", "")) > 0

    wait_until(would_refuse, timeout=PATIENCE)
    page.goto(RULES)
    with night.step("try"):
        try_stricter()
    page.locator("#rule-trial").evaluate("part => part.scrollIntoView()")
    night.picture("try")


def compared(night: Night) -> None:
    page = night.page
    with night.step("candidate"):
        page.get_by_role("button", name="Save as candidate").click()
        expect(page.locator(".success")).to_contain_text("The candidate of api counts beside it")
    only_candidate = page.locator(".candidate-comparison tr", has_text="Only the candidate would").locator("td")
    wait_until(lambda: bool(page.reload()) and int(only_candidate.inner_text()) > 10, timeout=PATIENCE)
    with night.step("compare"):
        page.reload()
        expect(only_candidate).not_to_have_text("0")
    night.picture("compare")


def rolled_out(night: Night, site: str) -> None:
    page = night.page
    with night.step("some"):
        page.fill("[name=share]", "0.1")
        page.click("[name=_continue] >> nth=0")
        expect(page.locator("[name=share]")).to_have_value("0.1")
    wait_until(lambda: 0 < len(refused(site)) < len(CALLERS) / 2, timeout=PATIENCE)
    with night.step("all"):
        page.get_by_role("button", name="Promote").click()
        expect(page.locator(".success")).to_contain_text("Promoted: api is")
    night.picture("all")
    wait_until(lambda: refused(site) == set(CALLERS), timeout=PATIENCE)


def named(night: Night, worker: int) -> None:
    """The browser's connections may be the stopped worker's: a new browser is answered by the other."""
    night.begin_again()
    page = night.page
    words = page.locator("#overview-processes")
    page.goto(f"{RULES}overview/")
    wait_until(lambda: bool(page.reload()) and f"process {worker}" in words.inner_text(), timeout=PATIENCE)
    page.goto(RULES)
    with night.step("overview"):
        page.get_by_role("link", name="Rules at work").click()
        expect(words).to_contain_text(f"process {worker}")
    night.picture("overview")


def reverted(night: Night, site: str) -> None:
    page = night.page
    page.goto(RULES)
    with night.step("revert"):
        page.locator("#result_list th a", has_text="api").first.click()
        page.locator(".object-tools").get_by_role("link", name="History").click()
        page.locator("#result_list tbody tr", has_text="promoted").first.get_by_role("button", name="Revert").click()
        expect(page.locator(".success")).to_contain_text("Reverted: rate: 5/min → 10/s; burst: 2 → 20")
    night.picture("revert")
    wait_until(lambda: not refused(site), timeout=PATIENCE)


@pytest.mark.usefixtures("traffic")
def test_a_limit_is_changed_in_safe_steps(night: Night, site: str) -> None:
    explained(night, complaint(site))
    relieved(night)
    tried(night)
    compared(night)
    rolled_out(night, site)
    worker = next(filter(None, (search(site, f"127.0.2.{number}")[1] for number in range(1, 50))))
    os.kill(worker, signal.SIGSTOP)
    try:
        named(night, worker)
    finally:
        with suppress(ProcessLookupError):  # the server replaces one that does not answer
            os.kill(worker, signal.SIGCONT)
    reverted(night, site)
