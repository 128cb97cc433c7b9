"""manage.py throttle_rules: list, check, export and import rules, and print their log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, IntegrityError, transaction

from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.texts import gettext_noop, listed, translatable, with_commas
from django_throttle.management import (
    ShellCommand,
    add_most,
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


class Command(ShellCommand):
    """Command with a method for each subcommand."""

    help = "List, check, export and import rules, and say who changed what."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--skip-checks", action="store_true", help="of check: do not run Django's checks")
        subcommand = subcommands(parser, "list|check|export|import|log")
        subcommand("list", "print what each rule means, in words, and where it comes from")
        subcommand("check", "exit with status 1 when a rule is invalid, naming it")
        export = subcommand("export", "write the database's rules as JSON")
        export.add_argument("--output", metavar="FILE", help="write to this file (default standard output)")
        export.add_argument("--all", action="store_true", help="also the rules that only settings have")
        import_ = subcommand(
            "import",
            "read rules from JSON into the database, all or none",
            "A rule is replaced as a whole: an option that the file leaves out goes back to its default. Rules that "
            "are not in it stay as they are.",
        )
        import_.add_argument("file", help='what "export" wrote; - is standard input')
        import_.add_argument("--dry-run", action="store_true", help="only show what would change")
        import_.add_argument(
            "--replace", action="store_true", help="delete the database's rules that are not in the file"
        )
        import_.add_argument("--reason", default="", help="why, for the history")
        log = subcommand("log", "print who changed what, when and why, the newest first")
        log.add_argument("name", nargs="?", help="of this rule alone")
        add_most(log, "lines", 50)
        log.add_argument("--json", action="store_true", help="as JSON, with the columns before and after")

    def handle(self, *args: object, subcommand: str, **options: Any) -> None:
        run = {
            "list": self.list, "check": self.check_rules, "export": self.export, "import": self.import_rules,
            "log": self.log,
        }[subcommand]  # fmt: skip
        try:
            with history.editing(shell_user(), "import", options.get("reason", "")):
                run(options)
        except DatabaseError as error:
            raise unreadable(error) from error

    def list(self, options: dict[str, object]) -> None:
        """Print a line for each rule, enabled or not, and a line for each invalid rule."""
        reading = _read_rules()
        rules = sorted(reading.rules, key=attrgetter("name"))
        rows = [(rule.name, _source(rule, reading), translated(describe(rule))) for rule in rules]
        widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        for name, source, words in rows:
            self.stdout.write(f"{name:<{widths[0]}}  {source:<{widths[1]}}  {words}")
        for source, name, fault in sorted(reading.faults):
            pattern = gettext_noop("{name} ({source}) is skipped: {fault}")
            self.stderr.write(gettext(pattern, name=name, source=translatable(source), fault=fault))
        if not rows:
            self.stdout.write(gettext("There are no rules."))
        if conf().SHADOW:
            self.stderr.write(gettext("SHADOW is on in the settings: rules only record, and nothing is refused"))

    def check_rules(self, options: dict[str, object]) -> None:
        """Print the fault of each invalid rule. Raise CommandError if there is one, or if Django's checks fail."""
        reading = _read_rules()
        for source, name, fault in sorted(reading.faults):
            self.stderr.write(
                gettext("{name} ({source}): {fault}", name=name, source=translatable(source), fault=fault)
            )
        if reading.faults:
            message = ngettext("{count} rule cannot be used", "{count} rules cannot be used", len(reading.faults))
            raise CommandError(message)
        if not options["skip_checks"]:
            self.check()
        self.stdout.write(ngettext("{count} rule, nothing wrong", "{count} rules, nothing wrong", len(reading.rules)))

    def export(self, options: dict[str, Any]) -> None:
        """Write the database's rules to a file, which can be imported, or pasted into settings."""
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
        """Write the rules of a file in one transaction, and print the changes."""
        try:
            rows = rules_file.load(_file_content(options["file"]))
        except rules_file.InvalidFile as error:
            raise CommandError("\n".join((gettext("nothing was imported:"), *map(translated, error.faults)))) from error
        try:
            with transaction.atomic(using=sources.alias()):
                existing = {row.name: row for row in lock_rows(ThrottleRule.objects.all())}
                diff = compare(existing, rows, replace=options["replace"])
                if not options["dry_run"]:
                    diff.apply()
        except IntegrityError as error:
            if not (alike := _equal_but_for_case({*existing, *(row.name for row in rows)})):
                meanwhile = gettext("nothing was imported: a rule of the same name was added meanwhile; import again")
                raise CommandError(meanwhile) from error
            pattern = gettext_noop("nothing was imported: {alike} are one name to this database, which ignores case")
            raise CommandError(gettext(pattern, alike=alike)) from error
        self._print_changes(diff, dry_run=options["dry_run"])

    def log(self, options: dict[str, Any]) -> None:
        """Print a line for each edit, with its time, editor, changes and reason."""
        rows = ThrottleChange.objects.using(sources.alias())
        if options["name"] is not None:
            rows = rows.filter(name=options["name"]) if is_text(options["name"]) else rows.none()
        changes = list(rows[: options["most"]])
        check_found(changes, options["name"])
        if options["json"]:
            self.stdout.write(json.dumps([change.as_json() for change in changes], indent=2))
            return
        for change in changes:
            self.stdout.write(printable(change.sentence()))
        if not changes:
            self.stdout.write(gettext("Nothing was changed."))

    def _print_changes(self, diff: Diff, *, dry_run: bool) -> None:
        styles = {"+": self.style.SUCCESS, "-": self.style.ERROR, "~": self.style.WARNING}
        for line in diff.lines():
            self.stdout.write(styles.get(line[0], str)(line))
        summary = diff.summary()
        self.stdout.write(gettext("{summary} (dry run: nothing was written)", summary=summary) if dry_run else summary)


def _read_rules() -> Reading:
    reading = sources.read()
    if reading.failure is not None:
        raise unreadable(reading.failure) from reading.failure
    return reading


def _equal_but_for_case(names: Iterable[str]) -> str:
    """Return the names that differ only in case, as a list in words. Return "" if there are none."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(name.casefold(), []).append(repr(name))
    return with_commas([listed(group) for group in groups.values() if len(group) > 1])


def _file_content(name: str) -> bytes:
    """Return the content of the file, at most one byte more than MAX_BYTES."""
    try:
        if name == "-":
            return sys.stdin.buffer.read(rules_file.MAX_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(rules_file.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise CommandError(gettext("cannot read {name!r}: {why}", name=name, why=_why(error))) from error


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return gettext("a path cannot contain such characters")


def _source(rule: Rule, reading: Reading) -> str:
    if rule.name not in reading.database.rules:
        added = (name for name, source in reading.added.items() if rule.name in source.rules)
        return next(added, gettext("settings"))
    return gettext("database, replaces settings") if rule.name in reading.settings.rules else gettext("database")
