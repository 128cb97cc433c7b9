"""Detects whether this process runs the tests of a site, which then counts in memory; imports nothing of Django.

pytest's plugin says so. ``manage.py test`` is one from its first import on: models may ask for the store before any
test runs. Whatever else calls Django's ``setup_test_environment`` leaves a mark.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Final

DJANGO_TESTS: Final = "django.test.utils"


def is_test_command(arguments: list[str]) -> bool:
    """Whether a process with these arguments runs Django's command ``test``."""
    if arguments[1:2] != ["test"]:
        return False
    program = PurePath(arguments[0])
    # python -m django runs the latter; any other package has a __main__.py too.
    return program.name in ("manage.py", "django-admin") or program.parts[-2:] == ("django", "__main__.py")


declared: bool | None = True if is_test_command(sys.argv) else None


def counts_in_memory() -> bool:
    """True in a test run, unless whoever runs it has asked for the store of the settings."""
    if declared is not None:
        return declared
    utilities = sys.modules.get(DJANGO_TESTS)
    # What setup_test_environment itself looks at, to find out whether it was called before.
    return utilities is not None and hasattr(utilities._TestState, "saved_data")


def has_begun() -> bool:
    """True in a test run, whatever store it counts in."""
    return declared is not None or counts_in_memory()


def declare(is_test_run: bool | None) -> bool | None:
    """Say whether this is one; None leaves it to Django's mark. Returns what was said before."""
    global declared
    before, declared = declared, is_test_run
    return before
