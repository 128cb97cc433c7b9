"""The settings in force: read late, complete, and in memory where tests run; whole sites are in tests/outside."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_throttle import detect_test_run, stores
from django_throttle.conf import conf
from django_throttle.exceptions import InvalidSetting
from django_throttle.stores import MemoryStore, RedisStore, get_store


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"DEADLIN": 1}, "no setting 'DEADLIN'; did you mean 'DEADLINE'?"),
        ({"deadline": 1}, "no setting 'deadline'; did you mean 'DEADLINE'?"),
        ({5: 1}, "no setting 5$"),
        (["DEADLINE"], "must be a dictionary, not list"),
    ],
    ids=str,
)
def test_what_there_is_not_is_an_error_that_says_so(given: Any, said: str) -> None:
    with override_settings(DJANGO_THROTTLE=given), pytest.raises(InvalidSetting, match=said):
        conf()


def test_they_are_read_once_until_they_change(settings: Any) -> None:
    first = conf()
    assert conf() is first
    settings.SECRET_KEY = "another"
    assert conf().KEY_SECRET == "another"
    settings.DJANGO_THROTTLE = {"KEY_SECRET": "ours"}
    assert conf().KEY_SECRET == "ours"
    settings.DJANGO_THROTTLE = {"KEY_SECRET": ""}
    assert conf().KEY_SECRET == "another"


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    before = detect_test_run.declare(None)
    yield
    detect_test_run.declare(before)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("manage.py test", True), ("bin/django-admin test", True), ("manage.py runserver", False),
        ("manage.py testserver fixture.json", False), ("manage.py", False), ("bin/uvicorn test", False),
        ("lib/django/__main__.py test", True), ("lib/gunicorn/__main__.py test", False),
    ],
)  # fmt: skip
def test_the_command_of_django_is_one_from_the_start(line: str, is_one: bool) -> None:
    assert detect_test_run.is_test_command(line.split()) is is_one


def test_a_redis_is_left_alone_until_asked_for(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False}
    store = get_store()
    assert isinstance(store, MemoryStore)
    assert get_store() is store
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "TESTS": "redis"}
    assert isinstance(get_store(), RedisStore)


@pytest.mark.parametrize(
    "words", [["throttle_reset", "user:1"], ["throttle_inspect"], ["throttle_costs"], ["refresh_connections", "--once"]]
)
def test_commands_that_need_redis_say_that_tests_count_in_memory(
    settings: Any, redis_url: str, words: list[str]
) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False}
    with pytest.raises(CommandError, match=r"^Tests count in memory, as .*TESTS"):
        call_command(*words)
    before = stores.pin(MemoryStore())
    try:
        with pytest.raises(CommandError, match=r"^This test counts in a store of its own"):
            call_command(*words)
    finally:
        stores.pin(before)
