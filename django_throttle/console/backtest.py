"""Replay of calls from a log or a sample: rules decide them again in memory, at the calls' own times."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from math import sqrt
from types import SimpleNamespace
from typing import Final
from urllib.parse import unquote

from django.conf import settings
from django.urls import Resolver404, get_resolver
from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.console.access_log import LoggedCall
from django_throttle.console.recording import read
from django_throttle.core.commands import Answer, Charges, Correct, Decide, LedgerEntry, passes
from django_throttle.core.key import EVERYONE
from django_throttle.core.rule import Rule
from django_throttle.core.texts import alternatives, gettext_noop, translatable, with_commas
from django_throttle.http.request_state import NO_ROUTE, scope_of_match
from django_throttle.identity.address import network
from django_throttle.identity.call import Call, Caller
from django_throttle.identity.caller import KeyedCaller
from django_throttle.identity.keys import User, ident_of
from django_throttle.rulebook import Snapshot, current
from django_throttle.stores import MemoryStore, get_store

EVENTS: Final = ("request",)
SPANS: Final = {"hour": 1, "day": 24}  # spans of recorded calls, in hours
UNLOGGED_KEYS: Final = frozenset({"session", "tenant", "connection"})
KNOWN_AUDIENCES: Final = frozenset({"anonymous", "authenticated"})
PROGRESS_STEP: Final = 4096  # calls between two reports of progress


@dataclass(slots=True)
class Replayed:
    """Result of a replay for a rule."""

    refused: int = 0  #: number of refused calls
    idents: Counter[str] = field(default_factory=Counter)  #: refused calls by ident
    times: list[float] = field(default_factory=list)  #: times of refused calls
    calls: int = 0  #: number of calls that the rule decided


class LoggedCaller(KeyedCaller):
    """Caller of a logged call: an address, and the name of a user."""

    def __init__(self, address: str, user: str) -> None:
        self.subject = None
        self._text = network(address, conf().IPV6_PREFIX)
        self._user = SimpleNamespace(pk=user, is_authenticated=True) if user else None

    def by_user(self) -> str | None:
        return ident_of("user", self._user.pk) if self._user else None

    def by_address(self, key: str = "ip") -> str | None:
        return ident_of("ip", self._text)

    def user(self) -> User | None:
        return self._user

    def read(self, name: str) -> None:
        return None

    def peer(self) -> object:
        return self._text

    def header(self, name: str) -> str:
        return ""


def why_not(rule: Rule) -> str | None:
    """Return the reason why a rule cannot be replayed, or None if it can."""
    reasons = {
        translatable("its events are not those of requests"): "request" not in rule.events,
        translatable("a log does not say when requests end"): rule.holds_slots,
        translatable("a damper refuses by chance"): rule.decided_locally,
        translatable("a log does not say what calls cost"): rule.is_measured or rule.unit != "calls",
        translatable("its functions need the request itself"): bool(rule.functions),
        translatable("a log does not say who has a plan"): bool(rule.plans),
        translatable("a log does not say the {key}", key=rule.key): bool(UNLOGGED_KEYS & {*rule.key.split("+")}),
        translatable("a log does not say who is {audience}", audience=alternatives(rule.audience)): bool(
            {*rule.audience} - KNOWN_AUDIENCES
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def without_statuses(calls: Sequence[LoggedCall], rule: Rule) -> str | None:
    """Return the reason why a log without statuses does not suffice for a rule, or None if it does."""
    if any(call.status for call in calls) or not (rule.count_on or rule.refund_on):
        return None
    return translatable("the log does not say how requests were answered")


def without_calls(replayed: Mapping[str, Replayed], rule: Rule) -> str | None:
    """Return the reason why a rule has counted no call of a replay, or None if it has counted some."""
    reason = translatable("it counts none of the calls, by its scopes, methods, key and audience")
    return None if replayed[rule.name].calls else reason


def replay(
    rules: Sequence[Rule],
    calls: Sequence[LoggedCall],
    *,
    together: bool = False,
    progress: Callable[[float], None] = lambda share: None,
    caller_type: Callable[[str, str], Caller] = LoggedCaller,
) -> dict[str, Replayed]:
    """Decide calls again, by each rule alone. Return the results by rule.

    With ``together``, all rules decide each call, so that a refusal by one rule charges no other. ``calls`` are in the
    order of their times, which the store's clock follows. A call without a logged scope has the scope of its path, as
    under the middleware. Refunds by the status (count_on, refund_on) are made at once. Overrides are ignored.
    ``caller_type`` makes a caller from the address and the user of a logged call.
    """
    now = 0.0
    store = MemoryStore(lambda: now, max_entries=sys.maxsize)
    snapshots = [Snapshot(rules)] if together else [Snapshot([rule]) for rule in rules]
    results = {rule.name: Replayed() for rule in rules}
    caller, scope = cache(caller_type), cache(_scope)

    @cache
    def charges_of(call_scope: str, method: str, address: str, user: str) -> list[Charges]:
        call = Call(call_scope, EVENTS, caller(address, user), method=method)
        return [charges for snapshot in snapshots if (charges := snapshot.match(call))]

    for number, logged in enumerate(calls):
        if number % PROGRESS_STEP == 0:
            progress(number / len(calls))
        now = logged.at
        for charges in charges_of(logged.scope or scope(logged.path), logged.method, logged.address, logged.user):
            answers = store.execute(Decide(charges))
            for charge in charges:
                results[charge.rule.name].calls += 1
            if any(answer.retry for answer in answers):
                _note_refusal(results, charges, answers, now)
            if charges.rules.is_settled and logged.status:
                _refund(store, charges, answers, logged.status)
    return results


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Requests of a sample, in the order of their times."""

    calls: list[LoggedCall]
    share: float  #: share of the callers in the sample
    cut: int = 0  #: number of these callers whose later calls are left out
    others: Mapping[str, int] = field(default_factory=dict)  #: number of other calls by event
    decisions: int = 0  #: number of decisions in the same time

    @property
    def what_is_there(self) -> str:
        """Sentence about other recorded calls, if no requests were recorded. Empty if nothing was."""
        if self.others:
            pattern = gettext_noop("The sample has calls of other events ({events}), which are not replayed.")
            return translatable(pattern, events=with_commas(sorted(self.others)))
        if self.decisions:
            pattern = gettext_noop("Rules have made {count:,} decisions in that time, and none is in the sample.")
            return translatable(pattern, count=self.decisions)
        return ""

    def why_not(self, rule: Rule) -> str | None:
        """Return the reason why these calls cannot be replayed under a rule, or None if they can."""
        if rule.audience:
            audience = alternatives(rule.audience)
            return translatable("what is recorded does not say who is {audience}", audience=audience)
        if rule.factor != 1 or rule.count_on or rule.refund_on:
            return translatable("what is recorded says neither each cost nor the answer")
        if self.share < 1 and rule.key == EVERYONE:
            pattern = gettext_noop("only {share:.0%} of the callers are recorded, and all of them share its budget")
            return translatable(pattern, share=self.share)
        idents = {RecordedCaller("", tags).ident(rule.key) for tags in {call.user for call in self.calls}}
        if reason := why_not(rule):
            return reason
        return translatable("no recorded call was counted by {key}", key=rule.key) if idents == {None} else None

    def estimate(self, result: Replayed) -> tuple[int, int, int]:
        """Return an estimate of the refused calls of all callers, and the ends of its 95 % confidence interval.

        Each caller is chosen with the probability ``share``, so this is the Horvitz-Thompson estimator of a total
        and the estimate of its variance (Särndal, Swensson, Wretman, Model Assisted Survey Sampling, 1992, 2.8).
        """
        likely = result.refused / self.share
        spread = 1.96 * sqrt((1 - self.share) * sum(number**2 for number in result.idents.values())) / self.share
        return round(likely), max(result.refused, round(likely - spread)), round(likely + spread)

    def estimate_idents(self, result: Replayed) -> tuple[int, int, int]:
        """Return an estimate of the number of refused callers, as ``estimate`` does."""
        return self.estimate(Replayed(len(result.idents), Counter(dict.fromkeys(result.idents, 1))))


