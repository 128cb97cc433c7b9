"""manage.py throttle_explain: predict the decision about a caller's next call, and explain it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_throttle.checks.scopes import fault_of_scope
from django_throttle.core.option_words import CALLS_IN_WORDS
from django_throttle.core.texts import gettext_noop
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.explain.predict import REASONS, VERDICTS, Explanation, in_short, with_assumption
from django_throttle.explain.why_refused import CallerExplanation, explain_caller
from django_throttle.management import ShellCommand, current_rules, printable
from django_throttle.models.ident_rows import row_texts
from django_throttle.rulebook.coverage import HypotheticalCall
from django_throttle.stores import get_store
from django_throttle.translated import gettext, local, ngettext, translated

ANSWER_SECONDS: Final = 2.0  # time for processes with sockets to answer


class Command(ShellCommand):
    """Command that prints the admin's page "Why is a caller refused?"."""

    help = "Print which rules count a caller's next call, how much of each is used, and whether it would pass."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ident", help="user:42, ip:203.0.113.9, a user's name, or a reference of 8 characters")
        parser.add_argument("--scope", default="", help="throttle_scope of a view, or its route's name (default any)")
        parser.add_argument("--method", default="", help="of an HTTP request, such as POST (default any)")
        parser.add_argument("--event", default="", help="what happens, such as request or message (default any)")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, ident: str, scope: str, method: str, event: str, **options: object) -> None:
        try:
            call = HypotheticalCall(scope, method.strip().upper(), event)
            explanation = explain_caller(get_store(), current_rules(), call, ident, wait=ANSWER_SECONDS)
        except ValidationError as error:
            raise CommandError("\n".join(map(printable, error.messages))) from error
        except (InvalidSetting, ValueError) as error:
            raise CommandError(printable(translated(error))) from error
        except DatabaseError as error:
            raise CommandError(gettext("users cannot be looked up: {error}", error=error)) from error
        except StoreError as error:
            raise CommandError(gettext("Redis does not answer, so nobody knows: {error}", error=error)) from error
        if fault := fault_of_scope(call, current_rules().rules):
            self.stderr.write(printable(translated(fault)))
        if options["json"]:
            self.stdout.write(json.dumps(explanation.as_json(), indent=2))
            return
        for line in _lines(explanation):
            self.stdout.write(printable(line))


def _lines(caller: CallerExplanation) -> Iterator[str]:
    yield translated(caller.sentence)
    if caller.explanation is not None:
        yield from (f"  {text}" for text in row_texts([caller.explanation.caller.name]).values())
        yield from _rule_lines(caller.explanation)
    for row in caller.rows:
        pattern = gettext_noop("override {number} for {subject}: {terms}")
        yield "  " + gettext(pattern, number=row.pk, subject=row.named(), terms=row.terms)
    for times, refusal in caller.refusal_groups:
        event = refusal.event
        yield "  " + ngettext(
            "{verdict}: {calls} to {scope} by rule {rule!r} ({reason}), {at:%Y-%m-%d %H:%M:%S %Z}",
            "{verdict}: {calls} to {scope} by rule {rule!r} ({reason}), last {at:%Y-%m-%d %H:%M:%S %Z}",
            times,
            verdict=VERDICTS.get(refusal.outcome, refusal.outcome),
            calls=CALLS_IN_WORDS[event](times) if event in CALLS_IN_WORDS else event,
            scope=refusal.scope,
            rule=refusal.rule,
            reason=REASONS.get(refusal.reason, refusal.reason),
            at=local(refusal.at),
        )
    if caller.open:
        yield "  " + gettext("open sockets: {count:,}", count=caller.open)


def _rule_lines(explanation: Explanation) -> Iterator[str]:
    for state in explanation.rules:
        reason, outcome = state.why, state.outcome
        if outcome.window:
            reason = gettext("{why}, counted over {window}", why=reason, window=in_short(outcome.window))
        if outcome.reset_after:
            reason = gettext("{why}, full again in {time}", why=reason, time=in_short(outcome.reset_after))
        reason = with_assumption(reason, state.counting.assumed)
        yield f"  {translated(VERDICTS[state.verdict]):8} {outcome.rule}: {translated(reason)}"
    for other in explanation.others:
        yield f"  {'?' if other.is_doubtful else '-'}        {other.rule.name}: {translated(other.why)}"
