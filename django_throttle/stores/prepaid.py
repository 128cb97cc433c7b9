"""Decisions under prepaid rules: by what this process holds, else by a purchase for this call and later ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django_throttle.core import decide
from django_throttle.core.commands import Answer, Charge, Charges, Decide
from django_throttle.core.decide import decide_without_store
from django_throttle.core.decision import Decision, Outcome, Reason, combine_outcomes
from django_throttle.core.io import Io, run
from django_throttle.core.prepaid import PrepaidCall
from django_throttle.exceptions import Cause, RepeatCommand, StoreError
from django_throttle.local.prepaid import PendingOrder, PrepaidBudgets
from django_throttle.runtime import spawn
from django_throttle.stores.base import StoreIo
from django_throttle.stores.redis.timeouts import seconds_for


async def decide_prepaid(
    io: StoreIo,
    charges: Sequence[Charge],
    decide_rest: Callable[[Sequence[Charge]], Awaitable[Decision]],
    *,
    keeps_ledger: bool = False,
) -> Decision:
    """Decide all charges as one, those of prepaid rules by what is held; ``decide_rest`` decides the others.

    A prepaid rule refuses before the others are asked. What they refuse is given back. Without the store, the failure
    policies of all rules decide. The ledger has units that were held only if it ``keeps_ledger``, which takes longer.
    """
    budgets = io.store.local_limits.prepaid
    if len(charges) == 1 and not keeps_ledger and (known := budgets.spend(*charges[0])):
        return known
    call = PrepaidCall(tuple([one for one in charges if _is_bought(one)]))
    try:
        await take_units(io, call)
    except StoreError as error:
        return await _without_store(io, charges, error)
    decision, rest = call.decision, tuple([one for one in charges if not _is_bought(one)])
    if rest and decision.allowed:
        try:
            others = await decide_rest(rest)
        except BaseException:
            budgets.release(call)
            raise
        ours, theirs = iter(decision.outcomes), iter(others.outcomes)
        outcomes = tuple([next(ours if _is_bought(one) else theirs) for one in charges])
        crossed = call.crossed + others.crossed if others.allowed else ()
        decision = combine_outcomes(outcomes, others.lease, degraded=others.degraded, ledger=others.ledger)
        decision = decision._replace(crossed=crossed, cause=others.cause)
    if not decision.allowed:
        budgets.release(call)
    elif keeps_ledger:
        taken = [one for each in call.taken.values() for one in each]
        decision.ledger.add(tuple([one.units.part(one.cost) for one in taken]))
    return decision


async def peek_prepaid(
    decide_exact: Callable[[], Awaitable[Decision]], charges: Sequence[Charge], budgets: PrepaidBudgets
) -> Decision:
    """What the store says of these charges, with what this process holds."""
    decision = await decide_exact()
    asked = {(one.rule.name, one.ident): one for one in charges if one.rule.prepaid}
    outcomes = []
    for one in decision.outcomes:
        charge = asked.get((one.rule, one.ident))
        outcomes.append(one if charge is None else _with_held(one, charge.cost, budgets.held(charge)))
    return combine_outcomes(tuple(outcomes), degraded=decision.degraded)._replace(cause=decision.cause)


def _with_held(one: Outcome, cost: int, held: int) -> Outcome:
    remaining = min(one.limit, one.remaining + held)
    if not one.allowed and cost <= remaining and held:
        one = one._replace(allowed=True, retry_after=0.0, reason=Reason.WITHIN)
    return one._replace(remaining=remaining)


def _is_bought(charge: Charge) -> bool:
    return charge.rule.prepaid and charge.cost > 0


async def take_units(io: StoreIo, call: PrepaidCall) -> None:
    """Take what the claim needs, or have it refused; raises StoreError, and has then taken nothing."""
    budgets = io.store.local_limits.prepaid
    try:
        while not call.has_ended and (todo := budgets.take_or_order(call)) is not None:
            if todo.order.call is call:
                buy = partial(_buy, io, budgets, todo)
                await io.call(partial(_buy_at_once, buy), partial(_buy_in_task, buy))
            else:
                patience = seconds_for(None, budgets.patience)
                await io.call(partial(_wait, todo, patience), partial(_await, todo, patience))
            if todo.done.done() and (error := todo.done.result()):
                raise error
    except BaseException:
        budgets.release(call)
        raise


async def _buy(io: Io, budgets: PrepaidBudgets, pending: PendingOrder) -> None:
    """Make a purchase; where so much is not left, a smaller one, and in the end what the call itself needs."""
    error, order = None, pending.order
    try:
        while True:
            sent_at = budgets.clock()
            command = order.command(sent_at)
            answers = await _ask(io, command)
            if not order.shrink(answers):
                break
        budgets.settle_order(order, command, answers, sent_at)
    except StoreError as failure:
        error = failure
    finally:
        budgets.end(pending, error)


async def _ask(io: Io, command: Decide) -> Sequence[Answer]:
    try:
        return await io.execute(command)
    except RepeatCommand:
        return await io.execute(command)


BuyUnits = Callable[[], Coroutine[Any, Any, None]]


def _buy_at_once(buy: BuyUnits) -> None:
    run(buy())


async def _buy_in_task(buy: BuyUnits) -> None:
    """Buy in a task: a call that is cancelled meanwhile leaves what it buys to others."""
    task = spawn(buy())
    await asyncio.wait({task})
    task.result()


def _wait(pending: PendingOrder, seconds: float) -> None:
    try:
        pending.done.result(seconds)
    except TimeoutError:
        raise StoreError(Cause.UNAVAILABLE, "another call has waited for as long") from None


async def _await(pending: PendingOrder, seconds: float) -> None:
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


async def _without_store(io: StoreIo, charges: Sequence[Charge], error: StoreError) -> Decision:
    def by_policy(some: Sequence[Charge]) -> Awaitable[Decision]:
        return decide_without_store(io, Decide(Charges.of(some)), error)

    if any(one.rule.decided_locally for one in charges):
        return await decide.decide_with_local(charges, True, io.store.local_limits, by_policy)
    return await by_policy(charges)
