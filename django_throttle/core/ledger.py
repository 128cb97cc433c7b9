"""The ledger of a call: the charges of the decisions that were made for it, and their refund or settlement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from django_throttle.core.commands import Answer, Charge, Correct, LedgerEntry, MeasuredCost
from django_throttle.core.option_words import MEAN
from django_throttle.core.rule import Rule

NameAndIdent = tuple[str, str]  # a rule's name, an ident


class OutcomeLike(Protocol):
    """The attributes that a ledger reads of an outcome."""

    @property
    def rule(self) -> str: ...
    @property
    def ident(self) -> str: ...


class DecisionLike(Protocol):
    """The attributes that a ledger reads of a decision."""

    @property
    def outcomes(self) -> Sequence[OutcomeLike]: ...
    @property
    def ledger(self) -> Ledger: ...


class Ledger:
    """The charges of a call, by rule and ident, until they are refunded or settled.

    A decision has a ledger of its own charges. A request has a single ledger for all its decisions, because several
    entry points may decide it. Entries are made when they are first read, which most calls never do.
    """

    # Attributes of the class until they change, because each request makes a ledger. They are replaced, never mutated.
    #: Entries of a call that has ended, reserved under rules of measured units.
    unsettled: tuple[LedgerEntry, ...] = ()
    #: Rules and idents that were charged for another scope than the call's.
    misplaced: frozenset[NameAndIdent] = frozenset()
    _unread: tuple[Sequence[Charge], Sequence[Answer], bool] = (), (), False
    _decisions: tuple[tuple[DecisionLike, int], ...] = ()  # decisions whose costs and entries are still to be read
    _ended = 0  # number of these decisions that have no entries any more
    _entries: tuple[LedgerEntry, ...] = ()
    _costs: Mapping[NameAndIdent, int] = MappingProxyType({})

    def __init__(
        self, charges: Sequence[Charge] = (), answers: Sequence[Answer] = (), *, locally: bool = False
    ) -> None:
        if charges:
            self._unread = charges, answers, locally

    @classmethod
    def of_costs(cls, costs: Mapping[NameAndIdent, int]) -> Ledger:
        """Return the ledger of a call with these costs, which cannot be refunded."""
        ledger = cls()
        ledger._costs = costs
        return ledger

    def note(self, decision: DecisionLike, cost: int = 1) -> None:
        """Add the charges of a decision on a call of this cost."""
        self._decisions += ((decision, cost),)

    def add(self, entries: tuple[LedgerEntry, ...]) -> None:
        """Add entries to those of the call, or to the unsettled ones if it has ended."""
        if self.unsettled and not self.entries:
            self.unsettled += entries
        else:
            self._entries = self.entries + entries

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The charges that may be refunded, oldest first. A change makes a new tuple."""
        self._read()
        return self._entries

    @property
    def reserved(self) -> tuple[LedgerEntry, ...]:
        """The entries from which ``spend`` takes units: those of the call, or the unsettled ones if it has ended."""
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
        """Return True if the rule of this name charged the call."""
        return any(rule == name for rule, _ in self.costs)

    def charged_at(self, rule: str, ident: str) -> int:
        """Return when the rule charged the ident, in microseconds of the store's clock; 0 if it did not."""
        for entry in self.entries:
            if entry.pair == (rule, ident):
                return entry.at
        return 0

    def refund(self) -> tuple[Correct, ...]:
        """Take all entries; return the commands that refund them."""
        return self._take(lambda entry: True)

    def refund_pairs(self, pairs: Collection[NameAndIdent]) -> tuple[Correct, ...]:
        """Take the entries of these rules and idents; return the commands that refund them."""
        self._read()
        self._costs = {pair: cost for pair, cost in self._costs.items() if pair not in pairs}
        self.misplaced -= frozenset(pairs)
        return self._take(lambda entry: entry.pair in pairs)

    def refund_queued(self) -> tuple[Correct, ...]:
        """Take the entries of queues, for a call that gives up waiting; return the commands that refund them."""
        return self._take(lambda entry: entry.charge.rule.is_queue)

    def refund_for_status(self, status: int | str) -> tuple[Correct, ...]:
        """End the call with this HTTP status, or as CANCELLED. Return the commands that refund charges not counted."""
        refunds = self._take(lambda entry: not entry.charge.rule.counts(status))
        self.end()
        return refunds

    def refund_for_refusal(self) -> tuple[Correct, ...]:
        """End the call as refused; return the commands that refund it, as if a single decision had refused it."""
        refunds = self._take(lambda entry: not entry.charge.rule.count_denied)
        self._entries = ()
        return refunds

    def _take(self, is_refunded: Callable[[LedgerEntry], bool]) -> tuple[Correct, ...]:
        entries = self.entries
        taken = [entry for entry in entries if is_refunded(entry)]
        if taken:
            self._entries = tuple([entry for entry in entries if not is_refunded(entry)])
        return corrections(taken)

    def end(self) -> None:
        """End the call: its charges stay, and its reserves become unsettled."""
        self.unsettled += tuple([entry for entry in self.entries if entry.charge.rule.is_measured])
        self._entries = ()

    def drop(self) -> None:
        """End a call that has reserved nothing: its charges stay. Reads nothing, so it costs less than ``end``."""
        self._unread, self._entries, self._ended = Ledger._unread, (), len(self._decisions)

    def forget_costs(self) -> None:
        """Forget the costs, because the request is used for another call."""
        self._decisions, self._ended, self._costs = (), 0, {}

    def settle(self, used: Callable[[Rule], int | None], scope: str, name: str) -> Correct | None:
        """Take the unsettled entries; return the command that settles them, see ``settlement``."""
        entries, self.unsettled = self.unsettled, ()
        return settlement(entries, used, scope, name)


