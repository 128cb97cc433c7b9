"""Says what each rule did in the last day, and whether all processes have the same rules in force."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from django_throttle.exceptions import StoreError
from django_throttle.management import remote_store, rules_in_force
from django_throttle.observe.reports import plain, printable
from django_throttle.recording.overview import overview, rule_names

USUAL: Final = 50


class Command(BaseCommand):
    """The admin's page of rules at work, for a shell."""

    help = "Print what each rule decided in the last day, and which processes lag behind or are silent."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--search", default="", help="only rules whose name contains this")
        parser.add_argument("--most", type=int, default=USUAL, help=f"rules that are listed (default {USUAL})")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, search: str, most: int, **options: Any) -> None:
        if most < 1:
            raise CommandError(f"--most is a number of rules, from 1, not {most}")
        try:
            store = remote_store("only each process knows what it decided; see the page of rules at work there.")
            rules_in_force()
            found = overview(store, rule_names(search)[:most])
        except StoreError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        if options["json"]:
            self.stdout.write(json.dumps(found.as_json(), indent=2))
            return
        self.stdout.write(f"{found.in_words}. Slots held: {found.connections}.")
        self.stdout.write(found.store_in_words)
        for each in found.dampers:
            self.stdout.write(f"Damper {each.rule!r} refuses {each.percent} of the calls of {plain(each.tag)}.")
        for one in found.rules:
            figures = f"{one.day.calls:,} calls, {one.refused_share:.1%} refused, 99 % decided in {one.p99_ms:.2f} ms"
            figures = figures if one.day.calls else "no calls"
            self.stdout.write(printable(" ".join([f"{one.name!r}: {figures} in the last day.", *one.hints])))