class RecordedCaller:
    """Caller of a recorded call: its ident hashes by the keys of the current rules, in JSON."""

    subject = None

    def __init__(self, _: str, tags: str) -> None:
        self._tags = json.loads(tags)

    def ident(self, key: str) -> str | None:
        """Return the ident hash under a rule's key, or None if no rule of that key has counted the call."""
        tag: str | None = EVERYONE if key == EVERYONE else self._tags.get(key)
        return tag

    def is_(self, trait: str) -> bool:
        return False

    def lacks_address(self, key: str) -> bool:
        return False


def recorded_calls(hours: int) -> RecordedCalls:
    """Return the recorded requests of the last hours. Raise StoreError."""
    end = timezone.now()
    sample = read.sample(get_store(), end - timedelta(hours=hours), end)
    keys = {rule.name: rule.key for rule in current().rules}
    calls, others = [], Counter[str]()
    for call in sample.whole:
        tags = {keys[name]: tag for name, tag in call.tags.items() if name in keys}
        if call.event in EVENTS:
            text = json.dumps(tags, sort_keys=True)
            calls.append(LoggedCall(call.at.timestamp(), "", text, call.method, "", call.scope, 0))
        else:
            others[call.event] += 1
    decisions = 0
    if not calls:
        minutes = read.minutes(get_store(), end - timedelta(hours=hours), end)
        decisions = sum(minute.calls for cells in minutes.values() for minute in cells)
    return RecordedCalls(calls, sample.shares["whole"], sample.cut, others, decisions)


def _note_refusal(results: dict[str, Replayed], charges: Charges, answers: Iterable[Answer], at: float) -> None:
    refusing = {charge.rule.name: charge.ident for charge, answer in zip(charges, answers, strict=True) if answer.retry}
    for name, ident in refusing.items():
        results[name].refused += 1
        results[name].idents[ident] += 1
        results[name].times.append(at)


def _refund(store: MemoryStore, charges: Charges, answers: Sequence[Answer], status: int) -> None:
    if all(map(passes, charges, answers)):
        refunds = [
            LedgerEntry(charge, answer.at, answer.reset)
            for charge, answer in zip(charges, answers, strict=True)
            if not (answer.retry or charge.rule.counts(status))
        ]
        store.execute(Correct(tuple(refunds)))


def _scope(path: str) -> str:
    try:
        return scope_of_match(get_resolver(settings.ROOT_URLCONF).resolve(unquote(path)))
    except Resolver404:
        return NO_ROUTE
