"""A plugin of pytest, which writes down what became of each test; no test sees what another has left behind."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

outcomes: dict[str, str] = {}


def pytest_runtest_setup() -> None:
    """Receivers of signals that nothing refers to are gone, at the same moment in every run."""
    if os.environ.get("FOREIGN_COLLECT"):
        gc.collect()


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcome = "error" if report.when != "call" and report.failed else report.outcome
        if hasattr(report, "wasxfail"):
            outcome = f"x{outcome}"
        if outcomes.get(report.nodeid, "passed") == "passed":
            outcomes[report.nodeid] = outcome


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        outcomes[report.nodeid] = "not collected"


def pytest_sessionfinish() -> None:
    Path(os.environ["FOREIGN_OUTCOMES"]).write_text(json.dumps(outcomes), encoding="utf-8")
