"""The ledger of a call: what the decisions made for it have charged, and what of that goes back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from django_throttle.core.commands import Answer, Charge, Correct, Entry, Measured
from django_throttle.core.option_words import MEAN
from django_throttle.core.rule import Rule

NameAndIdent = tuple[str, str]  # a rule's name, an ident


class OutcomeLike(Protocol):
    """What a ledger reads of an outcome."""

    @property
    def rule(self) -> str: ...
    @property
    def ident(self) -> str: ...


class DecisionLike(Protocol):
    """What a ledger reads of a decision."""

    @property
    def outcomes(self) -> Sequence[OutcomeLike]: ...
    @property
    def ledger(self) -> Ledger: ...


class Ledger:
    """What a call was charged under each rule and ident, until it is refunded or settled.

    A decision has a ledger of its own charges, and a request, for which several entry points may decide, one of all
    that they charged. Entries are made when somebody reads them: most calls owe nothing, and nobody ever does.
    ``unsettled`` are the entries that a call which has ended had reserved under rules of measured units.
    ``misplaced`` are the rules and idents that were charged for a scope that has turned out not to be the call's.
    """

    # Of the class until they change, as one is made for each request; all are replaced, and none is changed in place.
    unsettled: tuple[Entry, ...] = ()
    misplaced: frozenset[NameAndIdent] = frozenset()
    _unread: tuple[Sequence[Charge], Sequence[Answer], bool] = (), (), False
    _decisions: tuple[tuple[DecisionLike, int], ...] = ()  # whose costs, and entries, have yet to be read
    _ended = 0  # so many of them have no entries any more
    _entries: tuple[Entry, ...] = ()
    _costs: Mapping[NameAndIdent, int] = MappingProxyType({})

    def __init__(
        self, charges: Sequence[Charge] = (), answers: Sequence[Answer] = (), *, locally: bool = False
    ) -> None:
        if charges:
            self._unread = charges, answers, locally

    @classmethod
    def of_costs(cls, costs: Mapping[NameAndIdent, int]) -> Ledger:
        """Return the ledger of a call that was charged these costs, of which nothing goes back."""
        ledger = cls()
        ledger._costs = costs
        return ledger

    def note(self, decision: DecisionLike, cost: int = 1) -> None:
        """Add what a decision on a call of this cost has charged."""
        self._decisions += ((decision, cost),)

    def add(self, entries: tuple[Entry, ...]) -> None:
        """Add entries to those of the call; where it has ended, to those that are yet to be settled."""
        if self.unsettled and not self.entries:
            self.unsettled += entries
        else:
            self._entries = self.entries + entries

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What was charged and may go back, the oldest first; another object when it has changed."""
        self._read()
        return self._entries

    @property
    def reserved(self) -> tuple[Entry, ...]:
        """What code that spends units draws on: the entries, or those that are yet to be settled."""
        return self.entries or self.unsettled

    @property
    def costs(self) -> Mapping[NameAndIdent, int]:
        """The costs of the calls that were charged under each rule and ident."""
        self._read()
        return self._costs

    def _read(self) -> None:
        decisions, self._decisions = self._decisions, ()
        ended, self._ended = self._ended, 0
        (charges, answers, locally), self._unread = self._unread, Ledger._unread
        if charges:
            self._entries += tuple(entries_of(charges, answers, locally=locally))
        for place, (decision, cost) in enumerate(decisions):
            costs = {(outcome.rule, outcome.ident): cost for outcome in decision.outcomes}
            self._costs = {**self._costs, **{pair: max(cost, self._costs.get(pair, 0)) for pair in costs}}
            if place >= ended:
                self._entries += decision.ledger.entries

    def has_rule(self, name: str) -> bool:
        """Return True where something was charged under the rule of this name."""
        return any(rule == name for rule, _ in self.costs)

    def charged_at(self, rule: str, ident: str) -> int:
        """Return when this rule charged this ident, in microseconds of the store's clock; 0 where it did not."""
        for entry in self.entries:
            if entry.pair == (rule, ident):
                return entry.at
        return 0

    def refund(self) -> tuple[Correct, ...]:
        """Return what gives back everything."""
        return self._take(lambda entry: True)

    def refund_pairs(self, pairs: Collection[NameAndIdent]) -> tuple[Correct, ...]:
        """Return what gives back all that was charged under these rules and idents."""
        self._read()
        self._costs = {pair: cost for pair, cost in self._costs.items() if pair not in pairs}
        self.misplaced -= frozenset(pairs)
        return self._take(lambda entry: entry.pair in pairs)

    def refund_queued(self) -> tuple[Correct, ...]:
        """Return what gives back the call's places in queues, where it does not come to its turn."""
        return self._take(lambda entry: entry.charge.rule.is_queue)

    def refund_for_status(self, status: int | str) -> tuple[Correct, ...]:
        """End the call with this HTTP status, or as CANCELLED; return what gives back that which does not count."""
        refunds = self._take(lambda entry: not entry.charge.rule.counts(status))
        self.end()
        return refunds

    def refund_for_refusal(self) -> tuple[Correct, ...]:
        """End the call as refused; return what gives back its charges, as if one decision had refused it."""
        refunds = self._take(lambda entry: not entry.charge.rule.count_denied)
        self._entries = ()
        return refunds

    def _take(self, goes_back: Callable[[Entry], bool]) -> tuple[Correct, ...]:
        entries = self.entries
        taken = [entry for entry in entries if goes_back(entry)]
        if taken:
            self._entries = tuple([entry for entry in entries if not goes_back(entry)])
        return corrections(taken)

    def end(self) -> None:
        """End the call: what it was charged stays, and what it reserved is yet to be settled."""
        self.unsettled += tuple([entry for entry in self.entries if entry.charge.rule.is_measured])
        self._entries = ()

    def drop(self) -> None:
        """End a call that has reserved nothing: what it was charged stays."""
        self._unread, self._entries, self._ended = Ledger._unread, (), len(self._decisions)

    def forget_costs(self) -> None:
        """Forget what was charged by whom: what follows is another call."""
        if self._ended < len(self._decisions):
            self._read()
        self._decisions, self._ended, self._costs = (), 0, {}

    def settle(self, used: Callable[[Rule], int | None], scope: str, name: str) -> Correct | None:
        """Return what corrects what the call had reserved, once it has ended; see ``settlement``."""
        entries, self.unsettled = self.unsettled, ()
        return settlement(entries, used, scope, name)


