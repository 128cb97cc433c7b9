"""The command, as far as it needs no process of its own."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command


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
