"""Budgets of tasks: the rule, the ident and the cost of a task's runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async

from django_throttle import limiter, rulebook
from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Charge, check_cost
from django_throttle.core.decide import release_lease
from django_throttle.core.decision import NO_RULE_DECISION, Reason, deciding_outcome
from django_throttle.core.io import run
from django_throttle.costs.measured import run_measured
from django_throttle.exceptions import PutOffTooOften, Refused
from django_throttle.identity import is_async
from django_throttle.identity.call import Call
from django_throttle.identity.caller import NO_TEXT, IdentCaller, ident_from_value, is_user
from django_throttle.identity.keys import shortened
from django_throttle.identity.site_functions import cost_of
from django_throttle.later.queue_slots import QueueSlot
from django_throttle.local.freed_slots import freed_slots
from django_throttle.local.leases import LeaseKey
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, StoreIo

T = TypeVar("T")
Ident = str | Callable[..., Any]
Cost = int | Callable[..., int]
Arguments = tuple[Sequence[object], Mapping[str, object]]
RunTask = Callable[[], Awaitable[T]]  # runs the task


def check_options(rule: object, cost: object, ident: object, max_put_off: object, strict: object) -> None:
    if not isinstance(rule, str) or not rule:
        raise TypeError(f'@throttled_task needs the name of a rule, as in @throttled_task("reports"), not {rule!r}')
    if not callable(cost):
        check_cost(cost)
    if not callable(ident) and not (isinstance(ident, str) and ident):
        raise TypeError(f"ident is a text or a function of the task's arguments, not {ident!r}")
    if any(map(is_async, filter(callable, (cost, ident)))):
        raise TypeError("cost and ident are plain functions, not async ones")
    if type(max_put_off) is not int or max_put_off < 0:
        raise TypeError(f"max_put_off is a whole number, 0 or more, not {max_put_off!r}")
    if type(strict) is not bool:
        raise TypeError(f"strict is True or False, not {strict!r}")


#: Seconds for which an early run waits in its worker, instead of being put off again.
MAX_START_WAIT_SECONDS: Final = 1.0
#: Kind of the idents under which the starts of runs are counted.
STARTS: Final = "starts"


@lru_cache(maxsize=256)
def _start_rule(rule: Rule) -> Rule:
    """Return a rule that spaces starts as this rule spaces queue slots, and refuses runs that would wait too long.

    Refused runs are put off, so they are not charged.
    """
    return replace(rule, action="delay", max_delay=MAX_START_WAIT_SECONDS, count_denied=False)


#: Attribute of a limited task, or of its function, with its TaskBudget.
BUDGET: Final = "budget"


def budget_of(task: object) -> TaskBudget | None:
    """Return the budget of a task's runs, or None for a task that is not limited."""
    for owner in (task, getattr(task, "run", None)):
        if isinstance(budget := getattr(owner, BUDGET, None), TaskBudget):
            return budget
    return None


def takes_slot(task: object, rule: str) -> bool:
    """Return True for a task whose runs are charged to this rule."""
    budget = budget_of(task)
    return budget is not None and budget.rule == rule


