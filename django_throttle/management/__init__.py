"""Commands of manage.py, and what commands with subcommands share."""

from __future__ import annotations

from argparse import SUPPRESS

from django.core.management.base import CommandParser


def django_options() -> list[CommandParser]:
    """The ``parents`` of a subcommand that takes Django's own options as well, as the command in front of it does."""
    # What is not said after the word must not undo what was said in front of it.
    parser = CommandParser(add_help=False, argument_default=SUPPRESS)
    parser.add_argument("-v", "--verbosity", type=int, choices=(0, 1, 2, 3), help=SUPPRESS)
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option, help=SUPPRESS)
    for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(option, action="store_true", help=SUPPRESS)
    return [parser]
