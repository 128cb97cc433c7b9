"""A plugin of pytest: ``@throttle`` stands around every operation of Ninja's, and our middleware is in the way."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path("tests/demo_project").resolve()))  # as Ninja's conftest does
os.environ["DJANGO_SETTINGS_MODULE"] = "ninja_throttled"


def pytest_collection(session: Any) -> None:
    """Ninja's conftest has set Django up: from here on modules with operations are imported."""
    from ninja.operation import Operation

    from django_throttle.decorators import throttle

    make = Operation.__init__

    def made(self: Operation, path: str, methods: list[str], view_func: Callable[..., Any], **options: Any) -> None:
        if not (inspect.isgeneratorfunction(view_func) or inspect.isasyncgenfunction(view_func)):  # refused by throttle
            view_func = throttle("calls")(view_func)
        make(self, path, methods, view_func, **options)

    Operation.__init__ = made  # type: ignore[method-assign]
