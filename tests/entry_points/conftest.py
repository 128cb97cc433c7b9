"""An entry point that is ready to be called, the rules in force, and overrides."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from channels.layers import channel_layers

from django_throttle import rulebook
from django_throttle.core import Override
from tests.clock import FrozenClock
from tests.entry_points import site
from tests.entry_points.table import EntryPoint


@pytest.fixture
def entry_point(request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntryPoint]:
    """Has one event loop for the whole test, so that a socket stays open from call to call."""
    row: EntryPoint = request.param
    site.seen.clear()
    channel_layers.backends.clear()
    with asyncio.Runner() as runner:
        row.start(runner.run, settings, monkeypatch)
        yield row
        row.end()


@pytest.fixture
def override(clock: FrozenClock) -> Iterator[Callable[..., None]]:
    """Puts overrides in force beside the rules; without any, ends them."""

    def put(*overrides: Override) -> None:
        rulebook.pin(None)
        rulebook.pin(rulebook.Snapshot(rulebook.current().rules, overrides=overrides, now=clock))

    yield put
    rulebook.pin(None)
