"""What must hold of a history: the stated bounds, exact counts, slots that nobody shares, answers in time.

Nothing here asks the package what it decided or when: a server acts on a call somewhere between its invocation and its
return, so what was invoked and answered within a span was admitted within it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from tests.bounds import most
from tests.campaign.history import History, Operation
from tests.campaign.limits import DEADLINE, SETTINGS, Limit
from tests.servers import slack

MICRO = 1_000_000
MARGIN = 0.05
LOT_SECONDS = 0.25  # a socket spends what it has bought within so long, with windows as short as ours
SETTLED = 2 * float(SETTINGS["BEAT_INTERVAL"]) + 1.0  # until every process has registered again after a loss
RETURNED = LOT_SECONDS + 1.0  # until what a socket has bought and not spent has gone back, by its pace
SHOWN = 12


class Breach(NamedTuple):
    """What does not hold, and the operations that show it: as few as there are."""

    what: str
    operations: Sequence[Operation] = ()

    def __str__(self) -> str:
        lines = [self.what, *(f"    {one}" for one in self.operations[:SHOWN])]
        if len(self.operations) > SHOWN:
            lines.append(f"    … and {len(self.operations) - SHOWN} more")
        return "\n".join(lines)


def check(history: History, limits: Mapping[str, Limit]) -> list[Breach]:
    """All that does not hold."""
    found = [
        *late(history, limits),
        *unanswered(history),
        *(Breach(f"without a TTL: {key}") for key in history.immortal),
    ]
    found += [Breach(text) for text in history.odd]
    for limit in limits.values():
        found += CHECKS[limit.kind](history, limit)
    return found


def late(history: History, limits: Mapping[str, Limit]) -> Iterator[Breach]:
    """Answers that took longer than the deadline and 50 ms; a frame of a socket may wait until it may be asked for."""
    bound = slack(DEADLINE + MARGIN)
    slow = [one for one in history.timed() if one.took > bound and limits[one.limit].kind != "prepaid"]
    if slow:
        slow.sort(key=lambda one: -one.took)
        yield Breach(f"{len(slow)} answers later than {bound:.3f} s, one after {slow[0].took:.3f} s", slow)


def unanswered(history: History) -> Iterator[Breach]:
    """Calls of processes that lived to the end, and never returned."""
    if hung := [one for one in history.operations if one.returned == inf and one.process not in history.killed]:
        yield Breach(f"{len(hung)} calls have not been answered", hung)


def rates(history: History, limit: Limit) -> Iterator[Breach]:
    """In any window no more than the bound; with the policy local, than that and the bound of each process's share."""
    rule, admitted = limit.rule, [one for one in history.of(limit.name) if one.outcome == "ok"]
    alone = 0
    if rule.on_store_failure == "local":
        # A process whose clock is set decides by a new window.
        windows = history.incarnations() + sum(fault.name == "client clock" for fault in history.faults)
        alone = windows * most(rule.share(history.processes))
    elif any(one.alone for one in admitted):
        yield Breach(f"{limit.name}: admitted without the server", [one for one in admitted if one.alone])
    for span in {rule.rate.window_us, rule.rate.window_us * max(1, rule.resolution - 1) // rule.resolution}:
        yield from too_many(history, limit, admitted, span / MICRO, most(rule, span) + alone)
    if rule.action == "delay":
        yield from queues(history, limit, admitted)


def queues(history: History, limit: Limit, admitted: Sequence[Operation]) -> Iterator[Breach]:
    """Those whose turn has come: the limit, and what the last of them costs beyond its first unit."""
    gone = [_shifted(one) for one in admitted]
    longest = max((one.wait for one in admitted), default=0.0)
    bound = limit.rule.rate.limit + max((one.cost for one in admitted), default=1) - 1
    yield from too_many(history, limit, gone, limit.rule.rate.window, bound, before=longest)


def prepaid(history: History, limit: Limit) -> Iterator[Breach]:
    """What was charged in a window was spent in it, or shortly afterwards.

    What goes back after a loss was charged before it.
    """
    admitted = [one for one in history.of(limit.name) if one.outcome == "ok"]
    span = limit.rule.rate.window - LOT_SECONDS
    yield from too_many(history, limit, admitted, span, most(limit.rule), before=RETURNED)


def batched(history: History, limit: Limit) -> Iterator[Breach]:
    """The bound for each process by itself, whatever the server loses; faults keep them from hearing of each other."""
    for own in by_process(history, limit):
        yield from too_many(history, limit, own, limit.rule.rate.window, most(limit.rule), each=0)


def dampers(history: History, limit: Limit) -> Iterator[Breach]:
    """No process alone admits more than 1.5 times the rate over two seconds, and a tenth more by chance."""
    rate = limit.rule.rate.limit / limit.rule.rate.window
    for own in by_process(history, limit):
        yield from too_many(history, limit, own, 2.0, round(2 * 1.65 * rate), each=0)


def calm(history: History, limit: Limit) -> Iterator[Breach]:
    """Nobody is suppressed who keeps to the limit."""
    refused = [one for one in history.of(limit.name) if one.outcome == "refused"]
    if refused:
        yield Breach(f"{limit.name}: suppressed within its limit", refused)


def many(history: History, limit: Limit) -> Iterator[Breach]:
    """Callers that come once in a while: their answers are to be in time, and leave nothing behind."""
    return iter(())


def tally(history: History, limit: Limit) -> Iterator[Breach]:
    """ok ≤ counted ≤ ok + unknown, but for what was lost."""
    unknown = sum(one.cost for one in history.of(limit.name) if one.outcome == "unknown")
    least = surely_counted(history, limit)
    yield from _counted(history, limit, least, least + unknown)


def local_tally(history: History, limit: Limit) -> Iterator[Breach]:
    """What was admitted is charged, also what processes that live have admitted alone; such a call perhaps twice."""
    every = history.of(limit.name)
    once = sum(one.cost for one in every if one.outcome != "refused")
    twice = sum(one.cost for one in every if one.alone or one.outcome == "unknown")
    yield from _counted(history, limit, surely_counted(history, limit), once + twice)


def surely_counted(history: History, limit: Limit) -> int:
    """What passed; but for what a process had decided alone, and then was killed before it could tell."""
    ok = [one for one in history.of(limit.name) if one.outcome == "ok"]
    return sum(one.cost for one in ok if not (one.alone and one.process in history.killed))


def leases(history: History, limit: Limit) -> Iterator[Breach]:
    """Of slots that are surely held, no more at any moment than there are; and none that nobody holds."""
    taken = [one for one in history.of(limit.name) if one.outcome == "ok"]
    if limit.rule.on_store_failure == "deny" and (alone := [one for one in taken if one.alone]):
        yield Breach(f"{limit.name}: granted without the server", alone)
    held: list[Operation] = []
    for one in sorted(taken, key=lambda one: one.returned):
        held = [other for other in held if _end(history, other) > one.returned]
        held.append(one)
        allowed = _slots(history, limit, min(other.invoked for other in held), one)
        if len(held) > allowed:
            yield Breach(f"{limit.name}: {len(held)} slots held at {one.returned:.4f}, {allowed} allowed", held)
            break
    counted, truly = history.held.get(limit.name, (0, 0))
    if counted != truly:
        yield Breach(f"{limit.name}: the server counts {counted} slots, {truly} are held")


CHECKS: dict[str, Callable[[History, Limit], Iterator[Breach]]] = {
    "rate": rates,
    "door": rates,
    "prepaid": prepaid,
    "batched": batched,
    "damper": dampers,
    "calm": calm,
    "many": many,
    "tally": tally,
    "local tally": local_tally,
    "lease": leases,
}


def too_many(
    history: History,
    limit: Limit,
    admitted: Sequence[Operation],
    span: float,
    bound: int,
    *,
    each: int | None = None,
    before: float = 0.0,
) -> Iterator[Breach]:
    """The smallest window of at most ``span`` seconds that holds more than the bound, and ``each`` for each loss in it.

    That is the limit, when None is given. A loss as long as ``before`` the window counts too.
    """
    each = limit.rule.plan.limit if each is None else each
    returns: list[tuple[float, int]] = []  # each unit of those invoked from here on
    smallest: tuple[float, float, float, int] | None = None
    for place, one in sorted(enumerate(admitted), key=lambda pair: -pair[1].invoked):
        for _ in range(one.cost):
            insort(returns, (one.returned, place))
        begin, end = one.invoked, one.invoked + span
        if len(returns) <= bound or returns[bound][0] >= end:
            continue
        allowed = bound + each * history.losses(begin - before, end)
        if bisect_left(returns, (end, -1)) > allowed:
            last = returns[allowed][0]
            if smallest is None or last - begin < smallest[0]:
                smallest = last - begin, begin, last, allowed
    if smallest:
        _, begin, last, allowed = smallest
        inside = [one for one in admitted if one.invoked >= begin and one.returned <= last]
        inside.sort(key=lambda one: one.invoked)
        total = sum(one.cost for one in inside)
        yield Breach(f"{limit.name}: {total} in {last - begin:.4f} s, at most {allowed} in {span:g} s", inside)


def by_process(history: History, limit: Limit) -> Iterator[list[Operation]]:
    """What each process admitted."""
    admitted = [one for one in history.of(limit.name) if one.outcome == "ok"]
    for process in sorted({one.process for one in admitted}):
        yield [one for one in admitted if one.process == process]


def fullest(history: History, limit: Limit) -> int:
    """The most that passed within a window: how near a round came to the bound."""
    admitted = [one for one in history.of(limit.name) if one.outcome == "ok"]
    returns: list[float] = []
    found = 0
    for one in sorted(admitted, key=lambda one: -one.invoked):
        for _ in range(one.cost):
            insort(returns, one.returned)
        found = max(found, bisect_left(returns, one.invoked + limit.rule.rate.window))
    return found


def _counted(history: History, limit: Limit, least: int, at_most: int) -> Iterator[Breach]:
    counted = history.counted.get(limit.name, least)
    if counted > at_most or (counted < least and not any(fault.losses for fault in history.faults)):
        yield Breach(f"{limit.name}: {counted} counted, {least} surely, {at_most} at most")


def _slots(history: History, limit: Limit, since: float, one: Operation) -> int:
    """How many may be held when this one is granted: more only while a loss may be unknown, or the server away."""
    slots = limit.rule.limit or 0
    losses = [fault for fault in history.faults if fault.slots_lost and fault.end > since]
    fresh = any(fault.begin < one.returned and fault.end + SETTLED > one.invoked for fault in losses)
    times = sum(fault.slots_lost for fault in losses if fault.begin < one.returned) if fresh else 0
    if any(other.alone and other.outcome == "ok" for other in history.of(limit.name)):
        times += 1  # the shares of all processes
    return slots * (1 + times)


def _end(history: History, one: Operation) -> float:
    return min(one.end, history.killed.get(one.process, one.end))


def _shifted(one: Operation) -> Operation:
    return Operation(one.process, one.limit, one.cost, one.invoked + one.wait, one.returned + one.wait, one.outcome)
