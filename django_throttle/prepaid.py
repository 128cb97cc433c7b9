"""Decisions under prepaid rules: by what this process holds, else by a purchase for this call and later ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from django_throttle import agent_thread
from django_throttle.core import decide
from django_throttle.core.commands import Answer, Charge, Decide, Paid
from django_throttle.core.decide import Flow, decide_without_store, refund_charges
from django_throttle.core.decision import Decision, Outcome, Reason, conclude
from django_throttle.core.prepaid import Claim
from django_throttle.event_loop import spawn
from django_throttle.exceptions import Cause, RepeatCommand, StoreError
from django_throttle.local_limits import Pending, PrepaidBudgets
from django_throttle.rulebook import carry_over
from django_throttle.stores.base import Step, Steps, Store, arun, run
from django_throttle.stores.timeouts import seconds_for

Charges = Sequence[Charge]


def decide_prepaid(
    charges: Charges, store: Store, decide_rest: Callable[[Charges], Flow[Decision]], *, whole: bool = False
) -> Steps[Decision]:
    """Decide all charges as one, those of prepaid rules by what is held; ``decide_rest`` decides the others.

    A prepaid rule refuses before the others are asked. What they refuse is given back. Without the store, the failure
    policies of all rules decide.
    """
    if len(charges) == 1 and not whole and (known := store.local_limits.prepaid.spend(*charges[0])):
        return known
    claim = Claim(tuple([one for one in charges if _is_bought(one)]))
    try:
        yield from take_units(claim, store)
    except StoreError as error:
        return (yield from _without_store(charges, store, error, whole=whole))
    decision, rest = claim.decision, tuple([one for one in charges if not _is_bought(one)])
    if rest and decision.allowed:
        try:
            others = yield from decide_rest(rest)
        except BaseException:
            store.local_limits.prepaid.release(claim)
            raise
        ours, theirs = iter(decision.outcomes), iter(others.outcomes)
        outcomes = tuple([next(ours if _is_bought(one) else theirs) for one in charges])
        crossed = claim.crossed + others.crossed if others.allowed else ()
        decision = conclude(outcomes, others.lease, degraded=others.degraded, paid=others.paid)
        decision = decision._replace(crossed=crossed, cause=others.cause)
    if not decision.allowed:
        store.local_limits.prepaid.release(claim)
    elif whole:
        return decision._replace(paid=_with_units(decision.paid, claim))
    return decision


def decide_bought(claim: Claim, store: Store, *, carried: bool = False) -> Steps[Decision]:
    """Decide a call under rules that are all bought ahead here, prepaid or not; where asking is free, by itself.

    What it takes can be given back by ``release_bought``. ``carried`` as in ``decide_flow``.
    """
    if carry_over.edits and not carried and (due := carry_over.due(claim.charges)):
        return (yield from carry_over.carry_first(due, partial(decide_bought, claim, store, carried=True)))
    try:
        if store.is_costly:
            yield from take_units(claim, store)
            decision = claim.decision
        else:
            decision = yield from decide.decide_charges(claim.charges, whole=True)
    except StoreError as error:
        decision = yield from _without_store(claim.charges, store, error, whole=True)
    claim.paid = decision.paid
    try:
        if decision.crossed:
            decision = yield from decide.drop_reported(decision)
    except BaseException:
        store.local_limits.prepaid.release(claim)
        raise
    if not decision.allowed:
        store.local_limits.prepaid.release(claim)
    elif any(one.rule.is_measured for one in claim.charges):
        decision = decision._replace(paid=_with_units(decision.paid, claim))
    return decision


def release_bought(claim: Claim, store: Store) -> Flow[None]:
    """The call does not happen after all: what it took is there for others, or goes back."""
    store.local_limits.prepaid.release(claim)
    if claim.paid is not None:
        yield from refund_charges(claim.paid.receipt)
    claim.paid = None


def peek_prepaid(decided: Flow[Decision], charges: Charges, budgets: PrepaidBudgets) -> Flow[Decision]:
    """What the store says of these charges, with what this process holds."""
    decision = yield from decided
    asked = {(one.rule.name, one.ident): one for one in charges if one.rule.prepaid}
    outcomes = []
    for one in decision.outcomes:
        charge = asked.get((one.rule, one.ident))
        outcomes.append(one if charge is None else _with_held(one, charge.cost, budgets.held(charge)))
    return conclude(tuple(outcomes), degraded=decision.degraded)._replace(cause=decision.cause)


def _with_held(one: Outcome, cost: int, held: int) -> Outcome:
    remaining = min(one.limit, one.remaining + held)
    if not one.allowed and cost <= remaining and held:
        one = one._replace(allowed=True, retry_after=0.0, reason=Reason.WITHIN)
    return one._replace(remaining=remaining)


def _is_bought(charge: Charge) -> bool:
    return charge.rule.prepaid and charge.cost > 0


def take_units(claim: Claim, store: Store) -> Steps[None]:
    """Take what the claim needs, or have it refused; raises StoreError, and has then taken nothing."""
    budgets = store.local_limits.prepaid
    try:
        while not claim.has_ended and (todo := budgets.look(claim)) is not None:
            if isinstance(todo, float):
                yield Step(partial(time.sleep, todo), partial(asyncio.sleep, todo))
                continue
            if todo.buying.claim is claim:
                agent_thread.ensure(store)
                buy = partial(_buy, budgets, todo)
                yield Step(partial(_at_once, buy, store), partial(_in_task, buy, store))
            else:
                patience = seconds_for(None, budgets.patience)
                yield Step(partial(_wait, todo, patience), partial(_await, todo, patience))
            if todo.done.done() and (error := todo.done.result()):
                raise error
    except BaseException:
        budgets.release(claim)
        raise


def _buy(budgets: PrepaidBudgets, pending: Pending) -> Flow[None]:
    """Make a purchase; where so much is not left, a smaller one, and in the end what the call itself needs."""
    error, buying = None, pending.buying
    try:
        while True:
            sent_at = budgets.clock()
            command = buying.command(sent_at)
            answers = yield from _ask(command)
            if not buying.shrink(answers):
                break
        budgets.bought(buying, command, answers, sent_at)
    except StoreError as failure:
        error = failure
    finally:
        budgets.end(pending, error)


def _ask(command: Decide) -> Flow[tuple[Answer, ...]]:
    try:
        answers: tuple[Answer, ...] = yield command
    except RepeatCommand:
        answers = yield command
    return answers


def _at_once(buy: Callable[[], Flow[None]], store: Store) -> None:
    run(buy(), store)


async def _in_task(buy: Callable[[], Flow[None]], store: Store) -> None:
    """Buy in a task: a call that is cancelled meanwhile leaves what it buys to others."""
    task = spawn(arun(buy(), store))
    await asyncio.wait({task})
    task.result()


def _wait(pending: Pending, seconds: float) -> None:
    try:
        pending.done.result(seconds)
    except TimeoutError:
        raise StoreError(Cause.UNAVAILABLE, "another call has waited for as long") from None


async def _await(pending: Pending, seconds: float) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # that loop has ended
            loop.call_soon_threadsafe(told.set)

    pending.done.add_done_callback(tell)
    try:
        async with asyncio.timeout(seconds):
            await told.wait()
    except TimeoutError:
        raise StoreError(Cause.UNAVAILABLE, "another call has waited for as long") from None


def _without_store(charges: Charges, store: Store, error: StoreError, *, whole: bool) -> Flow[Decision]:
    def by_policy(some: Charges) -> Flow[Decision]:
        return decide_without_store(Decide(some, whole=whole), error)

    if any(one.rule.is_damper for one in charges):
        return (yield from decide.decide_with_local(charges, True, store.local_limits, by_policy))
    return (yield from by_policy(charges))


def _with_units(paid: Paid | None, claim: Claim) -> Paid:
    """What a call was charged, with the units that it took: each as a part of its purchase."""
    taken = [one.purchase.part(one.cost) for all_of in claim.taken.values() for one in all_of]
    before = paid or Paid(Decide((), whole=True), ())
    charges = *before.decide.charges, *[one.charge for one in taken]
    answers = *before.answers, *[Answer(0, 0, one.reset, one.at) for one in taken]
    return before._replace(decide=before.decide._replace(charges=charges), answers=answers)


def give_back(store: Store, *, everything: bool = False) -> None:
    """Refund what may be spent no longer, or all that is held. What cannot be refunded counts until it ages out."""
    for refund in store.local_limits.prepaid.sweep(everything=everything):
        run(refund_charges(refund), store)
