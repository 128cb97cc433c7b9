"""manage.py throttle_explain: says what would happen to a call of somebody now, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Final

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_throttle.checks.project import site_scopes
from django_throttle.core.option_words import CALLS_IN_WORDS
from django_throttle.core.options import did_you_mean
from django_throttle.core.scopes import EVERYWHERE, matches, split_scopes
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.explain.predict import REASONS, VERDICTS, Explanation, in_short, with_assumption
from django_throttle.explain.why_refused import CallerExplanation, explain_caller
from django_throttle.management import ShellCommand, printable, rules_in_force
from django_throttle.rulebook.coverage import HypotheticalCall
from django_throttle.stores import get_store
from django_throttle.translated import gettext, local, ngettext, translated

ANSWER_SECONDS: Final = 2.0  # in which every process should have said what it has open


class Command(ShellCommand):
    """The admin's page "Why is a caller refused?", for a shell; it changes nothing."""

    help = "Print which rules count a caller's next call, how much of each is used, and whether it would pass."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ident", help="user:42, ip:203.0.113.9, a user's name, or the 8 characters of a log line")
        parser.add_argument("--scope", default="", help="throttle_scope of a view, or its route's name (default any)")
        parser.add_argument("--method", default="", help="of an HTTP request, such as POST (default any)")
        parser.add_argument("--event", default="", help="what happens, such as request or message (default any)")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, ident: str, scope: str, method: str, event: str, **options: object) -> None:
        try:
            call = HypotheticalCall(scope, method.strip().upper(), event)
            found = explain_caller(get_store(), rules_in_force(), call, ident, wait=ANSWER_SECONDS)
        except ValidationError as error:
            raise CommandError("\n".join(map(printable, error.messages))) from error
        except (InvalidSetting, ValueError) as error:
            raise CommandError(printable(translated(error))) from error
        except DatabaseError as error:
            raise CommandError(gettext("users cannot be looked up: {error}", error=error)) from error
        except StoreError as error:
            raise CommandError(gettext("Redis does not answer, so nobody knows: {error}", error=error)) from error
        if scope and (near := _nearest(scope)):
            self.stderr.write(gettext("nothing has the scope {scope!r}{near}", scope=scope, near=near))
        if options["json"]:
            self.stdout.write(json.dumps(found.as_json(), indent=2))
            return
        for line in _lines(found):
            self.stdout.write(printable(line))


def _nearest(scope: str) -> str:
    """The scope that was meant, as the end of a message; empty where the site or a rule has this one, or a pattern."""
    rules = rules_in_force().rules
    patterns = chain.from_iterable(chain(*split_scopes(rule.scopes)) for rule in rules)
    known = {*site_scopes(), *(rule.name for rule in rules), *patterns} - {EVERYWHERE}
    return "" if matches(known, scope) else did_you_mean(scope, known)


def _lines(found: CallerExplanation) -> Iterator[str]:
    yield translated(found.sentence)
    if found.explanation is not None:
        yield from _rules(found.explanation)
    for row in found.rows:
        told = {"number": row.pk, "subject": row.named(), "terms": row.terms}
        yield "  " + gettext("override {number} for {subject}: {terms}", **told)
    for times, one in found.refusal_groups:
        calls = CALLS_IN_WORDS[one.event](times) if one.event in CALLS_IN_WORDS else one.event
        told = {"calls": calls, "scope": one.scope, "rule": one.rule, "at": local(one.at)}
        yield "  " + ngettext(
            "{verdict}: {calls} to {scope} by rule {rule!r} ({reason}), {at:%Y-%m-%d %H:%M:%S %Z}",
            "{verdict}: {calls} to {scope} by rule {rule!r} ({reason}), last {at:%Y-%m-%d %H:%M:%S %Z}",
            times,
            verdict=VERDICTS.get(one.outcome, one.outcome),
            reason=REASONS.get(one.reason, one.reason),
            **told,
        )
    if found.open:
        yield "  " + gettext("open sockets: {count:,}", count=found.open)


def _rules(told: Explanation) -> Iterator[str]:
    for one in told.rules:
        why = one.why
        if one.outcome.window:
            why = gettext("{why}, counted over {window:g} s", why=why, window=one.outcome.window)
        if one.outcome.reset_after:
            why = gettext("{why}, full again in {time}", why=why, time=in_short(one.outcome.reset_after))
        why = with_assumption(why, one.counting.assumed)
        yield f"  {translated(VERDICTS[one.verdict]):8} {one.outcome.rule}: {translated(why)}"
    for other in told.others:
        yield f"  {'?' if other.is_doubtful else '-'}        {other.rule.name}: {translated(other.why)}"
