"""Detects a process that runs the tests of a site. It imports nothing of Django.

The plugin for pytest declares a test run. ``manage.py test`` is a test run from its first import on, because models may
ask for the store before any test runs. Other runners call ``setup_test_environment`` of Django, which leaves a mark.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Final

DJANGO_TESTS: Final = "django.test.utils"


def is_test_command(arguments: list[str]) -> bool:
    """Return True if a process with these arguments runs Django's command ``test``."""
    if arguments[1:2] != ["test"]:
        return False
    program = PurePath(arguments[0])
    # python -m django runs the latter; any other package has a __main__.py too.
    return program.name in ("manage.py", "django-admin") or program.parts[-2:] == ("django", "__main__.py")


declared: bool | None = True if is_test_command(sys.argv) else None


def counts_in_memory() -> bool:
    """Return True in a test run, unless its option asks for the store of the settings."""
    if declared is not None:
        return declared
    utilities = sys.modules.get(DJANGO_TESTS)
    # setup_test_environment itself reads this to find out if it was called before.
    return utilities is not None and hasattr(utilities._TestState, "saved_data")


def has_begun() -> bool:
    """Return True in a test run, in memory or not."""
    return declared is not None or counts_in_memory()


def declare(is_test_run: bool | None) -> bool | None:
    """Declare if this is a test run; None leaves it to Django's mark. Return the former declaration."""
    global declared
    before, declared = declared, is_test_run
    return before
