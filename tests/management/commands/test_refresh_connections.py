"""The command, as far as it needs no process of its own."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.servers import free_port


def test_once_fails_when_redis_does_not_answer(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": f"redis://127.0.0.1:{free_port()}/0", "AGENT": False}
    with pytest.raises(CommandError, match="Redis does not answer"):
        call_command("refresh_connections", "--once", stdout=io.StringIO())


def test_memory_needs_no_refreshing(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"STORE": "memory", "AGENT": False}
    with pytest.raises(CommandError, match='is "memory"'):
        call_command("refresh_connections", "--once")


def test_a_wrong_setting_is_said_plainly(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": "http://localhost", "AGENT": False}
    with pytest.raises(CommandError, match="Redis URL begins with"):
        call_command("refresh_connections", "--once")


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon", "1e9"])
def test_a_senseless_interval_is_refused(interval: str) -> None:
    with pytest.raises(
        CommandError, match=f"interval: it must be a number of seconds from 0.05 to 3600, not '{interval}'"
    ):
        call_command("refresh_connections", "--interval", interval)


def test_prints_a_line_for_a_pass(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "AGENT": False}
    output = io.StringIO()
    call_command("refresh_connections", "--once", stdout=output)
    assert "processes 0 alive, 0 dead; connections 0 held, 0 freed; keys 0 extended" in output.getvalue()
