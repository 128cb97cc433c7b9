"""manage.py throttle_overview: print the decisions of each rule in the last day, and the state of the processes."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Final

from django_throttle.console.recording.overview import overview, rule_names
from django_throttle.core.texts import gettext_noop, translatable
from django_throttle.management import ShellCommand, add_most, current_rules, remote_store
from django_throttle.observe.reports import plain, printable
from django_throttle.translated import gettext, joined, translated

IN_MEMORY: Final = translatable("only each process knows what it decided; see the page of rules at work there.")


class Command(ShellCommand):
    """Command that prints the admin's page of rules at work."""

    help = "Print what each rule decided in the last day, the one that refused most first, and the state of processes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--search", default="", help="only rules whose name contains this")
        add_most(parser, "rules", 50)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, search: str, most: int, **options: object) -> None:
        store = remote_store(IN_MEMORY)
        current_rules()  # wait for them
        totals = overview(store, rule_names(store, search)[:most])
        if options["json"]:
            self.stdout.write(json.dumps(totals.as_json(), indent=2))
            return
        pattern = gettext_noop("{processes}. Slots held: {slots}.")
        self.stdout.write(gettext(pattern, processes=totals.in_words, slots=totals.connections))
        self.stdout.write(translated(totals.store_in_words))
        for damper in totals.dampers:
            pattern = gettext_noop("Damper {rule!r} refuses {percent} of the calls of {caller}.")
            caller = plain(damper.tag)
            self.stdout.write(gettext(pattern, rule=damper.rule, percent=damper.percent, caller=caller))
        for rule in totals.rules:
            self.stdout.write(printable(joined([rule.in_words, *rule.hints])))
