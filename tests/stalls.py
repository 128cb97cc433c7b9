"""A failure while the machine stood still says nothing of us, so the test gets another chance.

A CI machine may stop for a second: a deadline passes, a reply is late. A fault of ours does not need that to show.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from testproject.check.standstill import elapsed, watch

__all__ = ["elapsed", "pytest_runtest_protocol", "pytest_terminal_summary"]

AGAIN = 2  # more attempts at most
spoilt: list[str] = []


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test again that failed while the machine stood still."""
    watch.start()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(1 + AGAIN):
        began = time.monotonic()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        still = watch.still_since(began)
        failed = [report for report in reports if report.failed]
        if attempt == AGAIN or not still or not failed:
            break
        why = str(getattr(failed[0].longrepr, "reprcrash", failed[0].longrepr)).partition("\n")[0]
        spoilt.append(f"{item.nodeid}: {still:.2f} s of {time.monotonic() - began:.2f} s; {why}")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name what was run again, so that nobody is deceived."""
    if spoilt:
        terminalreporter.section("failed while the machine stood still, and run again")
        for line in spoilt:
            terminalreporter.line(line)
