"""Management commands, with their base class and helpers."""

from __future__ import annotations

import getpass
import os
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from typing import Any, Literal

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_throttle import rulebook
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models.override import misspelt
from django_throttle.observe.reports import printable as printable
from django_throttle.rulebook import Snapshot, sources
from django_throttle.stores import RedisStore, get_store, why_in_memory
from django_throttle.translated import gettext, translated


class ShellCommand(BaseCommand):
    """Command that reports an unreachable Redis, and ends with status 1 without a traceback if its pipe is closed."""

    #: None, because an invalid rule of settings must not end the command.
    requires_system_checks: list[str] | tuple[str, ...] | Literal["__all__"] = []

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            try:
                super().run_from_argv(argv)
            finally:
                self.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())  # Python flushes the rest at its exit
            raise SystemExit(1) from None

    def execute(self, *args: object, **options: object) -> str | None:
        try:
            return super().execute(*args, **options)
        except StoreError as error:
            raise CommandError(gettext("Redis does not answer: {error}", error=error)) from error


def subcommands(parser: CommandParser, metavar: str) -> Callable[..., Any]:
    """Return a function that adds a subcommand with a name, a help text, and more text for its description.

    Each subcommand takes Django's own options, as the command itself does.
    """
    # Without defaults, because those would override options in front of the subcommand.
    django_options = CommandParser(add_help=False, argument_default=SUPPRESS)
    django_options.add_argument("-v", "--verbosity", type=int, choices=(0, 1, 2, 3), help=SUPPRESS)
    for option in ("--settings", "--pythonpath"):
        django_options.add_argument(option, help=SUPPRESS)
    for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        django_options.add_argument(option, action="store_true", help=SUPPRESS)
    parsers = parser.add_subparsers(dest="subcommand", required=True, metavar=metavar)
    return lambda name, summary, more="": parsers.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {more}", parents=[django_options]
    )


def add_most(parser: ArgumentParser, noun: str, default: int) -> None:
    """Add the option ``--most``, the number of entries that are listed."""
    help_text = f"{noun} that are listed (default {default})"
    parser.add_argument("--most", type=_positive, default=default, metavar="N", help=help_text)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise ArgumentTypeError(f"a whole number from 1, not {text[:60]!r}")
    return int(text)


def shell_user() -> str:
    """Return the system's name of the user who runs the command, or "" if it has none."""
    try:
        return getpass.getuser()[:150]
    except (OSError, KeyError, ImportError):  # a container may have no name for its user
        return ""


def current_rules() -> Snapshot:
    """Return the current rules. Wait for the database without a deadline, unlike a request."""
    return rulebook.loaded() or rulebook.refresh()


def remote_store(consequence: str) -> RedisStore:
    """Return the Redis store. If calls are counted in memory, raise CommandError with the reason and consequence."""
    try:
        store = get_store()
    except InvalidSetting as error:
        raise CommandError(translated(error)) from error
    if not store.is_remote:
        raise CommandError(gettext("{why}: {otherwise}", why=why_in_memory(), otherwise=consequence))
    return store


def check_found(results: Sequence[object], name: str | None) -> None:
    """Raise CommandError if nothing was found for a name that no rule has."""
    if not results and name is not None and (wrong := misspelt([name], sources.rules(), unlisted=False)):
        raise CommandError("\n".join(wrong))


def unreadable(error: Exception) -> CommandError:
    return CommandError(
        gettext("the rules in the database cannot be used: {advice}", advice=sources.failure_text(error))
    )
