"""Says what rules would have refused of the calls in an access log."""

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
from django_throttle.management import ShellCommand, rules_file
from django_throttle.observe.reports import plain
from django_throttle.translated import gettext, ngettext, translated

USUAL: Final = 10
REDRAW_SECONDS: Final = 0.2
ESTIMATE: Final = ("refused", "low", "high")


class Command(ShellCommand):
    """Counts in memory: no Redis is asked, and nothing of the site changes."""

    help = (
        "Replay an access log, or what this site has recorded, under rules that need not be in force: print how many "
        "calls each would have refused, and whose. Rules are read as `throttle_rules export` writes them."
    )
    requires_system_checks: list[str] = []

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
        parser.add_argument("--most", type=int, default=USUAL, help=f"identities listed of a rule (default {USUAL})")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, rules: str, log: str | None, together: bool, most: int, **options: Any) -> None:
        if log is None:
            self._replay_recorded(rules, SPANS[options["recorded"]], most, as_json=options["json"], together=together)
            return
        usable = self._usable(rules, why_not)
        show = self._progress if self.stderr.isatty() and not options["json"] else lambda *_: None
        try:
            recorded = read(log, lambda share: show(gettext("reading"), share))
        except (OSError, EOFError, ValueError) as error:  # ValueError: a path with NUL
            raise CommandError(gettext("cannot read {name!r}: {why}", name=log, why=_why(error))) from error
        self._complain(recorded)
        usable = self._left(usable, partial(without_statuses, recorded.calls), rules)
        unanswered = sum(not call.status for call in recorded.calls)
        if unanswered and any(rule.count_on or rule.refund_on for rule in usable):
            line = ngettext(
                "{count:,} call has no status: it counts, and nothing is given back",
                "{count:,} calls have no status: they count, and nothing is given back",
                unanswered,
            )
            self.stderr.write(line)
        found = replay(
            usable, recorded.calls, together=together, progress=lambda share: show(gettext("deciding"), share)
        )
        show("", 0.0)
        found = self._counting(found, usable, rules)
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(len(recorded.calls), found), indent=2))
            return
        first, last = (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(recorded.calls[at].at)) for at in (0, -1))
        period = gettext("from {first} to {last} UTC", first=first, last=last)
        self.stdout.write(translated(with_commas([_calls(len(recorded.calls)), period])))
        for name, one in found.items():
            self.stdout.write("\n".join(_lines(name, one, len(recorded.calls), most)))

    def _replay_recorded(self, rules: str, hours: int, most: int, *, as_json: bool, together: bool) -> None:
        recorded = recorded_calls(hours)
        if not recorded.calls:
            nothing = gettext("no requests were recorded in that time")
            raise CommandError(". ".join(filter(None, [nothing, translated(recorded.what_is_there)])))
        usable = self._usable(rules, recorded.why_not)
        found = replay(usable, recorded.calls, together=together, caller_type=RecordedCaller)
        found = self._counting(found, usable, rules)
        if as_json:
            answer = _as_json(len(recorded.calls), found)
            for name, one in found.items():
                answer["rules"][name]["estimate"] = dict(zip(ESTIMATE, recorded.estimate(one), strict=True))
            self.stdout.write(json.dumps({**answer, "share": recorded.share, "cut": recorded.cut}, indent=2))
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
        for name, one in found.items():
            likely, low, high = recorded.estimate(one)
            # No directive begins at the %, xgettext:no-python-format
            pattern = gettext_noop("of all callers about {likely:,} (with 95 % confidence {low:,} to {high:,})")
            whole = gettext(pattern, likely=likely, low=low, high=high)
            self.stdout.write(
                "\n".join([*_lines(name, one, len(recorded.calls), most), *[whole] * (recorded.share < 1)])
            )

    def _usable(self, path: str, why_not: Callable[[Rule], str | None]) -> list[Rule]:
        """The rules of the file that can be replayed, switched on; the others are named."""
        try:
            rows = rules_file.load(Path(path).read_bytes())
        except rules_file.InvalidFile as error:
            raise CommandError("\n".join(map(translated, error.faults))) from error
        except (OSError, ValueError) as error:  # ValueError: a path with NUL
            raise CommandError(gettext("cannot read {name!r}: {why}", name=path, why=_why(error))) from error
        rules = [replace(row.as_rule(), enabled=True) for row in rows]
        return self._left(rules, why_not, path)

    def _left(self, rules: Sequence[Rule], why_not: Callable[[Rule], str | None], path: str) -> list[Rule]:
        """Return the rules that can be replayed; the others are named. Where there is none, that is an error."""
        for rule in rules:
            if why := why_not(rule):
                self.stderr.write(gettext("{name} is left out: {why}", name=rule.name, why=why))
        usable = [rule for rule in rules if why_not(rule) is None]
        if not usable:
            raise CommandError(gettext("{path!r} has no rule that can be replayed", path=path))
        return usable

    def _counting(self, found: Mapping[str, Replayed], rules: Sequence[Rule], path: str) -> dict[str, Replayed]:
        """Return what was found of the rules that have counted a call, as ``_left`` does."""
        return {rule.name: found[rule.name] for rule in self._left(rules, partial(without_calls, found), path)}

    def _complain(self, recorded: AccessLog) -> None:
        """Of lines that are no calls; a log without any call is an error."""
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

    _drawn = 0.0

    def _progress(self, doing: str, share: float) -> None:
        now = time.monotonic()
        if not doing or now - self._drawn > REDRAW_SECONDS:
            self._drawn = now
            bar = f"{doing:9}[{'#' * int(40 * share):40}] {share:4.0%}" if doing else ""
            self.stderr.write(f"\r{bar:60}\r", ending="")
            self.stderr.flush()


def _as_json(calls: int, found: Mapping[str, Replayed]) -> dict[str, Any]:
    return {
        "calls": calls,
        "rules": {name: {"refused": one.refused, "idents": len(one.idents)} for name, one in found.items()},
    }


def _lines(name: str, one: Replayed, calls: int, most: int) -> list[str]:
    recorded = {"name": name, "refused": one.refused, "share": one.refused / calls}
    head = gettext("{name}: {refused:,} refused ({share:.1%})", **recorded)
    if one.refused:
        head = ngettext(
            "{name}: {refused:,} refused ({share:.1%}), of {count:,} identity",
            "{name}: {refused:,} refused ({share:.1%}), of {count:,} identities",
            len(one.idents),
            **recorded,
        )
    return [head, *(f"{number:>9,}  {plain(ident)}" for ident, number in one.idents.most_common(max(0, most)))]


def _calls(number: int) -> str:
    return ngettext("{count:,} call", "{count:,} calls", number)


def _why(error: Exception) -> object:
    return getattr(error, "strerror", None) or error
