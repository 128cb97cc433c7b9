"""Plays a case against a limiter, or sockets: what is asked and compared is written once, for all of them."""

from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from secrets import token_hex
from typing import Any

from django_throttle.core import Decision, Lease, Rule
from django_throttle.core.commands import Charge, charge
from django_throttle.core.decide import correct, settle
from django_throttle.core.io import run
from django_throttle.core.ledger import corrections, settlement
from django_throttle.exceptions import InvalidRule
from django_throttle.limiter import Limiter, decide_fully
from django_throttle.observe.reports import Report
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo
from django_throttle.websockets.counters import MAX_DELAY, SocketCounters, decision_of
from tests.cases import ANY, Case, Step
from tests.clock import FrozenClock
from tests.websockets.guarded import Line, texts

CORRECTIONS = ("refund", "settle", "release")
# Verb and arguments of a call; the answer comes back.
Script = Generator[tuple[str, tuple[Any, ...]], Any, None]


def play(case: Case, limiter: Any, clock: FrozenClock) -> None:
    script, answer = _script(case, clock), None
    while (call := _next(script, answer)) is not None:
        verb, arguments = call
        special = SPECIAL.get(verb)
        if special:
            answer = run(special(BlockingIo(limiter.store), limiter, *arguments))
        else:
            answer = getattr(limiter, verb)(*arguments)


async def aplay(case: Case, limiter: Any, clock: FrozenClock) -> None:
    script, answer = _script(case, clock), None
    while (call := _next(script, answer)) is not None:
        verb, arguments = call
        special = SPECIAL.get(verb) if isinstance(limiter, Limiter) else None
        if special:
            answer = await special(LoopIo(limiter.store), limiter, *arguments)
        else:
            answer = await getattr(limiter, f"a{verb}")(*arguments)


def _next(script: Script, answer: Any) -> tuple[str, tuple[Any, ...]] | None:
    try:
        return script.send(answer)
    except StopIteration:
        return None


def _charges(limiter: Limiter, ident: str, cost: int) -> tuple[Charge, ...]:
    return tuple(charge(part, ident, cost) for rule in limiter.rules for part in rule.parts)


async def _lease(io: StoreIo, limiter: Limiter, ident: str, cost: int) -> Decision:
    return await decide_fully(io, _charges(limiter, ident, cost), socket=True)


async def _refund(io: StoreIo, limiter: Limiter, decision: Decision) -> bool:
    entries = decision.ledger.entries
    settled = [entry for entry in entries if entry.charge.rule.is_settled]
    return await correct(io, corrections(settled or [entry for entry in entries if entry.charge.rule.is_queue]))


async def _settle(io: StoreIo, limiter: Limiter, decision: Decision, used: int, call: str) -> tuple[int, ...]:
    return await settle(io, settlement(decision.ledger.entries, lambda _: used, "search", call))


async def _closed(io: StoreIo, limiter: Limiter) -> list[str]:
    return [message.lease for message in limiter.store.control.fetch() if message.kind == "close"]


# What a limiter has no method for.
SPECIAL: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "lease": _lease,
    "refund": _refund,
    "settle": _settle,
    "closed": _closed,
}


def _script(case: Case, clock: FrozenClock) -> Script:
    calls: defaultdict[str, list[Decision]] = defaultdict(list)
    name = token_hex(4)
    for number, step in enumerate(case.steps, 1):
        clock.to(step.at)
        if step.verb == "reset":
            removed = yield "reset", (step.ident,)
            assert removed in (None, step.removed), f"step {number}: {removed} keys removed"
            continue
        decisions: list[Decision] = []
        earlier = calls[step.ident]
        if step.verb in CORRECTIONS:
            decision = earlier[step.of]
            call = f"{name} {step.ident} {earlier.index(decision) if step.of < 0 else step.of}"
            arguments = {"refund": (decision,), "settle": (decision, step.used, call), "release": (decision.lease,)}
            yield step.verb, arguments[step.verb]
            decisions.append((yield "peek", (step.ident, step.cost)))
        else:
            for _ in range(step.times):
                decisions.append((yield step.verb, (step.ident, step.cost)))  # noqa: PERF401  (a generator's yield)
            earlier += decisions if step.verb != "peek" else ()
        if decisions[-1] is None:  # a socket has no way to peek
            continue
        answer = _answer(step, decisions)
        if step.closed is not ANY:
            leases = [decision.lease and decision.lease.id for decision in earlier]
            answer["closed"] = tuple(leases.index(lease) for lease in (yield "closed", ()))
        wanted = {name: value for name, value in _wanted(step).items() if value is not ANY}
        assert {name: answer[name] for name in wanted} == wanted, f"step {number}, {step}"


