"""The page of rules at work in a real browser, on a phone's width, with ten thousand rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from testproject.prepare import LOGIN, PASSWORD
from testproject.services import ROOT, Services, start_site
from tests.admin.test_connections_page import ANSWER, browser
from tests.admin.test_explain_page import refused
from tests.servers import free_port, quickest, slack, wait_until

__all__ = ["browser"]
HOSTILE = '<img src=x onerror="window.hurt = 1">'
OVERVIEW = "/admin/django_throttle/throttlerule/overview/"
MANY = 10_000
FILL = f"""
from django_throttle.models import ThrottleRule
rows = [ThrottleRule(name=f"rule {{n:05}}", rate=f"{{n + 1}}/min", scopes=[f"scope{{n}}"]) for n in range({MANY})]
ThrottleRule.objects.bulk_create([*rows, ThrottleRule(name="filled", rate="9000/min", scopes=["search"], key="ip")])
"""


@pytest.fixture(scope="module")
def services(need_binary: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    need_binary("redis-server")
    with pytest.MonkeyPatch.context() as patch, Services(tmp_path_factory.mktemp("site")) as services:
        patch.delenv("REDIS_URL", raising=False)
        services.environment["DEADLINE"] = "1"
        yield services


@pytest.fixture(scope="module")
def site(services: Services) -> str:
    """The demo with ten thousand rules, one of which has a hostile name and refuses much."""
    port = free_port()
    start_site(services, port)
    both = {"scopes": ["search", "chat"], "events": ["request", "message"]}
    rules = {
        HOSTILE: {"rate": "5/hour", "scopes": ["chat"], "events": ["message"], "key": "everyone"},
        "api": {"rate": "9000/s", "key": "ip", **both},  # not to refuse first
    }
    file = Path(services.folder, "rules.json")
    file.write_text(json.dumps(rules))
    manage(services, "throttle_rules", "import", str(file))
    manage(services, "shell", "-c", FILL)
    wait_until(lambda: len(set(filled_workers(port))) == 2, timeout=slack(60))
    return f"127.0.0.1:{port}"


def filled_workers(port: int) -> Iterator[int]:
    """Those that answer searches and have all rules in force."""
    for _ in range(10):
        with urlopen(f"http://127.0.0.1:{port}/api/search") as answer:
            if '"filled"' in answer.headers.get("RateLimit-Policy", ""):
                yield json.load(answer)["worker"]


def manage(services: Services, *arguments: str) -> str:
    """What the command says."""
    command = [sys.executable, "-m", "testproject.manage", *arguments]
    told = subprocess.run(command, cwd=ROOT, env=services.environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    """An operator's, on a phone, in the dark; nothing may go wrong on it."""
    size = {"width": 390, "height": 800}
    context = browser.new_context(base_url=f"http://{site}", viewport=size, color_scheme="dark")  # type: ignore[arg-type]
    context.set_default_timeout(ANSWER * 1000)
    page = context.new_page()
    mistakes: list[str] = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.goto(f"/admin/login/?next={OVERVIEW}")
    page.fill("[name=username]", LOGIN)
    page.fill("[name=password]", PASSWORD)
    page.click("[type=submit]")
    yield page
    context.close()
    assert mistakes == []


def test_a_rule_that_refuses_on_a_phone_by_keyboard(page: Page, site: str) -> None:
    refused(site)

    def is_shown() -> bool:
        page.goto(f"{OVERVIEW}?q=onerror")
        return "%" in page.locator("#content-main tbody tr").last.locator("td.number").nth(1).inner_text()

    wait_until(is_shown, timeout=ANSWER)  # processes send what they recorded every two seconds
    row = page.locator("tr", has=page.get_by_role("rowheader", name=HOSTILE))
    expect(row.locator("td.number").nth(1)).to_have_text(re.compile(r"^9\d\.\d%$"))
    assert row.locator("svg").first.locator("rect.refused").count() >= 1
    expect(row.get_by_role("img").first).to_have_attribute("aria-label", re.compile(r"^\d+ calls, 5 allowed$"))
    assert page.evaluate("window.hurt") is None and page.locator("#content img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    expect(page.locator("#overview-processes")).to_contain_text(re.compile(r"([12]) of \1 processes have version"))
    expect(page.locator("#overview-store")).to_contain_text("No circuit breaker is open.")

    page.get_by_label("Rules whose name contains").focus()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("rule 0")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Page 1 of 200")).to_be_visible()
    expect(page.get_by_role("rowheader", name="rule 00000")).to_contain_text("No route or consumer")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.get_by_label("Rules whose name contains").focus()
    for _ in range(5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Next":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_text("Page 2 of 200")).to_be_visible()
    expect(page.get_by_role("rowheader", name="rule 00050")).to_be_visible()


def test_with_ten_thousand_rules(page: Page, services: Services) -> None:
    """A command has to read them first, which takes longer than DEADLINE."""
    assert "rule 00000" in page.request.get(f"{OVERVIEW}?q=rule").text()
    took = quickest(lambda: page.request.get(OVERVIEW), times=5)
    print(f"the page answers in {took:.2f} s")
    assert took <= slack(1.0)
    told = json.loads(manage(services, "throttle_overview", "--search", "rule", "--json"))
    assert [one["name"] for one in told["rules"]] == [f"rule {n:05}" for n in range(50)]
    (found,) = json.loads(manage(services, "throttle_explain", "ip:192.0.2.1", "--scope", "scope7", "--json"))["rules"]
    assert found["name"] == "rule 00007"
