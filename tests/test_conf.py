"""The settings in force: read late, complete, and an error where there is no such one."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from django_throttle.conf import conf
from django_throttle.exceptions import InvalidSetting


def test_who_names_a_redis_means_it(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": "redis://127.0.0.1:1/0"}
    assert conf().STORE == "redis"
    settings.DJANGO_THROTTLE = {"REDIS": "redis://127.0.0.1:1/0", "STORE": "memory"}
    assert conf().STORE == "memory"


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
