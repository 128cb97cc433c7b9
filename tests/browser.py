"""Chromium, for the tests that drive it."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.servers import slack

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
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=FLAGS) as browser:
        yield browser
