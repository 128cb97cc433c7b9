"""Not one result of a suite that somebody else wrote changes when we are in its way."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.outside.environments import make_environment
from tests.outside.foreign import page, sources
from tests.outside.foreign.runs import Comparison, comparing
from tests.outside.foreign.suites import EXTRAS, REQUIREMENTS, SUITES

Comparisons = Mapping[str, Future[Comparison]]


@pytest.fixture(scope="module")
def comparisons(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Comparisons]:
    """The suites that have been asked for, all under way."""
    folder = tmp_path_factory.mktemp("foreign")
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    sources.fetch()
    # Each suite is that of one version, so the gate's pair of versions is not for them.
    python = make_environment(folder / "venv", f"{wheel}[{EXTRAS}]", *REQUIREMENTS, base=sys.executable)
    with comparing([name for name in SUITES if name in asked], python, folder) as found:
        yield found


@pytest.mark.parametrize("name", SUITES)
def test_not_one_result_changes(name: str, comparisons: Comparisons) -> None:
    found = comparisons[name].result()
    print(*page.row(found), sep="; ")
    assert not found.changed, found.differences()
    assert found.counts()["passed"] >= found.suite.least, found.throttled.printed


@pytest.mark.parametrize("name", SUITES)
def test_we_were_in_its_way(name: str, comparisons: Comparisons) -> None:
    found = comparisons[name].result()
    plain, throttled = found.plain, found.throttled
    assert not plain.decisions and not plain.scripts, "the plain run has met us"
    assert sum(throttled.decisions.values()) >= found.suite.decisions and throttled.scripts, throttled.printed
    assert not throttled.decisions["degraded"], throttled.decisions


def test_the_page_has_these_suites() -> None:
    assert page.shape(page.written()) == page.expected()