class TaskBudget:
    """Budget of one task's runs."""

    def __init__(self, rule: str, cost: Cost, ident: Ident, name: str, *, max_put_offs: int, strict: bool) -> None:
        self.rule, self.max_put_offs, self.strict = rule, max_put_offs, strict
        self._cost, self._ident, self.name = cost, ident, name

    async def call_directly(self, io: StoreIo, run_task: RunTask[T], arguments: Arguments) -> T:
        """Run the task outside a worker, where it cannot be put off. Raise Refused if it is refused."""
        decision = limiter.raise_if_refused(await self.decide(io, arguments, honours_delay=True))
        return await run_once(io, run_task, decision, self.name)

    async def decide(self, io: StoreIo, arguments: Arguments, *, honours_delay: bool = False) -> Decision:
        make_call = partial(self._call, *arguments, honours_delay=honours_delay)
        call = await io.call(make_call, sync_to_async(make_call))
        return await io.call(partial(limiter.decide, call), partial(limiter.adecide, call))

    async def start(self, io: StoreIo, arguments: Arguments) -> Decision:
        """Decide if a run may start now, in addition to its reservation. Wait up to MAX_START_WAIT_SECONDS for that.

        Starts are counted under a separate ident, and are not reported. They are always allowed unless ``strict``.
        """
        if not self.strict:
            return NO_RULE_DECISION
        match = partial(self._starts, *arguments)
        charges = await io.call(match, sync_to_async(match))
        if not charges:
            return NO_RULE_DECISION
        decision = await limiter.decide_fully(io, charges)
        if decision.delay:
            await io.sleep(decision.delay)
        return decision

    def _starts(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Charge, ...]:
        """Return the charges for the start of a run. There are none under a rule without a queue."""
        charges = rulebook.current().match(self._call(args, kwargs, honours_delay=False))
        return tuple(
            [
                charge._replace(rule=_start_rule(charge.rule), ident=f"{STARTS}:{charge.ident}")
                for charge in charges
                if charge.rule.is_queue
            ]
        )

    def slot_awaited(self, decision: Decision) -> LeaseKey | None:
        """Return the rule's id and the ident of the slot that a refused run lacks. Return None for other refusals."""
        outcome = None if decision.allowed else deciding_outcome(decision)
        rule = (rulebook.loaded() or rulebook.current()).by_name(self.rule)
        if outcome is None or rule is None or not rule.holds_slots or outcome.reason is not Reason.EXCEEDED:
            return None
        return rule.id, outcome.ident

    def has_queue_slot(self, queue_slot: QueueSlot, arguments: Arguments) -> bool:
        """Return True if a run with these arguments would reserve a queue slot of this rule and ident."""
        return self.rule == queue_slot.rule and any(
            charge.ident == queue_slot.ident
            for charge in rulebook.current().match(self._call(*arguments, honours_delay=False))
        )

    def slot_of(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Rule, str]:
        """Return the rule and the ident of the slot that a run with these arguments takes."""
        charge = rulebook.current().match(self._call(args, kwargs, honours_delay=False))[0]
        return charge.rule, charge.ident

    def has_slot(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Return True if a slot is free now."""
        charges = rulebook.current().match(self._call(args, kwargs, honours_delay=False))
        return run(limiter.decide_fully(BlockingIo(get_store()), charges, commit=False)).allowed

    async def is_queue(self, io: StoreIo) -> bool:
        """Return True if the rule reserves a queue slot for each call."""
        rules = await io.call(rulebook.current, rulebook.acurrent)
        rule = rules.by_name(self.rule)
        return rule is not None and rule.enabled and rule.is_queue

    def too_often(self, decision: Decision, times: int) -> Refused | None:
        """Return the error of a run that cannot be put off again, or None."""
        if not decision.allowed and decision.retry_after is None:
            return Refused(decision)
        return PutOffTooOften(decision, self.name, times) if times >= self.max_put_offs else None

    def _call(self, args: Sequence[object], kwargs: Mapping[str, object], *, honours_delay: bool) -> Call:
        price = cost_of(self._cost, *args, options=kwargs, call_kind="task")
        value = self._ident(*args, **kwargs) if callable(self._ident) else self._ident
        ident = ident_from_value("ident", value, None) if callable(self._ident) else shortened(value)
        is_untrusted = callable(self._ident) and not is_user(value)
        caller = IdentCaller(ident or NO_TEXT, account=value if is_user(value) else None)
        return Call(
            self.name,
            ("task",),
            caller,
            price,
            rule=self.rule,
            refundable=True,
            ident=ident,
            is_untrusted=is_untrusted,
            honours_delay=honours_delay,
        )


async def run_once(io: StoreIo, run_task: RunTask[T], decision: Decision, scope: str) -> T:
    """Run a task, settle its reserve by the units used, and release its slots."""
    try:
        return await run_measured(io, decision.ledger, scope, run_task)
    finally:
        await release_lease(io, decision.lease)
        if decision.lease is not None:
            await io.call(freed_slots.drain, sync_to_async(freed_slots.drain, thread_sensitive=False))