def entries_of(charges: Sequence[Charge], answers: Sequence[Answer], *, locally: bool = False) -> Iterator[Entry]:
    """The entries of a decision that has charged these; ``locally`` when this process alone has decided."""
    for charge, answer in zip(charges, answers, strict=True):
        rule = charge.rule
        if answer.retry == 0 and (charge.cost or rule.is_measured) and not rule.holds_slots:
            yield Entry(charge, answer.at, answer.reset, locally)


def corrections(back: Sequence[Entry]) -> tuple[Correct, ...]:
    """What gives these back, the newest first: a command for the store and one for what this process has decided."""
    parts = [tuple([entry for entry in reversed(back) if entry.locally is locally]) for locally in (False, True)]
    return tuple([Correct(part) for part in parts if part])


def settlement(entries: Iterable[Entry], used: Callable[[Rule], int | None], scope: str, name: str) -> Correct | None:
    """What corrects all that one call was charged under rules that are measured; None where nothing does.

    ``used`` says what the call came to under a rule, None for what was reserved. ``scope`` is the call's, and ``name``
    no other call's.
    """
    reserved: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.charge.rule.is_measured:
            reserved.setdefault((entry.charge.rule.id, entry.charge.ident), []).append(entry)
    back: list[Entry] = []
    due: list[Entry] = []
    measured: list[Measured] = []
    for (rule_id, _), paid in reserved.items():
        rule = paid[0].charge.rule
        if (cost := used(rule)) is None:
            continue
        more = cost - sum(entry.charge.cost for entry in paid)
        if more > 0:
            due.append(paid[0].costing(more))
        back += _last(paid, -more)
        if rule.reserve == MEAN:
            measured.append(Measured(rule_id, scope, cost))
    return Correct(tuple(back), tuple(due), name, tuple(measured)) if back or due or measured else None


def _last(entries: Sequence[Entry], cost: int) -> Iterator[Entry]:
    """So much of these entries, the newest first."""
    for entry in reversed(entries):
        if cost > 0:
            yield entry.costing(min(cost, entry.charge.cost))
            cost -= entry.charge.cost
