"""What rules would have refused of calls that were made: each is decided again, in memory, at its own time."""

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
from typing import Any, Final
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
from django_throttle.identity.keys import ident_of
from django_throttle.rulebook import Snapshot, current
from django_throttle.stores import MemoryStore, get_store

EVENTS: Final = ("request",)
SPANS: Final = {"hour": 1, "day": 24}  # in hours, of what was recorded
UNLOGGED: Final = frozenset({"session", "tenant", "connection"})  # keys
KNOWN_AUDIENCES: Final = frozenset({"anonymous", "authenticated"})
STEP: Final = 4096  # calls between two words of progress


@dataclass(slots=True)
class Replayed:
    """What a rule would have refused: how many calls, how many of each ident, and their times; of how many calls."""

    refused: int = 0
    idents: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    calls: int = 0


class LoggedCaller(KeyedCaller):
    """The caller of a call in a log, of whom no more is known than an address and a user's name."""

    def __init__(self, address: str, user: str) -> None:
        self.subject = None
        self._text = network(address, conf().IPV6_PREFIX)
        self._user = SimpleNamespace(pk=user, is_authenticated=True) if user else None

    def by_user(self) -> str | None:
        return ident_of("user", self._user.pk) if self._user else None

    def by_address(self, key: str = "ip") -> str | None:
        return ident_of("ip", self._text)

    def user(self) -> Any:
        return self._user

    def read(self, name: str) -> None:
        return None

    def peer(self) -> object:
        return self._text

    def header(self, name: str) -> str:
        return ""


