"""The admin in a real browser: what its scripts do, and an operator's night from a complaint to a new limit.

With PICTURES=1 it renews the pictures of the page *Change a limit in safe steps*.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect
from websockets.sync.client import connect

from django_throttle.admin.option_fields import form_options
from django_throttle.core import Rule
from django_throttle.core.options import ALGORITHMS, table
from testproject.prepare import LOGIN, PASSWORD
from testproject.services import Services, start_site
from tests.browser import PATIENCE
from tests.pages import DOCS
from tests.servers import free_port, slack, wait_until

ADMIN = "/admin/django_throttle"
RULES = f"{ADMIN}/throttlerule/"
PAGES = (
    *("throttlerule/", "throttlerule/add/", "throttlerule/overview/", "throttlerule/costs/", "throttleoverride/"),
    *("throttleoverride/add/", "../throttle_console/throttlecandidate/", "throttlechange/", "throttleconnection/"),
    "throttlerule/explain/?ident=ip:192.0.2.1&scope=search",
)
PHONE: Any = {"width": 390, "height": 800}
CUSTOMER = "127.0.0.9"
LONG = slack(30)


@pytest.fixture(scope="module")
def demo_site(need_binary: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site of ``make demo``, which has two processes, and a Redis of its own."""
    need_binary("redis-server")
    with pytest.MonkeyPatch.context() as patch, Services(tmp_path_factory.mktemp("site")) as services:
        patch.delenv("REDIS_URL", raising=False)
        services.environment["DEADLINE"] = "1"  # where a machine stands still, no rule's failure policy is to decide
        start_site(services, port := free_port())
        yield f"127.0.0.1:{port}"


@contextmanager
def new_page(context: BrowserContext) -> Iterator[Page]:
    """Open a page, on which no script may fail."""
    page = context.new_page()
    mistakes: list[str] = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    yield page
    page.close()
    assert mistakes == []


def log_in(page: Page, path: str = "/admin/") -> None:
    """Log in to the admin of the demo site, and go to one of its pages."""
    page.goto(f"/admin/login/?next={path}")
    page.fill("[name=username]", LOGIN)
    page.fill("[name=password]", PASSWORD)
    page.click("[type=submit]")
    page.wait_for_selector("#site-name")


@pytest.fixture(scope="module")
def operator(browser: Browser, demo_site: str) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=f"http://{demo_site}", viewport={"width": 1000, "height": 700})
    context.set_default_timeout(PATIENCE * 1000)
    with new_page(context) as page:
        log_in(page)
    yield context
    context.close()


@pytest.fixture
def page(operator: BrowserContext) -> Iterator[Page]:
    with new_page(operator) as page:
        yield page


