"""Who counts where in a test run; runs of whole sites are in tests/outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import active_count
from typing import Any

import pytest
from django.test import utils

from django_throttle import agent, testrun
from django_throttle.limiter import decide
from django_throttle.stores import MemoryStore, RedisStore, get_store
from tests.observe.conftest import FACTS

TOP = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    before = testrun.declare(None)
    yield
    testrun.declare(before)


def test_djangos_test_environment_is_one() -> None:
    """pytest-django has set it up for this test."""
    assert testrun.is_on()


def test_an_ordinary_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = utils._TestState.saved_data  # type: ignore[attr-defined]
    utils.teardown_test_environment()
    try:
        assert not testrun.is_on()
        monkeypatch.delitem(sys.modules, testrun.DJANGOS)
        assert not testrun.is_on()
    finally:
        monkeypatch.undo()
        utils.setup_test_environment(debug=False)
        utils._TestState.saved_data = saved  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("manage.py test", True),
        ("site/manage.py test shop --parallel", True),
        ("bin/django-admin test", True),
        ("manage.py runserver", False),
        ("manage.py testserver fixture.json", False),
        ("manage.py", False),
        ("bin/uvicorn test", False),
        ("lib/django/__main__.py test", True),
        ("lib/gunicorn/__main__.py test", False),
        ("__main__.py test", False),
    ],
)
def test_the_command_of_django_is_one_from_the_start(line: str, is_one: bool) -> None:
    assert testrun.is_test_command(line.split()) is is_one


@pytest.mark.parametrize(("module", "is_one"), [("django", True), ("server", False)])
def test_of_the_modules_that_python_runs_only_django_is_one(tmp_path: Path, module: str, is_one: bool) -> None:
    """``python -m gunicorn test`` serves a module of that name."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__main__.py").write_text("import said\n")
    (tmp_path / "said.py").write_text(
        "from django_throttle import testrun\nraise SystemExit(f'on: {testrun.is_on()}')\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "said", "PYTHONPATH": f"{tmp_path}{os.pathsep}{TOP}"}
    found = subprocess.run(
        [sys.executable, "-m", module, "test"],
        check=False,
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"on: {is_one}" in found.stderr


def test_what_is_declared_holds() -> None:
    assert testrun.declare(False) is None
    assert not testrun.is_on()
    assert testrun.declare(True) is False
    assert testrun.is_on()


def test_a_redis_is_left_alone_until_asked_for(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False}
    store = get_store()
    assert isinstance(store, MemoryStore)
    assert get_store() is store
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "TESTS_IN_MEMORY": False, "AGENT": False}
    assert isinstance(get_store(), RedisStore)


def test_it_is_left_alone_by_whoever_made_the_store_before(settings: Any, redis_url: str) -> None:
    testrun.declare(False)
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "AGENT": False}
    assert isinstance(get_store(), RedisStore)
    testrun.declare(True)
    assert isinstance(get_store(), MemoryStore)


@pytest.mark.agent
def test_no_thread_is_started(settings: Any, redis_url: str) -> None:
    agent.stop()
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "RULES": {"api": {"rate": "5/min"}}, "DATABASE_RULES": False}
    before = active_count()
    assert decide(FACTS).allowed
    assert active_count() == before
