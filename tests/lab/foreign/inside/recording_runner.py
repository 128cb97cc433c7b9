"""Django's runner, which writes down what became of each test."""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path
from typing import Any

from django.test.runner import DiscoverRunner

outcomes: dict[str, str] = {}


def recording(method: str, outcome: str) -> Any:
    def record(self: Any, test: Any, *details: Any) -> None:
        if method != "addSubTest" or details[1] is not None:
            outcomes[test.id()] = outcome
        getattr(unittest.TextTestResult, method)(self, test, *details)

    return record


METHODS = {
    "startTest": "passed", "addError": "error", "addFailure": "failed", "addSubTest": "failed", "addSkip": "skipped",
    "addExpectedFailure": "xfailed", "addUnexpectedSuccess": "xpassed",
}  # fmt: skip
Result = type("Result", (unittest.TextTestResult,), {name: recording(name, METHODS[name]) for name in METHODS})


class Runner(DiscoverRunner):
    def get_resultclass(self) -> type[unittest.TextTestResult]:
        return Result

    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        try:
            return super().run_suite(suite, **kwargs)
        finally:
            Path(os.environ["FOREIGN_OUTCOMES"]).write_text(json.dumps(outcomes), encoding="utf-8")
