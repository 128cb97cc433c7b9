"""manage.py throttle_override: add, list and end overrides, for when there is a shell and no browser."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_throttle import rulebook
from django_throttle.core import Rate
from django_throttle.core.overrides import subject_kinds
from django_throttle.exceptions import InvalidRate
from django_throttle.local.shared_clock import shared_now
from django_throttle.management import ShellCommand, printable, shell_user, subcommands
from django_throttle.models import ThrottleOverride
from django_throttle.models.override import misspelt, override_warnings
from django_throttle.rulebook import history, sources
from django_throttle.translated import gettext, with_label

USUAL: Final = "2h"


class Command(ShellCommand):
    """Each subcommand is one method below."""

    help = "Add, list and end overrides: other limits, or a block, for one user, address, group, API key or tenant."

    def add_arguments(self, parser: CommandParser) -> None:
        subcommand = subcommands(parser, "add|list|end")
        add = subcommand("add", "make an override, which is in force within a second")
        add.add_argument("kind", choices=subject_kinds(), help="what the override is for")
        add.add_argument(
            "value",
            help="a user's id, name or e-mail address; an address or network; a name; an API key, by - from input",
        )
        add.add_argument("--rules", nargs="+", default=["*"], metavar="NAME", help="names of rules; else every rule")
        effect = add.add_argument_group("what it does, one of these (or --rate with --limit)")
        effect.add_argument("--block", action="store_true", help="refuse every call that the rules cover")
        effect.add_argument("--exempt", action="store_true", help="the rules do not hold")
        effect.add_argument("--times", metavar="FACTOR", help="multiply the limit, such as 2 or 0.5")
        effect.add_argument("--rate", default="", help="replace the rate, such as 500/min, of rules that have one")
        effect.add_argument("--limit", type=int, help="replace the number at once of concurrency rules")
        end = add.add_mutually_exclusive_group()
        end.add_argument("--for", dest="lasting", default=USUAL, metavar="TIME", help=f"such as 30m; else {USUAL}")
        end.add_argument("--until", metavar="MOMENT", help="such as 2030-01-31T18:00")
        end.add_argument("--endless", action="store_true", help="until somebody ends it")
        add.add_argument("--reason", required=True, help="why, for whoever reads it next")
        show = subcommand("list", "print the overrides in force, a line each, with their numbers")
        show.add_argument("--all", action="store_true", help="also those that have ended")
        end_some = subcommand("end", "end some overrides now")
        end_some.add_argument("numbers", nargs="+", type=_number, metavar="NUMBER", help="what list prints before each")
        end_some.add_argument("--reason", default="", help="why, for the history")

    def handle(self, *args: object, todo: str, **options: Any) -> None:
        rulebook.learn_time()
        try:
            with history.editing(shell_user(), "command", options.get("reason", "")):
                {"add": self.add, "list": self.list, "end": self.end}[todo](options)
        except DatabaseError as error:
            fault = gettext(
                "the overrides in the database cannot be used: {advice}", advice=sources.failure_text(error)
            )
            raise CommandError(fault) from error

    def add(self, options: dict[str, Any]) -> None:
        """Check it as the admin does, and put it in force."""
        rules = sources.rules()
        if wrong := misspelt(options["rules"], rules):
            raise CommandError("\n".join(wrong))
        given = options["value"]  # - is for an API key, which a shell's history must not contain
        row = ThrottleOverride(
            kind=options["kind"],
            value=sys.stdin.readline().strip() if given == "-" else given,
            rules=",".join(options["rules"]),
            reason=options["reason"],
            until=_until(options),
            created_by=shell_user(),
            **_effect(options),
        )
        try:
            row.full_clean()
        except ValidationError as error:
            labels = {field.name: field.verbose_name for field in row._meta.fields}
            wrong = [with_label(labels.get(one, ""), text) for one, told in error.message_dict.items() for text in told]
            raise CommandError("\n".join(wrong)) from error
        row.save()
        self.stdout.write(self.style.SUCCESS(_line(row)))
        for warning in override_warnings(row, rules):
            self.stderr.write(self.style.WARNING(warning))

    def list(self, options: dict[str, Any]) -> None:
        """The newest first."""
        found = ThrottleOverride.objects.using(sources.alias())
        rows = list(found.all() if options["all"] else found.in_force())
        for row in rows:
            self.stdout.write(_line(row))
        if not rows:
            none = gettext("There are no overrides.") if options["all"] else gettext("No override is in force.")
            self.stdout.write(none)

    def end(self, options: dict[str, Any]) -> None:
        """End those that are in force; any other number is an error, and then none is ended."""
        found = ThrottleOverride.objects.using(sources.alias()).in_force()
        rows = {row.pk: row for row in found.filter(pk__in=options["numbers"])}
        if missing := [str(number) for number in options["numbers"] if number not in rows]:
            raise CommandError(gettext("nothing was ended: {numbers} is not in force", numbers=", ".join(missing)))
        found.filter(pk__in=rows).update(until=shared_now())
        for row in rows.values():
            self.stdout.write(gettext("ended: {line}", line=_line(row)))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ArgumentTypeError(f"the number of an override, as the list has it, not {text[:60]!r}")
    return int(text)


def _effect(options: dict[str, Any]) -> dict[str, Any]:
    multiplies, replaces = options["times"] is not None, options["rate"] or options["limit"] is not None
    chosen = {"block": options["block"], "exempt": options["exempt"], "multiply": multiplies, "replace": replaces}
    effects = [effect for effect, is_chosen in chosen.items() if is_chosen]
    if len(effects) != 1:
        raise CommandError(gettext("say what happens: one of --block, --exempt, --times, or --rate and --limit"))
    return {"effect": effects[0], "factor": options["times"], "rate": options["rate"], "limit": options["limit"]}


def _until(options: dict[str, Any]) -> datetime | None:
    if options["endless"]:
        return None
    now = shared_now()
    if options["until"] is None:
        return now + timedelta(seconds=_seconds(options["lasting"]))
    try:
        found = parse_datetime(options["until"])
    except ValueError:
        found = None
    if found is None:
        raise CommandError(gettext("{given!r} is not a moment: write 2030-01-31T18:00", given=options["until"]))
    if timezone.is_naive(found) and timezone.is_aware(now):
        found = timezone.make_aware(found)
    if found <= now:
        raise CommandError(gettext("{moment} has passed", moment=found))
    return found


def _seconds(lasting: str) -> float:
    """The seconds of a duration, which is written as the window of a rate is."""
    try:
        return Rate.parse(f"1/{lasting}").window
    except InvalidRate as error:
        fault = gettext("{lasting!r} is not a duration of 366 days at most: write 30m, 2h or 1d", lasting=lasting)
        raise CommandError(fault) from error


def _line(row: ThrottleOverride) -> str:
    return printable(f"{row.pk}  {row.named()}: {row.terms}")
