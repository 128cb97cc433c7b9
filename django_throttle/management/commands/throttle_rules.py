"""manage.py throttle_rules: list, check, export and import rules, and print their log."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, IntegrityError, transaction

from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.texts import gettext_noop, listed, translatable, with_commas
from django_throttle.management import (
    ShellCommand,
    check_found,
    printable,
    rules_file,
    shell_user,
    subcommands,
    unreadable,
)
from django_throttle.management.rules_file import Diff, compare
from django_throttle.models import ThrottleChange, ThrottleRule
from django_throttle.models.fields import is_text
from django_throttle.rulebook import history, sources
from django_throttle.rulebook.history.edits import lock_rows
from django_throttle.rulebook.sources import Reading
from django_throttle.translated import gettext, ngettext, translated

MOST_LINES: Final = 50


class Command(ShellCommand):
    """Each subcommand is one method below."""

    help = "List, check, export and import rules, and say who changed what."
    requires_system_checks: list[str] = []  # they end at a bad rule of settings, before this says what is wrong

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--skip-checks", action="store_true", help="of check: do not run Django's checks")
        subcommand = subcommands(parser, "list|check|export|import|log")
        subcommand("list", "print what each rule means, in words, and where it comes from")
        subcommand("check", "exit with status 1 when a rule is invalid, naming it")
        export = subcommand("export", "write the database's rules as JSON")
        export.add_argument("--output", metavar="FILE", help="write to this file (default standard output)")
        export.add_argument("--all", action="store_true", help="also the rules that only settings have")
        take = subcommand(
            "import",
            "read rules from JSON into the database, all or none",
            "A rule is replaced as a whole: an option that the file leaves out goes back to its default. Rules that "
            "are not in it stay as they are.",
        )
        take.add_argument("file", help='what "export" wrote; - is standard input')
        take.add_argument("--dry-run", action="store_true", help="only show what would change")
        take.add_argument("--replace", action="store_true", help="delete the database's rules that are not in the file")
        take.add_argument("--reason", default="", help="why, for the history")
        log = subcommand("log", "print who changed what, when and why, the newest first")
        log.add_argument("name", nargs="?", help="of this rule alone")
        log.add_argument("--most", type=_positive, default=MOST_LINES, metavar="N", help=f"lines; else {MOST_LINES}")
        log.add_argument("--json", action="store_true", help="as JSON, with the columns before and after")

    def handle(self, *args: object, todo: str, **options: Any) -> None:
        do = {
            "list": self.list, "check": self.check_rules, "export": self.export, "import": self.import_rules,
            "log": self.log,
        }[todo]  # fmt: skip
        try:
            with history.editing(shell_user(), "import", options.get("reason", "")):
                do(options)
        except DatabaseError as error:
            raise unreadable(error) from error

    def list(self, options: dict[str, Any]) -> None:
        """One line for each rule in force or suspended, then what is skipped."""
        reading = _rules_read()
        rules = sorted(reading.rules, key=attrgetter("name"))
        rows = [(rule.name, _source(rule, reading), translated(describe(rule))) for rule in rules]
        widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        for name, source, words in rows:
            self.stdout.write(f"{name:<{widths[0]}}  {source:<{widths[1]}}  {words}")
        for source, name, fault in sorted(reading.faults):
            said = gettext("{name} ({source}) is skipped: {fault}", name=name, source=translatable(source), fault=fault)
            self.stderr.write(said)
        if not rows:
            self.stdout.write(gettext("There are no rules."))
        if conf().SHADOW:
            self.stderr.write(gettext("SHADOW is on in the settings: rules only record, and nothing is refused"))

    def check_rules(self, options: dict[str, Any]) -> None:
        """Print what is wrong with each invalid rule; fail when there is one, or when Django's checks do."""
        reading = _rules_read()
        for source, name, fault in sorted(reading.faults):
            said = gettext("{name} ({source}): {fault}", name=name, source=translatable(source), fault=fault)
            self.stderr.write(said)
        if reading.faults:
            wrong = ngettext("{count} rule cannot be used", "{count} rules cannot be used", len(reading.faults))
            raise CommandError(wrong)
        if not options["skip_checks"]:
            self.check()
        self.stdout.write(ngettext("{count} rule, nothing wrong", "{count} rules, nothing wrong", len(reading.rules)))

    def export(self, options: dict[str, Any]) -> None:
        """Write the database's rules; the file can be imported, or pasted into settings."""
        others = sources.from_settings().rules.values() if options["all"] else ()
        text = rules_file.dump(ThrottleRule.objects.all(), others)
        if not options["output"]:
            self.stdout.write(text, ending="")
            return
        try:
            Path(options["output"]).write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            fault = gettext("cannot write {name!r}: {why}", name=options["output"], why=_why(error))
            raise CommandError(fault) from error

    def import_rules(self, options: dict[str, Any]) -> None:
        """Show what changes, and change it in one transaction."""
        try:
            wanted = rules_file.load(_file_content(options["file"]))
        except rules_file.InvalidFile as error:
            raise CommandError("\n".join((gettext("nothing was imported:"), *map(translated, error.faults)))) from error
        try:
            with transaction.atomic(using=sources.alias()):
                present = {row.name: row for row in lock_rows(ThrottleRule.objects.all())}
                diff = compare(present, wanted, replace=options["replace"])
                if not options["dry_run"]:
                    diff.apply()
        except IntegrityError as error:
            if not (alike := _equal_but_for_case({*present, *(row.name for row in wanted)})):
                raise
            pattern = gettext_noop("nothing was imported: {alike} are one name to this database, which ignores case")
            raise CommandError(gettext(pattern, alike=alike)) from error
        self._print_changes(diff, dry_run=options["dry_run"])

    def log(self, options: dict[str, Any]) -> None:
        """One line for each edit, with the time, who, what and why."""
        rows = ThrottleChange.objects.using(sources.alias())
        if options["name"] is not None:
            rows = rows.filter(name=options["name"]) if is_text(options["name"]) else rows.none()
        found = list(rows[: options["most"]])
        check_found(found, options["name"])
        if options["json"]:
            self.stdout.write(json.dumps([row.as_json() for row in found], indent=2))
            return
        for row in found:
            self.stdout.write(printable(row.sentence()))
        if not found:
            self.stdout.write(gettext("Nothing was changed."))

    def _print_changes(self, diff: Diff, *, dry_run: bool) -> None:
        paint = {"+": self.style.SUCCESS, "-": self.style.ERROR, "~": self.style.WARNING}
        for line in diff.lines():
            self.stdout.write(paint.get(line[0], str)(line))
        summary = diff.summary()
        self.stdout.write(gettext("{summary} (dry run: nothing was written)", summary=summary) if dry_run else summary)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise ArgumentTypeError(f"a whole number from 1, not {text[:60]!r}")
    return int(text)


def _rules_read() -> Reading:
    reading = sources.read()
    if reading.failure is not None:
        raise unreadable(reading.failure) from reading.failure
    return reading


def _equal_but_for_case(names: Iterable[str]) -> str:
    """The names that differ in case alone, for a message; empty where there are none."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(name.casefold(), []).append(repr(name))
    return with_commas([listed(group) for group in groups.values() if len(group) > 1])


def _file_content(name: str) -> bytes:
    """The content of the file, at most one byte more than the most that is read."""
    try:
        if name == "-":
            return sys.stdin.buffer.read(rules_file.MAX_BYTES + 1)
        with Path(name).open("rb") as opened:
            return opened.read(rules_file.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise CommandError(gettext("cannot read {name!r}: {why}", name=name, why=_why(error))) from error


def _why(error: OSError | ValueError) -> str:
    odd = gettext("a path cannot contain such characters")
    return error.strerror or str(error) if isinstance(error, OSError) else odd


def _source(rule: Rule, reading: Reading) -> str:
    if rule.name not in reading.database.rules:
        added = (name for name, source in reading.added.items() if rule.name in source.rules)
        return next(added, gettext("settings"))
    return gettext("database, replaces settings") if rule.name in reading.settings.rules else gettext("database")
