"""What a user would type into the documentation's search finds the right page among the first three."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.pages import DOCS
from tests.servers import need_binary

SEARCHES = {
    "celery": "howto/tasks",
    "background tasks": "howto/tasks",
    "django.tasks": "howto/tasks",
    "premium": "howto/plans",
    "plans": "howto/plans",
    "tiers": "howto/plans",
    "429 json": "reference/responses",
    "429": "reference/responses",
    "openapi": "reference/responses",
    "drf-spectacular": "reference/responses",
    "problem details": "reference/responses",
    "retry-after": "reference/responses",
    "ratelimit header": "reference/responses",
    "x-forwarded-for": "howto/proxy",
    "behind a proxy": "howto/proxy",
    "cloudflare": "howto/proxy",
    "ipv6": "howto/proxy",
    "why is user refused": "howto/explain",
    "explain": "howto/explain",
    "login": "howto/logins",
    "brute force": "howto/logins",
    "password": "howto/logins",
    "api key": "howto/tenants",
    "tenant": "howto/tenants",
    "graphql": "howto/graphql",
    "quota": "howto/quotas",
    "monthly": "howto/quotas",
    "chat": "howto/websockets",
    "upload": "howto/uploads",
    "bytes": "howto/uploads",
    "llm tokens": "howto/streams",
    "streaming": "howto/streams",
    "several sites": "howto/sites",
    "eviction": "howto/sites",
    "sentinel": "howto/redis",
    "cluster": "howto/redis",
    "valkey": "howto/redis",
    "kubernetes": "howto/containers",
    "docker": "howto/containers",
    "sigterm": "howto/containers",
    "prometheus": "howto/alerts",
    "grafana": "howto/alerts",
    "opentelemetry": "reference/observing",
    "exempt": "howto/overrides",
    "block ip": "howto/overrides",
    "migrate from django-ratelimit": "howto/switching",
    "slowapi": "howto/switching",
    "pytest": "howto/testing",
    "override_settings": "howto/testing",
    "freeze time": "howto/testing",
    "token bucket": "reference/rules",
    "gcra": "reference/rules",
    "websocket": "reference/sockets",
    "close code": "reference/sockets",
    "4429": "reference/sockets",
    "group_send": "howto/publishing",
    "publish": "howto/publishing",
    "redis down": "howto/outages",
    "circuit breaker": "howto/outages",
    "fail open": "howto/outages",
    "production": "howto/deployment",
    "systemd": "howto/deployment",
    "zombie connections": "explanation/connections",
    "slow queries": "howto/costs",
    "queue": "howto/later",
    "202": "howto/later",
    "quickstart": "tutorial/quickstart",
    "install": "tutorial/quickstart",
    "benchmark": "explanation/performance",
    "sliding window burst": "explanation/bounds",
    "W082": "reference/checks",
    "async view": "reference/doors",
    "ninja": "reference/doors",
    "settings": "reference/settings",
    "limiter.acquire": "reference/api",
    "manage.py": "reference/commands",
    "redis keys": "reference/store",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("docs")
    line = [sys.executable, "-m", "sphinx", "--quiet", "-j", "2", "-b", "html", str(DOCS), str(built)]
    subprocess.run(line, check=True, cwd=DOCS.parent)
    return built


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as play, play.chromium.launch(executable_path=need_binary("chromium")) as browser:
        yield browser.new_page()


def test_fifty_searches_find_their_page(site: Path, page: Page) -> None:
    missed = {}
    for text, wanted in SEARCHES.items():
        page.goto(f"file://{site}/search.html?q={quote(text)}")
        page.wait_for_function("document.querySelector('#search-results .search-summary')?.textContent.length > 0")
        page.wait_for_function("!/Searching|Preparing/.test(document.querySelector('#search-results h2').textContent)")
        links = page.locator("#search-results li a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        found = list(dict.fromkeys(link.partition(".html")[0] for link in links))[:3]
        if wanted not in found:
            missed[text] = found
    assert not missed, "\n".join(f"{text}: {found}" for text, found in missed.items())
    assert len(SEARCHES) >= 50
