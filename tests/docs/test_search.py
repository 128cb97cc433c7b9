"""What a user would type into the documentation's search finds the right page among the first three."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from tests.pages import DOCS

#: Each page, and searches that must find it.
SEARCHES = """
howto/tasks: celery, background tasks, django.tasks
howto/plans: premium, plans, tiers
reference/responses: 429 json, 429, openapi, drf-spectacular, problem details, retry-after, ratelimit header
howto/proxy: x-forwarded-for, behind a proxy, cloudflare, ipv6
howto/explain: why is user refused, explain
howto/logins: login, brute force, password
howto/tenants: api key, tenant
howto/graphql: graphql
howto/quotas: quota, monthly
howto/websockets: chat
howto/uploads: upload, bytes
howto/streams: llm tokens, streaming
howto/sites: several sites, eviction
howto/redis: sentinel, cluster, valkey
howto/containers: kubernetes, docker, sigterm
howto/alerts: prometheus, grafana
reference/observing: opentelemetry
howto/overrides: exempt, block ip
howto/switching: migrate from django-ratelimit, slowapi
howto/testing: pytest, override_settings, freeze time
reference/rules: token bucket, gcra
reference/sockets: websocket, close code, 4429
howto/publishing: group_send, publish
howto/outages: redis down, circuit breaker, fail open
howto/deployment: production, systemd
explanation/connections: zombie connections
howto/costs: slow queries
howto/later: queue, 202
tutorial/quickstart: quickstart, install
explanation/performance: benchmark
explanation/bounds: sliding window burst
reference/checks: W082
reference/doors: async view, ninja
reference/settings: settings
reference/api: limiter.acquire
reference/commands: manage.py
reference/store: redis keys
"""


def searches() -> Iterator[tuple[str, str]]:
    for line in SEARCHES.strip().splitlines():
        page, _, texts = line.partition(": ")
        yield from ((text, page) for text in texts.split(", "))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("docs")
    line = [sys.executable, "-m", "sphinx", "--quiet", "-j", "2", "-b", "html", str(DOCS), str(built)]
    subprocess.run(line, check=True, cwd=DOCS.parent)
    return built


def test_searches_find_their_page(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    missed = {}
    for text, wanted in searches():
        page.goto(f"file://{site}/search.html?q={quote(text)}")
        page.wait_for_function("document.querySelector('#search-results .search-summary')?.textContent.length > 0")
        page.wait_for_function("!/Searching|Preparing/.test(document.querySelector('#search-results h2').textContent)")
        links = page.locator("#search-results li a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        found = list(dict.fromkeys(link.partition(".html")[0] for link in links))[:3]
        if wanted not in found:
            missed[text] = found
    page.close()
    assert not missed, "\n".join(f"{text}: {found}" for text, found in missed.items())
