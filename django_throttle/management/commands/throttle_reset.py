"""manage.py throttle_reset: gives somebody a full budget again, also on sockets that are open."""

from __future__ import annotations

from contextlib import suppress

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_throttle.core.texts import gettext_noop, translatable
from django_throttle.exceptions import InvalidIdent, InvalidSetting, StoreError
from django_throttle.explain.find_caller import read_ident
from django_throttle.limiter import Limiter
from django_throttle.management import ShellCommand, printable, remote_store
from django_throttle.models.override import misspelt
from django_throttle.models.subjects import check_ident
from django_throttle.rulebook import sources
from django_throttle.translated import gettext, ngettext, translated

KINDS = ("user:42", "ip:203.0.113.9", "everyone")


class Command(ShellCommand):
    """What ``Limiter.reset`` does, under the rules in force."""

    help = "Make the budgets of one identity full again, in every process within a second. What it holds open stays."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ident", help=f"whose: {', '.join(KINDS)}, or a user's id, name or e-mail address")
        parser.add_argument("--rules", nargs="+", default=[], metavar="NAME", help="names of rules; else every rule")

    def handle(self, *, ident: str, rules: list[str], **options: object) -> None:
        try:
            reading = sources.read()
            found = reading.rules
            if reading.failure is not None:
                warning = gettext("only rules of the settings: {advice}", advice=sources.failure_text(reading.failure))
                self.stderr.write(self.style.WARNING(warning))
            if wrong := misspelt(rules, found, unlisted=False):
                raise CommandError("\n".join(wrong))
            store = remote_store(translatable("each process counts by itself."))
            typed, ident = ident, self._found(ident)
            named = [rule for rule in found if not rules or rule.name in rules]
            # A socket's own counters are nobody's in Redis; it empties them when it hears of the reset.
            removed = Limiter([rule for rule in named if not rule.holds_slots], store).reset(ident)
            if not removed:  # what a user left behind who is no more can be removed
                with suppress(DatabaseError):  # which has been said
                    check_ident(ident)
        except ValidationError as error:
            raise CommandError("\n".join(error.messages)) from error
        except (InvalidIdent, InvalidSetting) as error:
            raise CommandError(translated(error)) from error
        except StoreError as error:
            raise CommandError(gettext("nothing was reset, as Redis does not answer: {error}", error=error)) from error
        self._say(printable(typed), printable(ident), removed)

    def _say(self, typed: str, ident: str, removed: int) -> None:
        if removed:
            said = ngettext(
                "{ident}: {count} budget full again", "{ident}: {count} budgets full again", removed, ident=ident
            )
            self.stdout.write(self.style.SUCCESS(said))
            return
        if ident != typed:
            said = gettext("{typed} ({ident}): nothing was counted", typed=typed, ident=ident)
        else:
            pattern = gettext_noop("{ident}: nothing was counted. Identities are written with their kind: {example}")
            said = gettext(pattern, ident=ident, example=KINDS[0])
        self.stdout.write(said)

    def _found(self, typed: str) -> str:
        try:
            return read_ident(typed, checks=False)
        except DatabaseError as error:
            warning = gettext("no user can be looked up: {advice}", advice=sources.failure_text(error))
            self.stderr.write(self.style.WARNING(warning))
            return typed
