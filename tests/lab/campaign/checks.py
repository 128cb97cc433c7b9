"""What must hold of a history: the stated bounds, exact counts, slots that nobody shares, answers in time.

A server acts on a call somewhere between its invocation and its return, so what was invoked and answered within a span
was admitted within it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from tests.bounds import most
from tests.lab.campaign.history import RECOVERY, History, Operation
from tests.lab.campaign.limits import DEADLINE, SETTINGS, Limit
from tests.servers import slack

MICRO = 1_000_000
MARGIN = 0.05
IN_FORCE = slack(1.0)  # until an edited rule is in force in every process
QUIET = slack(20.0)  # until breakers have closed, late charges arrived, and dead processes' slots are free
STARVED = 0.25  # which others' threads may take as well where there is no processor for any
REPORTED = 1.1 * 2.0 + slack(0.1)  # until a process has told what it let through
DAMPED = 6.0  # seconds by which a damper counts
DAMPED_EXCESS = 1.5  # as no limit's demand is steady here
# What keeps no process from telling others what it lets through.
HARMLESS = ("lock database", "lose database", "client clock", "copy", "stop sentinel", "kill sentinel")
HELPLESS = ("starve", "stop client", "silence client")  # in which a process does nothing of what it should
OWED = 15.0  # seconds; a breaker asks every ten at least, and what is owed goes first
SETTLED = float(SETTINGS["PROCESS_TTL"]) / 2 + 1.0  # until every process has registered again after a loss
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
    found = [*late(history), *unanswered(history), *(Breach(f"without a TTL: {key}") for key in history.immortal)]
    found += [Breach(text) for text in history.odd]
    for limit in limits.values():
        for each in CHECKS[limit.kind]:
            found += each(history, limit)
    return found


def late(history: History) -> Iterator[Breach]:
    """Answers, and releases, that took longer than the deadline and 50 ms, or somewhat more without a processor."""
    for what, began, took in (
        ("answers", lambda one: one.invoked, lambda one: one.took),
        ("releases", lambda one: one.end, lambda one: one.freed),
    ):
        slow = [one for one in history.operations if took(one) > in_time(history, one, began(one), took(one))]
        if slow:
            slow.sort(key=lambda one: -took(one))
            bound = in_time(history, slow[0], began(slow[0]), took(slow[0]))
            yield Breach(f"{len(slow)} {what} later than {bound:.3f} s, one after {took(slow[0]):.3f} s", slow)


def in_time(history: History, one: Operation, began: float, took: float) -> float:
    """How long an answer may take: longer where its process had no processor, as others have it or it was stopped."""
    bound = DEADLINE + MARGIN
    if took <= bound:
        return bound
    if any(fault.process in (None, one.process) for fault in history.played(began, began + took, *HELPLESS)):
        bound += STARVED
    return slack(bound)


def unanswered(history: History) -> Iterator[Breach]:
    if hung := [one for one in history.operations if one.returned == inf and one.process not in history.killed]:
        yield Breach(f"{len(hung)} calls have not been answered", hung)


def rates(history: History, limit: Limit) -> Iterator[Breach]:
    """In any window the server admits no more than the bound; with the policy local, each process that of its share.

    A process whose clock is set decides by a new window.
    """
    rule, admitted = limit.rule, [one for one in history.of(limit.name) if one.outcome == "ok"]
    alone = [one for one in admitted if one.alone]
    if rule.on_store_failure != "local" and alone:
        yield Breach(f"{limit.name}: admitted without the server", alone)
    yield from windows(history, limit, [one for one in admitted if not one.alone])
    for process in sorted({one.process for one in alone}):
        clock = [one for one in history.played(-inf, inf, "client clock") if one.process == process]
        own = History([one for one in alone if one.process == process], [one._replace(losses=1) for one in clock])
        share = limit._replace(rule=rule.share(history.processes))
        for breach in windows(own, share, own.operations):
            yield breach._replace(what=f"process {process} alone, {breach.what}")
    if rule.action == "delay":
        yield from queues(history, limit, admitted)


def windows(history: History, limit: Limit, admitted: Sequence[Operation]) -> Iterator[Breach]:
    rule = limit.rule
    for span in {rule.rate.window_us, rule.rate.window_us * max(1, rule.resolution - 1) // rule.resolution}:
        yield from too_many(history, limit, admitted, span / MICRO, most(rule, span))


def queues(history: History, limit: Limit, admitted: Sequence[Operation]) -> Iterator[Breach]:
    gone = [_shifted(one) for one in admitted]
    longest = max((one.wait for one in admitted), default=0.0)
    bound = limit.rule.rate.limit + max((one.cost for one in admitted), default=1) - 1
    yield from too_many(history, limit, gone, limit.rule.rate.window, bound, before=longest)


def prepaid(history: History, limit: Limit) -> Iterator[Breach]:
    """The bound holds, as of a rule that is not prepaid. What was bought before a loss may pass after it."""
    admitted = [one for one in history.of(limit.name) if one.outcome == "ok"]
    bound, held = most(replace(limit.rule, prepaid=False)), limit.rule.params.hold_us / 1_000_000
    yield from too_many(history, limit, admitted, limit.rule.rate.window, bound, before=held)


def is_undisturbed(history: History, begin: float, end: float) -> bool:
    """Whether nothing kept anybody from asking the server; a breaker may be open for longer than a fault lasts."""
    faults = [fault for fault in history.played(begin - RECOVERY, end) if fault.name not in HARMLESS]
    return begin >= 0 and not faults and not any(begin < one.returned and one.invoked < end for one in history.alone)


def dampers(history: History, limit: Limit) -> Iterator[Breach]:
    """No process alone admits more than 1.5 times the rate over two seconds, and a tenth more by chance.

    So all of them admit no more than so many times that. Where nothing is done to anybody, six seconds after the first
    reports, it is the limit, as far as demand is steady.
    """
    rate = limit.rule.rate.limit / limit.rule.rate.window
    for own in by_process(history, limit):
        yield from too_many(history, limit, own, 2.0, round(2 * 1.65 * rate), each=0)
    yield from too_many(history, limit, settled(history, limit), DAMPED, round(DAMPED * DAMPED_EXCESS * rate), each=0)


def settled(history: History, limit: Limit) -> list[Operation]:
    before = DAMPED + 2 * REPORTED
    admitted = [one for one in history.of(limit.name) if one.outcome == "ok"]
    return [one for one in admitted if is_undisturbed(history, one.invoked - before, one.returned)]


def calm(history: History, limit: Limit) -> Iterator[Breach]:
    refused = [one for one in history.of(limit.name) if one.outcome == "refused"]
    if refused:
        yield Breach(f"{limit.name}: suppressed within its limit", refused)


def in_force(history: History, limit: Limit) -> Iterator[Breach]:
    """Each answer goes by the rule of the database, as it is or was a second ago; faults make that longer.

    Until a process has read the database it goes by settings. Where the server has lost the news of an edit, that one
    is heard of with the next.
    """
    following = [inf]
    for edit in reversed(history.edits[1:]):
        is_told = not history.losses(edit.begin - RECOVERY, edit.end + RECOVERY)
        following.insert(0, edit.end if is_told else following[0])
    started: dict[int, float] = {}
    wrong = []
    for one in sorted(history.of(limit.name), key=lambda one: one.invoked):
        begun = started.setdefault(one.process, one.invoked)
        ends = [
            end
            for edit, end in zip(history.edits, following, strict=False)
            if edit.limit == one.said and edit.begin <= one.returned
        ]
        if one.said == limit.rule.params.limit:
            ends.append(begun)
        if one.said is not None and (not ends or history.calm(max(ends), one.invoked) > IN_FORCE):
            wrong.append(one)
    if wrong and history.edits:
        yield Breach(f"{limit.name}: {len(wrong)} answers go by a limit that is not in force", wrong)


def tally(history: History, limit: Limit) -> Iterator[Breach]:
    """ok ≤ counted ≤ ok + unknown, but for what was lost."""
    perhaps = sum(one.cost for one in history.of(limit.name) if one.outcome == "ok" or is_unknown(one))
    yield from _counted(history, limit, surely_counted(history, limit), perhaps)


def is_unknown(one: Operation) -> bool:
    return one.asked and (one.alone or one.outcome == "unknown")


def local_tally(history: History, limit: Limit) -> Iterator[Breach]:
    """What was admitted is charged once, also what processes have admitted alone.

    Where one of these had asked the server, that may have counted the call as well. A server that evicts keys may
    forget that it was charged, and be charged again.
    """
    every = history.of(limit.name)
    once = sum(one.cost for one in every if one.outcome == "ok")
    evicted = [one for one in history.faults if one.name == "evict"]
    again = [one for one in every if one.alone and any(at.begin - OWED < one.invoked < at.end for at in evicted)]
    perhaps = sum(one.cost for one in every if is_unknown(one)) + sum(one.cost for one in again)
    yield from _counted(history, limit, surely_counted(history, limit), once + perhaps)


def surely_counted(history: History, limit: Limit) -> int:
    """What passed since the last loss; but for what a process had decided alone, and then was killed before it told."""
    since = history.last_loss("clock")
    ok = [one for one in history.of(limit.name) if one.outcome == "ok" and one.invoked > since]
    return sum(one.cost for one in ok if not (one.alone and one.process in history.killed))


def leases(history: History, limit: Limit) -> Iterator[Breach]:
    """Of slots that are surely held, no more at any moment than there are; and none that nobody holds.

    What a process grants alone is no more than its share, with all that it holds. It comes on top of what the server
    grants, until that has been told.
    """
    taken = sorted((one for one in history.of(limit.name) if one.outcome == "ok"), key=lambda one: one.returned)
    if limit.rule.on_store_failure == "deny" and (alone := [one for one in taken if one.alone]):
        yield Breach(f"{limit.name}: granted without the server", alone)
    held: list[Operation] = []
    for one in taken:
        held = [other for other in held if _end(history, other) > one.returned]
        held.append(one)
        what, count, allowed = "slots", held, limit.rule.share(history.processes).limit or 0
        if one.alone:
            what = f"slots of process {one.process}"
            count = [other for other in held if other.process == one.process and _before(other, one)]
        else:
            granted = [other for other in held if not other.alone]
            if len(granted) < len(held) and not is_undisturbed(history, one.invoked - SETTLED, one.returned):
                count = granted
            allowed = _slots(history, limit, min(other.invoked for other in count), one)
        if len(count) > allowed:
            yield Breach(f"{limit.name}: {len(count)} {what} held at {one.returned:.4f}, {allowed} allowed", count)
            break
    counted, truly = history.held.get(limit.name, (0, 0))
    if counted != truly:
        yield Breach(f"{limit.name}: the server counts {counted} slots, {truly} are held")


CHECKS: dict[str, tuple[Callable[[History, Limit], Iterator[Breach]], ...]] = {
    "rate": (rates,), "door": (rates, in_force), "prepaid": (prepaid,), "damper": (dampers,), "calm": (calm,),
    "many": (), "tally": (tally,), "local tally": (local_tally,), "lease": (leases,),
}  # fmt: skip


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
    each = limit.rule.params.limit if each is None else each
    returns: list[tuple[float, int]] = []  # each unit of those invoked from here on
    smallest: tuple[float, float, float, int] | None = None
    for place, one in sorted(enumerate(admitted), key=lambda pair: -pair[1].invoked):
        for _ in range(one.cost):
            insort(returns, (one.returned, place))
        begin, end = one.invoked, one.invoked + span
        if len(returns) <= bound or returns[bound][0] >= end:
            continue
        losses = history.losses(begin - before, end)
        allowed = bound + each * losses
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
    admitted = [one for one in history.of(limit.name) if one.outcome == "ok"]
    for process in sorted({one.process for one in admitted}):
        yield [one for one in admitted if one.process == process]


def _counted(history: History, limit: Limit, least: int, at_most: int) -> Iterator[Breach]:
    counted = history.counted.get(limit.name, least)
    if not least <= counted <= at_most:
        yield Breach(f"{limit.name}: {counted} counted, {least} surely, {at_most} at most")


def _slots(history: History, limit: Limit, since: float, one: Operation) -> int:
    """How many may be held when this one is granted: more only while a loss may be unknown, or the server away."""
    slots = limit.rule.limit or 0
    losses = [fault for fault in history.faults if fault.slots_lost and fault.end > since]
    fresh = any(fault.begin < one.returned and fault.end + SETTLED > one.invoked for fault in losses)
    times = sum(fault.slots_lost for fault in losses if fault.begin < one.returned) if fresh else 0
    return slots * (1 + times)


def _before(other: Operation, one: Operation) -> bool:
    """Whether what is held was held when the process granted this one alone, or was granted so as well."""
    return other is one or other.alone or other.returned <= one.invoked


def _end(history: History, one: Operation) -> float:
    return min(one.end, history.killed.get(one.process, one.end))


def _shifted(one: Operation) -> Operation:
    return Operation(one.process, one.limit, one.cost, one.invoked + one.wait, one.returned + one.wait, one.outcome)
