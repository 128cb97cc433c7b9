"""Django's runner, which writes down what became of each test."""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path
from typing import Any

from django.test.runner import DiscoverRunner

outcomes: dict[str, str] = {}


class Result(unittest.TextTestResult):
    def startTest(self, test: Any) -> None:  # noqa: N802
        outcomes[test.id()] = "passed"
        super().startTest(test)

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        outcomes[test.id()] = "error"
        super().addError(test, err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        outcomes[test.id()] = "failed"
        super().addFailure(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            outcomes[test.id()] = "failed"
        super().addSubTest(test, subtest, err)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        outcomes[test.id()] = "skipped"
        super().addSkip(test, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        outcomes[test.id()] = "xfailed"
        super().addExpectedFailure(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        outcomes[test.id()] = "xpassed"
        super().addUnexpectedSuccess(test)


class Runner(DiscoverRunner):
    def get_resultclass(self) -> type[Result]:
        return Result

    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        try:
            return super().run_suite(suite, **kwargs)
        finally:
            Path(os.environ["FOREIGN_OUTCOMES"]).write_text(json.dumps(outcomes), encoding="utf-8")