def _wanted(step: Step) -> dict[str, Any]:
    return {
        "admitted": ANY if step.admitted is None else step.admitted,
        "allowed": step.allowed,
        "remaining": step.remaining,
        "retry": _us(step.retry),
        "reset": _us(step.reset),
        "rule": step.rule,
        "reason": step.reason,
        "each": step.each,
        "delay": _us(step.delay),
        "closed": step.closed,
    }


def _answer(step: Step, decisions: list[Decision]) -> dict[str, Any]:
    last = decisions[-1]
    return {
        "admitted": sum(decision.allowed for decision in decisions),
        "allowed": last.allowed,
        "remaining": last.remaining,
        "retry": _us(last.retry_after),
        "reset": _us(last.reset_after),
        "rule": last.rule,
        "reason": next((outcome.reason for outcome in last.outcomes if outcome.rule == last.rule), None),
        "each": tuple(outcome.remaining for outcome in last.outcomes),
        "delay": _us(last.delay),
    }


def _us(seconds: Any) -> Any:
    return round(seconds * 1_000_000) if isinstance(seconds, (int, float)) else seconds


def with_options(case: Case, verbs: set[str], **options: Any) -> tuple[Rule, ...] | None:
    """The rules of a case with other options; None where they cannot have them, or it needs more than these verbs."""
    if not {step.verb for step in case.steps} <= verbs or any(step.cost == 0 for step in case.steps):
        return None
    if any(step.closed not in (ANY, ()) or (step.delay is not ANY and step.delay > MAX_DELAY) for step in case.steps):
        return None
    try:
        return tuple(Rule.from_options(rule.name, {**rule.as_options(), **options}) for rule in case.rules) or None
    except InvalidRule:
        return None


class OwnCounters:
    """The counters of one socket for each ident, with the methods of a limiter."""

    def __init__(self, rules: tuple[Rule, ...], clock: FrozenClock) -> None:
        self.rules, self.clock = [part for rule in rules if rule.enabled for part in rule.parts], clock
        self.counters: defaultdict[str, SocketCounters] = defaultdict(SocketCounters)

    def acquire(self, ident: str, cost: int) -> Decision:
        charges = tuple(charge(rule, ident, cost) for rule in self.rules)
        return decision_of(charges, self.counters[ident].charge(charges, self.clock()))

    def peek(self, ident: str, cost: int) -> Decision:
        charges = tuple(charge(rule, ident, cost) for rule in self.rules)
        looked = self.counters[ident].peek(charges, self.clock())
        return decision_of(tuple(each._replace(cost=0) for each in charges), looked)

    def reset(self, ident: str) -> None:
        self.counters[ident].clear()


reports: list[Report] = []
waiting: list[Line] = []  # whose next frame is being decided
HOOK = f"{__name__}.note"


def note(report: Report) -> None:
    reports.append(report)
    for line in waiting:
        line.news.set()


class Sockets:
    """Sockets of a client for each ident, whose handshakes and frames are decided, with the methods of a limiter.

    The rules are in force with HOOK among the settings' HOOKS.
    """

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.places = {rule.name: place for place, rule in enumerate(rules)}
        self.lines: dict[str, Line] = {}
        self.held: dict[str, Line] = {}  # by the ids of their leases
        self.addresses: dict[str, str] = {}
        reports.clear()

    def _line(self, ident: str) -> Line:
        address = self.addresses.setdefault(ident, f"203.0.113.{1 + len(self.addresses)}")
        return Line(cost=lambda event: int(event["text"]), address=address)

    def _last_decision(self) -> Decision:
        """The decision that was reported last, with outcomes in the order of the case's rules."""
        decision = reports[-1].decision
        outcomes = sorted(decision.outcomes, key=lambda outcome: self.places[outcome.rule])
        return decision._replace(outcomes=tuple(outcomes))

    async def aacquire(self, ident: str, cost: int) -> Decision:
        if ident not in self.lines:
            self.lines[ident] = await self._line(ident).open()
        line = self.lines[ident]
        passed, reported = len(texts(line)), len(reports)
        waiting[:] = [line]
        line.send(str(cost))
        await line.until(lambda: len(reports) > reported or len(texts(line)) > passed)
        decision = self._last_decision() if len(reports) > reported else Decision()  # no rule, no report
        await line.until(lambda: len(texts(line)) == passed + decision.allowed)
        return decision

    async def alease(self, ident: str, cost: int) -> Decision:
        line = await self._line(ident).open()
        decision = self._last_decision()
        assert (line.closed is None) is decision.allowed
        if decision.lease:
            self.held[decision.lease.id] = line
        return decision

    async def arelease(self, lease: Lease | None) -> None:
        if lease and (line := self.held.pop(lease.id, None)):
            await line.close()

    async def apeek(self, ident: str, cost: int) -> None:
        """Nothing: nobody can ask a socket."""

    async def aclosed(self) -> list[str]:
        return []

    async def end(self) -> None:
        for line in (*self.lines.values(), *self.held.values()):
            await line.close()
