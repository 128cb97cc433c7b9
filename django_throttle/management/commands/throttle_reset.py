"""manage.py throttle_reset: fill the budgets of an ident again, also on open sockets."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_throttle.core.texts import gettext_noop, translatable
from django_throttle.exceptions import InvalidIdent, InvalidSetting, StoreError
from django_throttle.explain.find_caller import read_ident
from django_throttle.limiter import Limiter
from django_throttle.management import ShellCommand, printable, remote_store
from django_throttle.models.override import misspelt
from django_throttle.rulebook import sources
from django_throttle.translated import gettext, ngettext, translated

EXAMPLE_IDENTS: Final = ("user:42", "ip:203.0.113.9", "everyone")


class Command(ShellCommand):
    """Command around ``Limiter.reset`` with the current rules."""

    help = "Make the budgets of one identity full again, in every process within a second. What it holds open stays."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ident", help=f"whose: {', '.join(EXAMPLE_IDENTS)}, or a user's id, name or e-mail address")
        parser.add_argument("--rules", nargs="+", default=[], metavar="NAME", help="names of rules; else every rule")

    def handle(self, *, ident: str, rules: list[str], **options: object) -> None:
        try:
            reading = sources.read()
            all_rules = reading.rules
            if reading.failure is not None:
                warning = gettext("only rules of the settings: {advice}", advice=sources.failure_text(reading.failure))
                self.stderr.write(self.style.WARNING(warning))
            if wrong := misspelt(rules, all_rules, unlisted=False):
                raise CommandError("\n".join(wrong))
            store = remote_store(translatable("each process counts by itself."))
            typed, ident = ident, self._read_ident(ident)
            named = [rule for rule in all_rules if not rules or rule.name in rules]
            # The counters of sockets are not in Redis. Sockets empty them when they receive the message of the reset.
            removed = Limiter([rule for rule in named if not rule.holds_slots], store).reset(ident)
            if not removed:  # budgets of a deleted user can be reset
                with suppress(DatabaseError):  # a warning was written
                    read_ident(typed)
        except ValidationError as error:
            raise CommandError("\n".join(error.messages)) from error
        except (InvalidIdent, InvalidSetting) as error:
            raise CommandError(translated(error)) from error
        except StoreError as error:
            raise CommandError(gettext("nothing was reset, as Redis does not answer: {error}", error=error)) from error
        self._print_result(printable(typed), printable(ident), removed)

    def _print_result(self, typed: str, ident: str, removed: int) -> None:
        if removed:
            message = ngettext(
                "{ident}: {count} budget full again", "{ident}: {count} budgets full again", removed, ident=ident
            )
            self.stdout.write(self.style.SUCCESS(message))
            return
        if ident != typed:
            message = gettext("{typed} ({ident}): nothing was counted", typed=typed, ident=ident)
        else:
            pattern = gettext_noop("{ident}: nothing was counted. Identities are written with their kind: {example}")
            message = gettext(pattern, ident=ident, example=EXAMPLE_IDENTS[0])
        self.stdout.write(message)

    def _read_ident(self, typed: str) -> str:
        try:
            return read_ident(typed, checks=False)
        except DatabaseError as error:
            warning = gettext("no user can be looked up: {advice}", advice=sources.failure_text(error))
            self.stderr.write(self.style.WARNING(warning))
            return typed
