"""What the pages on deployment give to copy works as it stands; its rights are in test_rights.py."""

from __future__ import annotations

import logging
import logging.config
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_throttle.checks import settings as checked_settings

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGE = "".join(
    (HOWTO / f"{name}.rst").read_text(encoding="utf-8") for name in ("redis", "sites", "proxy", "deployment")
)
SERVER = logging.getLogger("uvicorn.error")


@pytest.fixture
def logged() -> Iterator[None]:
    before = SERVER.filters[:]
    yield
    SERVER.filters[:] = before


@pytest.mark.usefixtures("logged")
def test_the_filter_keeps_refused_handshakes_out_of_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    block = re.search(r"^   LOGGING = .*?^   }$", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    names: dict[str, Any] = {}
    exec(textwrap.dedent(block[0]), names)
    logging.config.dictConfig(names["LOGGING"])
    SERVER.error("ASGI callable returned without completing handshake.")
    SERVER.error("Exception in ASGI application")
    assert [record.getMessage() for record in caplog.records] == ["Exception in ASGI application"]


PROXIES = re.findall(r"^   DJANGO_THROTTLE = (\{\"TRUSTED.*?\}|\{\n.*?^   \})$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", PROXIES)
def test_every_way_to_name_proxies_passes_the_checks(block: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = eval(textwrap.dedent(block))
    assert checked_settings.check_settings(None) == []
    assert "django_throttle.W012" not in {message.id for message in checked_settings.check_deployment(None)}