def violations(page: Page) -> list[str]:
    of_django = [["#searchbar"], [".breadcrumbs"]]
    rules = Axe().run(page, context={"exclude": of_django}).response["violations"]
    return [f"{page.url} {rule['id']}: {node['html'][:120]}" for rule in rules for node in rule["nodes"]]


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
    for path in PAGES:
        page.goto(f"{ADMIN}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


def test_an_override_has_the_fields_of_its_effect(page: Page) -> None:
    page.goto(f"{ADMIN}/throttleoverride/add/")
    for effect, shown in {"replace": {"rate", "limit"}, "block": set(), "multiply": {"factor"}}.items():
        page.select_option("[name=effect]", effect)
        assert {name for name in ("factor", "rate", "limit") if page.locator(f".field-{name}").is_visible()} == shown


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
        page.fill("[name=scopes]", "serach")
        expect(page.locator("#rule-preview .rule-warning")).to_contain_text("did you mean 'search'?")
        page.fill("[name=scopes]", "*")
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

        assert shown() == {name for name, row in form_options(Rule).items() if not row.group and name != "limit"}
        page.evaluate("document.querySelectorAll('details').forEach((group) => { group.open = true; })")
        for algorithm in ALGORITHMS:
            page.select_option("[name=algorithm]", algorithm)
            assert shown() == {name for name, row in form_options(Rule).items() if row.takes(algorithm)}
        page.select_option("[name=algorithm]", "concurrency")
        page.fill("[name=limit]", "5")
        page.select_option("[name=algorithm]", "damper")
        assert "limit" in shown(), "a field that holds a value stays, or nobody would see why the rule is refused"


def picture(page: Page, name: str) -> None:
    if os.environ.get("PICTURES"):
        page.screenshot(path=DOCS / "pictures" / f"rollout-{name}.png")


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Load the page again until the condition holds: processes send what they recorded every two seconds."""
    wait_until(lambda: bool(page.reload()) and condition(), timeout=LONG)


def test_from_a_complaint_to_a_limit_that_is_changed_in_safe_steps(page: Page, demo_site: str) -> None:
    options: Any = {"proxy": None, "origin": f"http://{demo_site}", "source_address": (CUSTOMER, 0)}
    with connect(f"ws://{demo_site}/ws/chat", **options) as socket:
        for number in range(100):
            socket.send(json.dumps({"id": number, "text": "x"}))
        frames = iter(lambda: json.loads(socket.recv(PATIENCE)), None)
        reference = next(frame["reference"] for frame in frames if frame["type"] == "error")
    page.goto(f"{RULES}explain/?ident={reference}")
    until(page, lambda: "api" in "".join(page.locator("#explain-recent").all_inner_texts()))
    picture(page, "explain")
    page.get_by_label("Who").fill(CUSTOMER)
    page.get_by_label("Who").press("Enter")
    page.get_by_role("link", name="Relief for two hours").click()
    expect(page.locator("#id_lasting")).to_have_value("7200")
    page.locator("[name=_save]").first.click()
    expect(page.locator(".messagelist")).to_contain_text("was added successfully")
    picture(page, "relief")

    for _ in range(15):
        assert page.request.get("/api/search?q=a").ok
    page.goto(RULES)
    page.locator(".field-rule a", has_text="api").first.click()
    hour, answer = page.get_by_role("button", name="Try on the last hour"), page.locator("#rule-trial-answer")

    page.fill("[name=rate]", "5/min")
    page.fill("[name=burst]", "2")

    def would_refuse_more() -> bool:
        hour.click()
        expect(answer).to_have_attribute("aria-busy", "false")
        live, edited, *_ = *page.locator("#rule-trial-refused td").all_inner_texts(), "0", "0"
        return int(live.replace(",", "")) < int(edited.replace(",", ""))

    wait_until(would_refuse_more, timeout=LONG)
    picture(page, "try")
    page.fill("[name=rate]", "many")
    expect(page.locator("#rule-trial-stale")).to_be_visible()
    hour.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Nothing was tried, as the form has a mistake")
    page.fill("[name=rate]", "5/min")

    page.get_by_role("button", name="Save as candidate").click()
    expect(page.locator(".success")).to_contain_text("The candidate of api counts beside it")
    only_candidate = page.locator(".candidate-comparison tr", has_text="Only the candidate would").locator("td")

    def only_candidate_refuses() -> bool:
        page.request.get("/api/search?q=a")  # until both processes have read the candidate
        return int(only_candidate.inner_text()) > 10

    until(page, only_candidate_refuses)
    picture(page, "compare")
    assert violations(page) == []
    page.fill("[name=share]", "0.1")
    page.click("[name=_continue] >> nth=0")
    expect(page.locator("[name=share]")).to_have_value("0.1")
    page.get_by_role("button", name="Promote").click()
    expect(page.locator(".success")).to_contain_text("Promoted: api is")
    picture(page, "all")
    wait_until(lambda: page.request.get("/api/search?q=a").status == 429, timeout=LONG)

    workers = set[int]()  # one that has served no request reports nothing

    def both_have_served() -> bool:
        workers.add(httpx.get(f"http://{demo_site}/api/budgets").json()["worker"])
        return len(workers) == 2

    wait_until(both_have_served, timeout=LONG)
    page.goto(f"{RULES}overview/")
    until(page, lambda: "2 of 2 processes have the same rules" in page.content())
    picture(page, "overview")
    page.goto(RULES)
    page.locator("#result_list th a", has_text="api").first.click()
    page.locator(".object-tools").get_by_role("link", name="History").click()
    page.locator("#result_list tbody tr", has_text="promoted").first.get_by_role("button", name="Revert").click()
    expect(page.locator(".success")).to_contain_text("Reverted: rate: 5/min → 10/s; burst: 2 → 20")
    picture(page, "revert")
    wait_until(lambda: page.request.get("/api/search?q=a").ok, timeout=LONG)
