"""manage.py throttle_candidates: compare candidates with their live rules."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Final

from django.db import DatabaseError

from django_throttle.console.models import ThrottleCandidate
from django_throttle.console.recording.read import compare_candidate
from django_throttle.core.texts import translatable
from django_throttle.local.shared_clock import shared_now
from django_throttle.management import ShellCommand, check_found, remote_store, unreadable
from django_throttle.models.fields import is_text
from django_throttle.rulebook import sources
from django_throttle.translated import gettext

IN_MEMORY: Final = translatable("only each process knows what it decided; see the page of candidates there.")


class Command(ShellCommand):
    """Command that prints the admin's comparison of each candidate."""

    help = "Compare each candidate with its live rule, over the last hour."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", help="of this rule alone")
        parser.add_argument("--json", action="store_true", help="print JSON, with the refusals by minute")

    def handle(self, *, name: str | None, **options: object) -> None:
        store = remote_store(IN_MEMORY)
        now, rows = shared_now(), ThrottleCandidate.objects.using(sources.alias())
        if name is not None:
            rows = rows.filter(name=name) if is_text(name) else rows.none()
        try:
            comparisons = [(row, compare_candidate(store, row.name, row.since, now)) for row in rows]
            check_found(comparisons, name)
        except DatabaseError as error:
            raise unreadable(error) from error
        if options["json"]:
            rows_as_json = [{**row.as_json(), **comparison.as_json()} for row, comparison in comparisons]
            self.stdout.write(json.dumps(rows_as_json, indent=2))
            return
        for row, comparison in comparisons:
            candidate = {"name": row.name, "meaning": row.meaning, "share": row.share or 0}
            self.stdout.write(gettext("{name}: {meaning}, enforced for {share:.6g} of all", **candidate))
            for label, figure in comparison.rows():
                self.stdout.write("  " + gettext("{name}: {figure}", name=label, figure=figure))
        if not comparisons:
            self.stdout.write(gettext("There are no candidates."))
