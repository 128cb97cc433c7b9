"""Decisions under prepaid rules, by the units that this process holds. It buys more for this call and later ones."""

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
    """Decide all charges as one, those of prepaid rules by held units. ``decide_rest`` decides the others.

    Prepaid rules are decided first. If another rule refuses, their units are put back. If the store fails, the failure
    policies of all rules decide. Prepaid units are only in the ledger if ``keeps_ledger`` is True, which takes longer.
    """
    budgets = io.store.local_limits.prepaid
    if len(charges) == 1 and not keeps_ledger and (held_decision := budgets.spend(*charges[0])):
        return held_decision
    call = PrepaidCall(tuple([charge for charge in charges if _is_bought(charge)]))
    try:
        await take_units(io, call)
    except StoreError as error:
        return await _without_store(io, charges, error)
    decision, rest = call.decision, tuple([charge for charge in charges if not _is_bought(charge)])
    if rest and decision.allowed:
        try:
            rest_decision = await decide_rest(rest)
        except BaseException:
            budgets.release(call)
            raise
        prepaid_outcomes, rest_outcomes = iter(decision.outcomes), iter(rest_decision.outcomes)
        outcomes = tuple([next(prepaid_outcomes if _is_bought(charge) else rest_outcomes) for charge in charges])
        crossed = call.crossed + rest_decision.crossed if rest_decision.allowed else ()
        decision = combine_outcomes(
            outcomes, rest_decision.lease, degraded=rest_decision.degraded, ledger=rest_decision.ledger
        )
        decision = decision._replace(crossed=crossed, cause=rest_decision.cause)
    if not decision.allowed:
        budgets.release(call)
    elif keeps_ledger:
        parts = [part for parts in call.taken.values() for part in parts]
        decision.ledger.add(tuple([part.units.part(part.cost) for part in parts]))
    return decision


async def peek_prepaid(
    decide_exact: Callable[[], Awaitable[Decision]], charges: Sequence[Charge], budgets: PrepaidBudgets
) -> Decision:
    """Return the store's decision, with the units that this process holds added to the remaining ones."""
    decision = await decide_exact()
    prepaid_charges = {(charge.rule.name, charge.ident): charge for charge in charges if charge.rule.prepaid}
    outcomes = []
    for outcome in decision.outcomes:
        prepaid = prepaid_charges.get((outcome.rule, outcome.ident))
        outcomes.append(outcome if prepaid is None else _add_held(outcome, prepaid.cost, budgets.held(prepaid)))
    return combine_outcomes(tuple(outcomes), degraded=decision.degraded)._replace(cause=decision.cause)


def _add_held(outcome: Outcome, cost: int, held_units: int) -> Outcome:
    remaining = min(outcome.limit, outcome.remaining + held_units)
    if not outcome.allowed and cost <= remaining and held_units:
        outcome = outcome._replace(allowed=True, retry_after=0.0, reason=Reason.WITHIN)
    return outcome._replace(remaining=remaining)


def _is_bought(charge: Charge) -> bool:
    return charge.rule.prepaid and charge.cost > 0


async def take_units(io: StoreIo, call: PrepaidCall) -> None:
    """Take the units of a call, or have it refused. Raise StoreError without taking any."""
    budgets = io.store.local_limits.prepaid
    try:
        while not call.has_ended and (pending := budgets.take_or_order(call)) is not None:
            if pending.order.call is call:
                buy = partial(_buy, io, budgets, pending)
                await io.call(partial(_buy_at_once, buy), partial(_buy_in_task, buy))
            else:
                wait_seconds = seconds_for(None, budgets.patience)
                await io.call(
                    partial(_wait_for_order, pending, wait_seconds), partial(_await_order, pending, wait_seconds)
                )
            if pending.done.done() and (error := pending.done.result()):
                raise error
    except BaseException:
        budgets.release(call)
        raise


async def _buy(io: Io, budgets: PrepaidBudgets, pending: PendingOrder) -> None:
    """Buy the units of an order. If less is left, buy fewer, at last the units of the call itself."""
    error, order = None, pending.order
    try:
        while True:
            sent_at = budgets.clock()
            command = order.command(sent_at)
            answers = await _execute(io, command)
            if not order.shrink(answers):
                break
        budgets.settle_order(order, command, answers, sent_at)
    except StoreError as failure:
        error = failure
    finally:
        budgets.end(pending, error)


async def _execute(io: Io, command: Decide) -> Sequence[Answer]:
    try:
        return await io.execute(command)
    except RepeatCommand:
        return await io.execute(command)


BuyUnits = Callable[[], Coroutine[Any, Any, None]]


def _buy_at_once(buy: BuyUnits) -> None:
    run(buy())


async def _buy_in_task(buy: BuyUnits) -> None:
    """Buy in a task, so that a cancelled call leaves its units to others."""
    task = spawn(buy())
    await asyncio.wait({task})
    task.result()


def _wait_for_order(pending: PendingOrder, seconds: float) -> None:
    try:
        pending.done.result(seconds)
    except TimeoutError:
        raise StoreError(Cause.UNAVAILABLE, "another call has waited as long") from None


async def _await_order(pending: PendingOrder, seconds: float) -> None:
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(woken.set)

    pending.done.add_done_callback(wake)
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        raise StoreError(Cause.UNAVAILABLE, "another call has waited as long") from None


async def _without_store(io: StoreIo, charges: Sequence[Charge], error: StoreError) -> Decision:
    def by_policy(some_charges: Sequence[Charge]) -> Awaitable[Decision]:
        return decide_without_store(io, Decide(Charges.of(some_charges)), error)

    if any(charge.rule.decided_locally for charge in charges):
        return await decide.decide_with_local(charges, True, io.store.local_limits, by_policy)
    return await by_policy(charges)
