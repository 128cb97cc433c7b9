"""Commands of manage.py, and what they share."""

from __future__ import annotations

import getpass
import os
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_throttle import rulebook
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models.override import misspelt
from django_throttle.observe.reports import printable as printable
from django_throttle.rulebook import Snapshot, sources
from django_throttle.stores import RedisStore, get_store, why_in_memory
from django_throttle.translated import gettext, translated


class ShellCommand(BaseCommand):
    """A command that ends quietly, with status 1, when nobody reads its output any more."""

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            try:
                super().run_from_argv(argv)
            finally:
                self.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())  # Python writes the rest as it exits
            raise SystemExit(1) from None

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except StoreError as error:
            raise CommandError(gettext("Redis does not answer: {error}", error=error)) from error


def subcommands(parser: CommandParser, words: str) -> Callable[..., Any]:
    """What adds a subcommand, by its word and help: it takes Django's own options too, as the command before it."""
    # What is not said after the word must not undo what was said in front of it.
    djangos = CommandParser(add_help=False, argument_default=SUPPRESS)
    djangos.add_argument("-v", "--verbosity", type=int, choices=(0, 1, 2, 3), help=SUPPRESS)
    for option in ("--settings", "--pythonpath"):
        djangos.add_argument(option, help=SUPPRESS)
    for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        djangos.add_argument(option, action="store_true", help=SUPPRESS)
    todo = parser.add_subparsers(dest="todo", required=True, metavar=words)
    return lambda word, said, more="": todo.add_parser(
        word, help=said, description=f"{said[0].upper()}{said[1:]}. {more}", parents=[djangos]
    )


def shell_user() -> str:
    """Who runs the command, as the system names them; empty where it has no name."""
    try:
        return getpass.getuser()[:150]
    except (OSError, KeyError, ImportError):  # a container may have no name for its user
        return ""


def rules_in_force() -> Snapshot:
    """The rules in force, however long the database takes to tell them: nobody's request waits for a command."""
    return rulebook.loaded() or rulebook.refresh()


def remote_store(otherwise: str) -> RedisStore:
    """The store in Redis; raises CommandError where calls are counted in memory: why, and what that means."""
    try:
        store = get_store()
    except InvalidSetting as error:
        raise CommandError(translated(error)) from error
    if not store.is_remote:
        raise CommandError(gettext("{why}: {otherwise}", why=why_in_memory(), otherwise=otherwise))
    return store


def check_found(results: Sequence[object], name: str | None) -> None:
    """Raise CommandError if nothing was found for a name that no rule has."""
    if not results and name is not None and (wrong := misspelt([name], sources.rules(), unlisted=False)):
        raise CommandError("\n".join(wrong))


def unreadable(error: Exception) -> CommandError:
    return CommandError(
        gettext("the rules in the database cannot be used: {advice}", advice=sources.failure_text(error))
    )