def entries_of(charges: Sequence[Charge], answers: Sequence[Answer], *, locally: bool = False) -> Iterator[LedgerEntry]:
    """Yield the entries of a decision with these answers; ``locally`` if this process alone made it."""
    for charge, answer in zip(charges, answers, strict=True):
        rule = charge.rule
        if answer.retry == 0 and (charge.cost or rule.is_measured) and not rule.holds_slots:
            yield LedgerEntry(charge, answer.at, answer.reset, locally)


def corrections(entries: Sequence[LedgerEntry]) -> tuple[Correct, ...]:
    """Return the commands that refund these entries, newest first: for the store, and for this process's own counts."""
    parts = [tuple([entry for entry in reversed(entries) if entry.locally is locally]) for locally in (False, True)]
    return tuple([Correct(part) for part in parts if part])


def settlement(
    entries: Iterable[LedgerEntry], used: Callable[[Rule], int | None], scope: str, name: str
) -> Correct | None:
    """Return the command that corrects the reserves of a call under measured rules; None if they were right.

    ``used`` returns what the call used under a rule, or None to keep the reserve. ``scope`` is the call's scope, and
    ``name`` identifies the call.
    """
    reserved: dict[tuple[str, str], list[LedgerEntry]] = {}
    for entry in entries:
        if entry.charge.rule.is_measured:
            reserved.setdefault((entry.charge.rule.id, entry.charge.ident), []).append(entry)
    refunds: list[LedgerEntry] = []
    charges: list[LedgerEntry] = []
    measured: list[MeasuredCost] = []
    for (rule_id, _), paid in reserved.items():
        rule = paid[0].charge.rule
        if (cost := used(rule)) is None:
            continue
        more = cost - sum(entry.charge.cost for entry in paid)
        if more > 0:
            charges.append(paid[0].costing(more))
        refunds += _last(paid, -more)
        if rule.reserve == MEAN:
            measured.append(MeasuredCost(rule_id, scope, cost))
    return Correct(tuple(refunds), tuple(charges), name, tuple(measured)) if refunds or charges or measured else None


def _last(entries: Sequence[LedgerEntry], cost: int) -> Iterator[LedgerEntry]:
    """Yield entries that come to ``cost``, newest first."""
    for entry in reversed(entries):
        if cost > 0:
            yield entry.costing(min(cost, entry.charge.cost))
            cost -= entry.charge.cost
