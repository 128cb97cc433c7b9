"""manage.py throttle_backtest: replay an access log, or recorded calls, under rules, and print their refusals."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError

from django_throttle.console.access_log import AccessLog, read
from django_throttle.console.backtest import (
    SPANS,
    RecordedCaller,
    Replayed,
    recorded_calls,
    replay,
    why_not,
    without_calls,
    without_statuses,
)
from django_throttle.core.rule import Rule
from django_throttle.core.texts import gettext_noop, with_commas
from django_throttle.management import ShellCommand, add_most, rules_file
from django_throttle.observe.reports import plain
from django_throttle.translated import gettext, ngettext, translated

REDRAW_SECONDS: Final = 0.2
ESTIMATE_FIELDS: Final = ("refused", "low", "high")


class Command(ShellCommand):
    """Command that counts in memory. It sends nothing to Redis, and changes nothing of the site."""

    help = (
        "Replay an access log, or what this site has recorded, under rules that need not be in force: print how many "
        "calls each would have refused, and whose. Rules are read as `throttle_rules export` writes them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("rules", metavar="RULES.json", help='such as {"api": {"rate": "100/min", "key": "ip"}}')
        calls = parser.add_mutually_exclusive_group(required=True)
        calls.add_argument("--recorded", choices=SPANS, help="what this site has recorded in the last hour or day")
        calls.add_argument(
            "--log",
            metavar="FILE[.gz]",
            help="a log of Apache, nginx, Caddy, Traefik, HAProxy, Envoy, CloudFront or AWS' load balancers, "
            "or lines of JSON; - is standard input",
        )
        parser.add_argument(
            "--together",
            action="store_true",
            help="decide each call by all rules as one, as a site does; without it each rule is by itself",
        )
        add_most(parser, "identities of each rule", 10)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, rules: str, log: str | None, together: bool, most: int, **options: Any) -> None:
        if log is None:
            self._replay_recorded(rules, SPANS[options["recorded"]], most, as_json=options["json"], together=together)
            return
        usable = self._load_rules(rules, why_not)
        show = self._progress if self.stderr.isatty() and not options["json"] else lambda *_: None
        try:
            recorded = read(log, lambda share: show(gettext("reading"), share))
        except (OSError, EOFError, ValueError) as error:  # ValueError: a path with NUL
            raise CommandError(gettext("cannot read {name!r}: {why}", name=log, why=_why(error))) from error
        self._check_log(recorded)
        usable = self._select(usable, partial(without_statuses, recorded.calls), rules)
        unanswered = sum(not call.status for call in recorded.calls)
        if unanswered and any(rule.count_on or rule.refund_on for rule in usable):
            line = ngettext(
                "{count:,} call has no status: it counts, and nothing is given back",
                "{count:,} calls have no status: they count, and nothing is given back",
                unanswered,
            )
            self.stderr.write(line)
        replayed = replay(
            usable, recorded.calls, together=together, progress=lambda share: show(gettext("deciding"), share)
        )
        show("", 0.0)
        replayed = self._select_with_calls(replayed, usable, rules)
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(len(recorded.calls), replayed), indent=2))
            return
        ends = recorded.calls[0].at, recorded.calls[-1].at
        first, last = (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) for at in ends)
        period = gettext("from {first} to {last} UTC", first=first, last=last)
        self.stdout.write(translated(with_commas([_calls(len(recorded.calls)), period])))
        for name, result in replayed.items():
            self.stdout.write("\n".join(_lines(name, result, len(recorded.calls), most)))

    def _replay_recorded(self, rules: str, hours: int, most: int, *, as_json: bool, together: bool) -> None:
        recorded = recorded_calls(hours)
        if not recorded.calls:
            message = gettext("no requests were recorded in that time")
            raise CommandError(". ".join(filter(None, [message, translated(recorded.what_is_there)])))
        usable = self._load_rules(rules, recorded.why_not)
        replayed = replay(usable, recorded.calls, together=together, caller_type=RecordedCaller)
        replayed = self._select_with_calls(replayed, usable, rules)
        if as_json:
            content = _as_json(len(recorded.calls), replayed)
            for name, result in replayed.items():
                estimate = dict(zip(ESTIMATE_FIELDS, recorded.estimate(result), strict=True))
                content["rules"][name]["estimate"] = estimate
            self.stdout.write(json.dumps({**content, "share": recorded.share, "cut": recorded.cut}, indent=2))
            return
        calls = _calls(len(recorded.calls))
        self.stdout.write(
            gettext("{calls}, all those of {share:.2%} of the callers", calls=calls, share=recorded.share)
        )
        if recorded.cut:
            pattern = gettext_noop(
                "callers whose later calls are left out, as a sample has room for so many of each: {count:,}"
            )
            self.stdout.write(gettext(pattern, count=recorded.cut))
        for name, result in replayed.items():
            lines = _lines(name, result, len(recorded.calls), most)
            if recorded.share < 1:
                likely, low, high = recorded.estimate(result)
                # No directive begins at the %, xgettext:no-python-format
                pattern = gettext_noop("of all callers about {likely:,} (with 95 % confidence {low:,} to {high:,})")
                lines.append(gettext(pattern, likely=likely, low=low, high=high))
            self.stdout.write("\n".join(lines))

    def _load_rules(self, path: str, why_not: Callable[[Rule], str | None]) -> list[Rule]:
        """Return the rules of the file that can be replayed, enabled. See ``_select``."""
        try:
            rows = rules_file.load(Path(path).read_bytes())
        except rules_file.InvalidFile as error:
            raise CommandError("\n".join(map(translated, error.faults))) from error
        except (OSError, ValueError) as error:  # ValueError: a path with NUL
            raise CommandError(gettext("cannot read {name!r}: {why}", name=path, why=_why(error))) from error
        rules = [replace(row.as_rule(), enabled=True) for row in rows]
        return self._select(rules, why_not, path)

    def _select(self, rules: Sequence[Rule], why_not: Callable[[Rule], str | None], path: str) -> list[Rule]:
        """Return the rules that can be replayed. Warn of the others. Raise CommandError if no rule can."""
        for rule in rules:
            if why := why_not(rule):
                self.stderr.write(gettext("{name} is left out: {why}", name=rule.name, why=why))
        usable = [rule for rule in rules if why_not(rule) is None]
        if not usable:
            raise CommandError(gettext("{path!r} has no rule that can be replayed", path=path))
        return usable

    def _select_with_calls(
        self, replayed: Mapping[str, Replayed], rules: Sequence[Rule], path: str
    ) -> dict[str, Replayed]:
        """Return the results of the rules that have counted a call. See ``_select``."""
        return {rule.name: replayed[rule.name] for rule in self._select(rules, partial(without_calls, replayed), path)}

    def _check_log(self, recorded: AccessLog) -> None:
        """Warn of lines that are no calls. Raise CommandError for a log without calls."""
        if recorded.first_unread is not None:
            number, text = recorded.first_unread
            lines = ngettext(
                "{count:,} line not understood, the first is line {number}: {text!r}",
                "{count:,} lines not understood, the first is line {number}: {text!r}",
                recorded.unread,
                number=number,
                text=text,
            )
            self.stderr.write(lines)
        if not recorded.calls:
            raise CommandError(gettext("the log has no calls"))

    _drawn_at = 0.0

    def _progress(self, activity: str, share: float) -> None:
        """Draw a progress bar, or erase it if the activity is empty."""
        now = time.monotonic()
        if not activity or now - self._drawn_at > REDRAW_SECONDS:
            self._drawn_at = now
            bar = f"{activity:9}[{'#' * int(40 * share):40}] {share:4.0%}" if activity else ""
            self.stderr.write(f"\r{bar:60}\r", ending="")
            self.stderr.flush()


def _as_json(calls: int, replayed: Mapping[str, Replayed]) -> dict[str, Any]:
    rules = {name: {"refused": result.refused, "idents": len(result.idents)} for name, result in replayed.items()}
    return {"calls": calls, "rules": rules}


def _lines(name: str, result: Replayed, calls: int, max_idents: int) -> list[str]:
    values = {"name": name, "refused": result.refused, "share": result.refused / calls}
    head = gettext("{name}: {refused:,} refused ({share:.1%})", **values)
    if result.refused:
        head = ngettext(
            "{name}: {refused:,} refused ({share:.1%}), of {count:,} identity",
            "{name}: {refused:,} refused ({share:.1%}), of {count:,} identities",
            len(result.idents),
            **values,
        )
    refused_idents = result.idents.most_common(max_idents)
    return [head, *(f"{number:>9,}  {plain(ident)}" for ident, number in refused_idents)]


def _calls(number: int) -> str:
    return ngettext("{count:,} call", "{count:,} calls", number)


def _why(error: Exception) -> object:
    return getattr(error, "strerror", None) or error
