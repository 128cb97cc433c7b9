"""One Chromium for all browser tests of a process, and the demo site that they look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from testproject.prepare import LOGIN, PASSWORD
from testproject.services import Services, start_site
from tests.servers import free_port, slack

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
#: Seconds for which a page may keep a test waiting.
PATIENCE = slack(10)


@pytest.fixture(scope="session")
def browser(need_binary: Callable[[str], str]) -> Iterator[Browser]:
    """Chromium; its tests run last, because Playwright leaves an event loop running in the thread."""
    chromium = need_binary("chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=FLAGS) as browser:
        yield browser


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


def new_context(browser: Browser, site: str, **options: Any) -> BrowserContext:
    context = browser.new_context(base_url=f"http://{site}", **options)
    context.set_default_timeout(PATIENCE * 1000)
    return context
