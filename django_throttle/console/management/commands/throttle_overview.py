"""Says what each rule did in the last day, and whether all processes have the same rules in force."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Final

from django.core.management.base import CommandError

from django_throttle.console.recording.overview import overview, rule_names
from django_throttle.core.texts import translatable
from django_throttle.management import ShellCommand, current_rules, remote_store
from django_throttle.observe.reports import plain, printable
from django_throttle.translated import gettext, joined, translated

USUAL: Final = 50
ELSEWHERE: Final = translatable("only each process knows what it decided; see the page of rules at work there.")


class Command(ShellCommand):
    """The admin's page of rules at work, for a shell."""

    help = "Print what each rule decided in the last day, the one that refused most first, and the state of processes."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--search", default="", help="only rules whose name contains this")
        parser.add_argument("--most", type=int, default=USUAL, help=f"rules that are listed (default {USUAL})")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, search: str, most: int, **options: object) -> None:
        if most < 1:
            raise CommandError(gettext("--most is a number of rules, from 1, not {most}", most=most))
        store = remote_store(ELSEWHERE)
        current_rules()
        found = overview(store, rule_names(store, search)[:most])
        if options["json"]:
            self.stdout.write(json.dumps(found.as_json(), indent=2))
            return
        said = gettext("{processes}. Slots held: {slots}.", processes=found.in_words, slots=found.connections)
        self.stdout.write(said)
        self.stdout.write(translated(found.store_in_words))
        for each in found.dampers:
            told = {"rule": each.rule, "percent": each.percent, "caller": plain(each.tag)}
            self.stdout.write(gettext("Damper {rule!r} refuses {percent} of the calls of {caller}.", **told))
        for one in found.rules:
            self.stdout.write(printable(joined([one.in_words, *one.hints])))
