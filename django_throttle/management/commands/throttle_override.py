"""manage.py throttle_override: add, list and end overrides."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, transaction
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
from django_throttle.rulebook.history.edits import lock_rows
from django_throttle.translated import gettext, with_label

DEFAULT_DURATION: Final = "2h"


class Command(ShellCommand):
    """Command with a method for each subcommand."""

    help = "Add, list and end overrides: other limits, or a block, for one user, address, group, API key or tenant."
    requires_system_checks = "__all__"

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
        end.add_argument(
            "--for",
            dest="duration",
            default=DEFAULT_DURATION,
            metavar="TIME",
            help=f"such as 30m; else {DEFAULT_DURATION}",
        )
        end.add_argument("--until", metavar="MOMENT", help="such as 2030-01-31T18:00")
        end.add_argument("--endless", action="store_true", help="until somebody ends it")
        add.add_argument("--reason", required=True, help="why, for whoever reads it next")
        list_ = subcommand("list", "print the overrides in force, a line each, with their numbers")
        list_.add_argument("--all", action="store_true", help="also those that have ended")
        end_now = subcommand("end", "end some overrides now")
        end_now.add_argument("numbers", nargs="+", type=_number, metavar="NUMBER", help="what list prints before each")
        end_now.add_argument("--reason", default="", help="why, for the history")

    def handle(self, *args: object, subcommand: str, **options: Any) -> None:
        rulebook.learn_time()
        try:
            with history.editing(shell_user(), "command", options.get("reason", "")):
                {"add": self.add, "list": self.list, "end": self.end}[subcommand](options)
        except DatabaseError as error:
            fault = gettext(
                "the overrides in the database cannot be used: {advice}", advice=sources.failure_text(error)
            )
            raise CommandError(fault) from error

    def add(self, options: dict[str, Any]) -> None:
        """Validate an override as the admin does, and save it."""
        rules = sources.rules()
        if wrong := misspelt(options["rules"], rules):
            raise CommandError("\n".join(wrong))
        value = options["value"]
        if value == "-":  # for an API key, which the history of a shell must not contain
            value = sys.stdin.readline().strip()
        row = ThrottleOverride(
            kind=options["kind"],
            value=value,
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
            faults = [
                with_label(labels.get(name, ""), text) for name, texts in error.message_dict.items() for text in texts
            ]
            raise CommandError("\n".join(faults)) from error
        row.save()
        self.stdout.write(self.style.SUCCESS(_line(row)))
        for warning in override_warnings(row, rules):
            self.stderr.write(self.style.WARNING(warning))

    def list(self, options: dict[str, object]) -> None:
        """Print a line for each override, the newest first."""
        overrides = ThrottleOverride.objects.using(sources.alias())
        rows = list(overrides.all() if options["all"] else overrides.in_force())
        for row in rows:
            self.stdout.write(_line(row))
        if not rows:
            message = gettext("There are no overrides.") if options["all"] else gettext("No override is in force.")
            self.stdout.write(message)

    def end(self, options: dict[str, Any]) -> None:
        """End overrides. Raise CommandError, and end none, if one of them is not in force."""
        overrides = ThrottleOverride.objects.using(sources.alias()).filter(pk__in=options["numbers"])
        with transaction.atomic(using=sources.alias()):
            rows = {row.pk: row for row in lock_rows(overrides) if row.lasts()}
            if missing := [str(number) for number in options["numbers"] if number not in rows]:
                raise CommandError(gettext("nothing was ended: {numbers} is not in force", numbers=", ".join(missing)))
            overrides.update(until=shared_now())
        for row in rows.values():
            self.stdout.write(gettext("ended: {line}", line=_line(row)))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ArgumentTypeError(f"the number of an override, as the list has it, not {text[:60]!r}")
    return int(text)


def _effect(options: dict[str, object]) -> dict[str, Any]:
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
        return now + timedelta(seconds=_seconds(options["duration"]))
    try:
        until = parse_datetime(options["until"])
    except ValueError:
        until = None
    if until is None:
        raise CommandError(gettext("{given!r} is not a moment: write 2030-01-31T18:00", given=options["until"]))
    if timezone.is_naive(until) and timezone.is_aware(now):
        until = timezone.make_aware(until)
    if until <= now:
        raise CommandError(gettext("{moment} has passed", moment=until))
    return until


def _seconds(duration: str) -> float:
    """Return the seconds of a duration in the notation of a rate's window."""
    try:
        return Rate.parse(f"1/{duration}").window
    except InvalidRate as error:
        fault = gettext("{lasting!r} is not a duration of 366 days at most: write 30m, 2h or 1d", lasting=duration)
        raise CommandError(fault) from error


def _line(row: ThrottleOverride) -> str:
    return printable(f"{row.pk}  {row.named()}: {row.terms}")
