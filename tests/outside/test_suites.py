"""A site's own suite under pytest and Django's runner: the test kit as shown, and the developer's Redis left alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.outside.pages import page
from tests.outside.project import Project
from tests.servers import RedisServer

TESTS = [block for block in page("testing.rst") if block.file]
RUNNERS = {"pytest": "python -m pytest -q -p no:cacheprovider", "django": "python manage.py test"}
# The suite of a site that has never heard of the test kit: it calls a view, by the rules of its settings.
SUITE = """
import threading

from django.test import TestCase


class SearchTests(TestCase):
    def test_it_is_limited_as_in_production(self):
        self.assertEqual([self.client.get("/search").status_code for _ in range(6)], [200] * 5 + [429])
        print("threads:", [thread.name for thread in threading.enumerate()])
"""
OURS = ("hello", "client", "info", "config", "flushall", "ping")  # of the test's own client


@pytest.fixture(scope="module")
def site(site_python: Path, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(site_python, tmp_path_factory.mktemp("suites") / "mysite", redis.url).start()
    project.write(*(block for block in page("quickstart.rst") if block.file))
    return project.write(*TESTS)


@pytest.fixture
def other(site: Project, tmp_path: Path) -> Project:
    project = site.copy(tmp_path / "mysite")
    project.append("mysite/settings.py", 'DJANGO_THROTTLE |= {"TESTS": "memory"}')
    project.append("mysite/tests/test_limits.py", SUITE, anew=True)
    return project


def asked(redis: RedisServer) -> set[str]:
    """The commands that Redis has seen since the last time, but for the test's own questions."""
    with redis.client() as client:
        seen = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
        client.config_resetstat()
        client.flushall()
    return {name for name in seen if name.partition("|")[0] not in OURS}


def test_the_page_s_tests_pass(site: Project, redis: RedisServer) -> None:
    asked(redis)
    shown = sum(len(re.findall(r"^ *(?:async )?def test_", block.code, re.MULTILINE)) for block in TESTS)
    assert f"{shown} passed" in site.shell(RUNNERS["pytest"])
    assert "Ran 2 tests" in site.shell(RUNNERS["django"]), "its classes"
    assert asked(redis) == set()


@pytest.mark.parametrize("runner", RUNNERS)
def test_any_suite_asks_redis_only_where_settings_say_so(runner: str, other: Project, redis: RedisServer) -> None:
    asked(redis)
    printed = other.shell(RUNNERS[runner] + (" -s" if runner == "pytest" else ""))
    assert "threads: ['MainThread']" in printed
    assert asked(redis) == set()
    other.append("mysite/settings.py", 'DJANGO_THROTTLE |= {"TESTS": "redis", "DEADLINE": 5.0}')
    other.shell(RUNNERS[runner])
    assert "evalsha" in asked(redis)