def why_not(rule: Rule) -> str | None:
    """Why a rule cannot be replayed; None where it can."""
    reasons = {
        translatable("its events are not those of requests"): "request" not in rule.events,
        translatable("a log does not say when requests end"): rule.holds_slots,
        translatable("a damper refuses by chance"): rule.decided_locally,
        translatable("a log does not say what calls cost"): rule.is_measured or rule.unit != "calls",
        translatable("its functions need the request itself"): bool(rule.functions),
        translatable("a log does not say who has a plan"): bool(rule.plans),
        translatable("a log does not say the {key}", key=rule.key): bool(UNLOGGED & {*rule.key.split("+")}),
        translatable("a log does not say who is {audience}", audience=alternatives(rule.audience)): bool(
            {*rule.audience} - KNOWN_AUDIENCES
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def without_statuses(calls: Sequence[LoggedCall], rule: Rule) -> str | None:
    """Return why a log is not enough for a rule that counts or refunds by the answer; None if it is."""
    if any(call.status for call in calls) or not (rule.count_on or rule.refund_on):
        return None
    return translatable("the log does not say how requests were answered")


def without_calls(replayed: Mapping[str, Replayed], rule: Rule) -> str | None:
    """Return why a replay says nothing of a rule that has counted no call; None if it has counted one."""
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
    """Decide the calls again, each rule by itself, or all ``together``: what one refuses is not charged to others.

    ``calls`` are in the order of their times, by which the store's clock goes. A call has the scope that the log says,
    else that of its path on this site, as under the middleware. What an answer gives back (count_on, refund_on) goes
    back at once. Overrides are left out. ``caller_type`` makes a caller of the address and the user of a logged call.
    """
    now = 0.0
    store = MemoryStore(lambda: now, max_entries=sys.maxsize)
    snapshots = [Snapshot(some) for some in ([rules] if together else [[rule] for rule in rules])]
    found = {rule.name: Replayed() for rule in rules}
    caller, scope = cache(caller_type), cache(_scope)

    @cache
    def charges_of(where: str, method: str, address: str, user: str) -> list[Charges]:
        call = Call(where, EVENTS, caller(address, user), method=method)
        return [charges for snapshot in snapshots if (charges := snapshot.match(call))]

    for number, logged in enumerate(calls):
        if number % STEP == 0:
            progress(number / len(calls))
        now = logged.at
        for charges in charges_of(logged.scope or scope(logged.path), logged.method, logged.address, logged.user):
            answers = store.execute(Decide(charges))
            for charge in charges:
                found[charge.rule.name].calls += 1
            if any(answer.retry for answer in answers):
                _note(found, charges, answers, now)
            if charges.rules.is_settled and logged.status:
                _give_back(store, charges, answers, logged.status)
    return found


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Calls of a sample, in the order of their times: all those of a ``share`` of the callers.

    ``cut`` is the number of these callers whose later calls are left out. ``others`` are the calls of the sample that
    are no requests, by event. ``decisions`` is how many decisions rules have made in the time.
    """

    calls: list[LoggedCall]
    share: float
    cut: int = 0
    others: Mapping[str, int] = field(default_factory=dict)
    decisions: int = 0

    @property
    def what_is_there(self) -> str:
        """Say what was recorded where no requests were; empty where nothing was."""
        if self.others:
            pattern = gettext_noop("The sample has calls of other events ({events}), which are not replayed.")
            return translatable(pattern, events=with_commas(sorted(self.others)))
        if self.decisions:
            pattern = gettext_noop("Rules have made {count:,} decisions in that time, and none is in the sample.")
            return translatable(pattern, count=self.decisions)
        return ""

    def why_not(self, rule: Rule) -> str | None:
        """Why these cannot be replayed under a rule; None where they can."""
        if rule.audience:
            audience = alternatives(rule.audience)
            return translatable("what is recorded does not say who is {audience}", audience=audience)
        if rule.factor != 1 or rule.count_on or rule.refund_on:
            return translatable("what is recorded says neither each cost nor the answer")
        if self.share < 1 and rule.key == EVERYONE:
            pattern = gettext_noop("only {share:.0%} of the callers are recorded, and all of them share its budget")
            return translatable(pattern, share=self.share)
        whose = {RecordedCaller("", tags).ident(rule.key) for tags in {call.user for call in self.calls}}
        nobody = translatable("no recorded call was counted by {key}", key=rule.key)
        return why_not(rule) or (nobody if whose == {None} else None)

    def estimate(self, one: Replayed) -> tuple[int, int, int]:
        """How many calls of all callers would have been refused: likely, and the ends of a 95 % confidence interval.

        Callers are chosen each with the probability ``share``, so this is the Horvitz-Thompson estimator of a total
        and the estimate of its variance (Särndal, Swensson, Wretman, Model Assisted Survey Sampling, 1992, 2.8).
        """
        likely = one.refused / self.share
        spread = 1.96 * sqrt((1 - self.share) * sum(number**2 for number in one.idents.values())) / self.share
        return round(likely), max(one.refused, round(likely - spread)), round(likely + spread)

    def estimate_idents(self, one: Replayed) -> tuple[int, int, int]:
        """The same of the callers that would have been refused anything."""
        return self.estimate(Replayed(len(one.idents), Counter(dict.fromkeys(one.idents, 1))))


class RecordedCaller:
    """The caller of a recorded call: the tags that count it, by the keys of the rules that were in force."""

    subject = None

    def __init__(self, _: str, tags: str) -> None:
        self._tags = json.loads(tags)

    def ident(self, key: str) -> str | None:
        """The tag under a rule's key; None where no rule of that key has counted the call."""
        found: str | None = EVERYONE if key == EVERYONE else self._tags.get(key)
        return found

    def is_(self, trait: str) -> bool:
        return False

    def lacks_address(self, key: str) -> bool:
        return False


def recorded_calls(hours: int) -> RecordedCalls:
    """The requests of the last hours that this site has recorded. Raises StoreError."""
    end = timezone.now()
    found = read.sample(get_store(), end - timedelta(hours=hours), end)
    keys = {rule.name: rule.key for rule in current().rules}
    calls, others = [], Counter[str]()
    for one in found.whole:
        tags = {keys[name]: tag for name, tag in one.tags.items() if name in keys}
        if one.event in EVENTS:
            text = json.dumps(tags, sort_keys=True)
            calls.append(LoggedCall(one.at.timestamp(), "", text, one.method, "", one.scope, 0))
        else:
            others[one.event] += 1
    decisions = 0
    if not calls:
        minutes = read.minutes(get_store(), end - timedelta(hours=hours), end)
        decisions = sum(minute.calls for cells in minutes.values() for minute in cells)
    return RecordedCalls(calls, found.shares["whole"], found.cut, others, decisions)


def _note(found: dict[str, Replayed], charges: Charges, answers: Iterable[Answer], at: float) -> None:
    refusing = {charge.rule.name: charge.ident for charge, answer in zip(charges, answers, strict=True) if answer.retry}
    for name, ident in refusing.items():
        found[name].refused += 1
        found[name].idents[ident] += 1
        found[name].times.append(at)


def _give_back(store: MemoryStore, charges: Charges, answers: Sequence[Answer], status: int) -> None:
    if all(map(passes, charges, answers)):
        paid = [
            LedgerEntry(charge, answer.at, answer.reset)
            for charge, answer in zip(charges, answers, strict=True)
            if not (answer.retry or charge.rule.counts(status))
        ]
        store.execute(Correct(tuple(paid)))


def _scope(path: str) -> str:
    try:
        return scope_of_match(get_resolver(settings.ROOT_URLCONF).resolve(unquote(path)))
    except Resolver404:
        return NO_ROUTE
