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
from django.core.management import CommandError, call_command
from django.test import utils

from django_throttle import agent, detect_test_run, stores
from django_throttle.limiter import decide
from django_throttle.stores import MemoryStore, RedisStore, get_store
from tests.observe.conftest import FACTS

TOP = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    before = detect_test_run.declare(None)
    yield
    detect_test_run.declare(before)


def test_djangos_test_environment_is_one() -> None:
    assert detect_test_run.counts_in_memory()


def test_an_ordinary_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = utils._TestState.saved_data  # type: ignore[attr-defined]
    utils.teardown_test_environment()
    try:
        assert not detect_test_run.counts_in_memory()
        monkeypatch.delitem(sys.modules, detect_test_run.DJANGO_TESTS)
        assert not detect_test_run.counts_in_memory()
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
    assert detect_test_run.is_test_command(line.split()) is is_one


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables, "PYTHONPATH": f"{folder}{os.pathsep}{TOP}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, env=env, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(("module", "is_one"), [("django", True), ("server", False)])
def test_of_the_modules_that_python_runs_only_django_is_one(tmp_path: Path, module: str, is_one: bool) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__main__.py").write_text("import said\n")
    (tmp_path / "said.py").write_text(
        "from django_throttle import detect_test_run\nraise SystemExit(f'on: {detect_test_run.counts_in_memory()}')\n"
    )
    found = run(tmp_path, "-m", module, "test", DJANGO_SETTINGS_MODULE="said")
    assert f"on: {is_one}" in found.stderr


RUNNER = """
import sys
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="x", INSTALLED_APPS=["site_limits"], DJANGO_THROTTLE={"REDIS": "redis://127.0.0.1:1/0"}
)
from django.test.utils import setup_test_environment
steps = [django.setup, setup_test_environment]
for step in reversed(steps) if "early" in sys.argv else steps:
    step()
from site_limits import models
print(type(models.limiter.store).__name__)
"""
LIMITS = """
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import get_store
limiter = Limiter([Rule("mail", "5/min")], get_store())
"""


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(("when", "store"), [("early", "MemoryStore"), ("late", "RedisStore")])
def test_what_was_got_before_the_environment_is_set_up_stays(tmp_path: Path, when: str, store: str) -> None:
    (tmp_path / "site_limits").mkdir()
    (tmp_path / "site_limits" / "__init__.py").touch()
    (tmp_path / "site_limits" / "models.py").write_text(LIMITS)
    (tmp_path / "run.py").write_text(RUNNER)
    found = run(tmp_path, "run.py", when)
    assert found.stdout.split() == [store], found.stderr


def test_what_is_declared_holds() -> None:
    assert detect_test_run.declare(False) is None
    assert not detect_test_run.counts_in_memory()
    assert detect_test_run.declare(True) is False
    assert detect_test_run.counts_in_memory()


def test_a_redis_is_left_alone_until_asked_for(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False}
    store = get_store()
    assert isinstance(store, MemoryStore)
    assert get_store() is store
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "TESTS_IN_MEMORY": False, "AGENT": False}
    assert isinstance(get_store(), RedisStore)


def test_it_is_left_alone_by_whoever_made_the_store_before(settings: Any, redis_url: str) -> None:
    detect_test_run.declare(False)
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "AGENT": False}
    assert isinstance(get_store(), RedisStore)
    detect_test_run.declare(True)
    assert isinstance(get_store(), MemoryStore)


@pytest.mark.parametrize(
    "words",
    [("throttle_reset", "user:1"), ("throttle_inspect",), ("throttle_costs",), ("refresh_connections", "--once")],
    ids=str,
)
def test_commands_that_need_redis_say_that_tests_count_in_memory(
    settings: Any, redis_url: str, words: tuple[str, ...]
) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False}
    with pytest.raises(CommandError, match=r"^Tests count in memory, as .*TESTS_IN_MEMORY"):
        call_command(*words)
    before = stores.pin(MemoryStore())
    try:
        with pytest.raises(CommandError, match=r"^This test counts in a store of its own"):
            call_command(*words)
    finally:
        stores.pin(before)


@pytest.mark.agent
def test_no_thread_is_started(settings: Any, redis_url: str) -> None:
    agent.stop()
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "RULES": {"api": {"rate": "5/min"}}, "DATABASE_RULES": False}
    before = active_count()
    assert decide(FACTS).allowed
    assert active_count() == before
