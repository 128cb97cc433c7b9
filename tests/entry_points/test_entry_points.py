"""One decision at every entry point: what holds at one holds at all of them, on every store."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from django_throttle import rulebook
from django_throttle.core import Override, Rule
from django_throttle.core.commands import Correct, Decide
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter, adecide
from django_throttle.observe import recorders
from django_throttle.stores import RedisStore, base, get_store
from tests.callers import SameByEveryKey
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce
from tests.entry_points import site
from tests.entry_points.table import ALLOWED, REFUSED, UNAVAILABLE, EntryPoint, Http, entry_points
from tests.inside import commands_to, count_in

pytestmark = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
THREE = [ALLOWED] * 3 + [REFUSED]
WAYS = ("ok", "template", "stream", "file", "fail", "missing", "denied")  # to answer, of a view


def rule(entry_point: EntryPoint, **options: Any) -> dict[str, Any]:
    three = {"rate": "3/min", "algorithm": "fixed_window", "events": [entry_point.event], "key": entry_point.key}
    return three | options


def slots(entry_point: EntryPoint, limit: int = 1) -> dict[str, Any]:
    events = [entry_point.lease_event]
    return {"limit": limit, "algorithm": "concurrency", "events": events, "key": entry_point.key}


def remaining(entry_point: EntryPoint, options: dict[str, Any], name: str = site.RULE) -> int | None:
    return Limiter([Rule(name, **options)], get_store()).peek(entry_point.ident).remaining


def verdicts(entry_point: EntryPoint, times: int, **call: Any) -> list[str]:
    return [entry_point.call(**call).verdict for _ in range(times)]


@BOTH
@entry_points()
@pytest.mark.row("R04")
def test_the_limit_is_allowed_and_the_rest_refused(
    enforce: Enforce, entry_point: EntryPoint, clock: FrozenClock
) -> None:
    enforce(api=rule(entry_point))
    clock.to(14.5)
    assert verdicts(entry_point, 4) == THREE
    clock.to(30.5)
    wait = 44 if "rules" not in entry_point.traits else 30
    assert entry_point.call() == (REFUSED, wait, 0 if "told" in entry_point.traits else None)
    clock.to(14.5 + 60)
    assert verdicts(entry_point, 4) == THREE


@entry_points("rules")
@pytest.mark.row("R03")
def test_an_allowed_call_is_one_command_that_holds_up_no_event_loop(
    enforce: Enforce, entry_point: EntryPoint, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(api=rule(entry_point))
    store = RedisStore(redis_url, deadline=5.0)
    count_in(store, monkeypatch)
    verdicts(entry_point, 1)  # connected, and the script is loaded
    for name in ("send", "send_all"):
        monkeypatch.setattr(store.transport, name, partial(not_on_a_loop, getattr(store.transport, name)))
    commands = commands_to(store, monkeypatch)
    assert verdicts(entry_point, 1) == [ALLOWED]
    assert len([command for command in commands if isinstance(command, Decide)]) == 1
    assert not any(isinstance(command, Correct) for command in commands)


@entry_points("rules")
def test_a_site_that_records_nothing(
    enforce: Enforce, entry_point: EntryPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "current", None)
    enforce(api=rule(entry_point))
    assert verdicts(entry_point, 4) == THREE


def not_on_a_loop(send: Callable[..., Any], *args: Any) -> Any:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    return send(*args)


@entry_points("refund")
@pytest.mark.row("R05")
def test_header_fields(enforce: Enforce, entry_point: Http, clock: FrozenClock) -> None:
    enforce(api=rule(entry_point))
    clock.to(14.5)
    answers = [entry_point.get() for _ in range(4)]
    assert [answer["RateLimit"] for answer in answers] == [f'"api";r={n};t=46' for n in (2, 1, 0, 0)]
    assert {answer["RateLimit-Policy"] for answer in answers} == {'"api";q=3;w=60'}
    assert answers[3]["Retry-After"] == "46" and "Retry-After" not in answers[2]
    page = entry_point.get(Accept=BROWSER)
    assert page.status_code == 429
    if "REST view" not in entry_point.name and "RuleThrottle" not in entry_point.name:  # which have a way of their own
        assert page["Content-Type"] == "text/html; charset=utf-8" and "RateLimit" in page
        assert b"Too many requests" in page.content


@pytest.mark.row("A31", "R03")
@BOTH
@entry_points("rules")
def test_a_call_that_one_rule_refuses_is_charged_by_none(enforce: Enforce, entry_point: EntryPoint) -> None:
    roomy = rule(entry_point, rate="9/min")
    enforce(api=rule(entry_point), roomy=roomy)
    verdicts(entry_point, 6)
    assert remaining(entry_point, rule(entry_point)) == 0
    assert remaining(entry_point, roomy, "roomy") in (6, 9), "9 where an entry point names its rule"


@entry_points("rules")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("allow", [ALLOWED] * 4),
        ("deny", [UNAVAILABLE] * 4),
        ("local", [ALLOWED] * 2 + [REFUSED] * 2),  # the share of one process of two
    ],
)
@pytest.mark.row("R10")
def test_a_failed_store(
    enforce: Enforce,
    entry_point: EntryPoint,
    redis_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    expected: list[str],
) -> None:
    enforce(api=rule(entry_point, rate="4/min", on_store_failure=policy))
    count_in(RedisStore("redis://127.0.0.1:1/0", processes=2), monkeypatch)
    answers = [entry_point.call() for _ in range(4)]
    assert [answer.verdict for answer in answers] == expected
    assert all((answer.retry_after or 0) >= 1 for answer in answers if answer.verdict != ALLOWED)
    if "told" in entry_point.traits and "refund" in entry_point.traits:
        assert {answer.remaining for answer in answers} == {None}, "the share of a process is no quota of a client's"


@entry_points("rules")
def test_a_shadow_is_charged_and_refuses_nothing(enforce: Enforce, entry_point: EntryPoint) -> None:
    enforce(api=rule(entry_point, action="shadow"))
    assert verdicts(entry_point, 4) == [ALLOWED] * 4
    assert remaining(entry_point, rule(entry_point)) == 0


OVERRIDES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {  # what calls are told while it lasts, and then
    "multiply": ({"effect": "multiply", "factor": 2}, [ALLOWED] * 6 + [REFUSED], [REFUSED]),
    "exempt": ({"effect": "exempt"}, [ALLOWED] * 7, THREE),
    "block": ({"effect": "block"}, [REFUSED], THREE),
    "exempt another": ({"effect": "exempt", "subject": "user:2"}, THREE, [REFUSED]),
    "block another": ({"effect": "block", "subject": "ip:192.0.2.1"}, THREE, [REFUSED]),
}


@entry_points()
def test_where_all_rules_are_shadows(enforce: Enforce, entry_point: EntryPoint) -> None:
    enforce(api=rule(entry_point), SHADOW=True)
    assert verdicts(entry_point, 4) == [ALLOWED] * 4


@entry_points("override")
@pytest.mark.parametrize("name", OVERRIDES)
def test_overrides(enforce: Enforce, entry_point: EntryPoint, override: Any, clock: FrozenClock, name: str) -> None:
    enforce(api=rule(entry_point))
    options, meanwhile, after = OVERRIDES[name]
    override(Override(**{"subject": entry_point.ident, **options}, until=clock() + 30.5))
    if name != "block":
        assert verdicts(entry_point, len(meanwhile)) == meanwhile
    elif entry_point.event != "message":  # a block of every rule keeps a socket from being opened
        assert entry_point.call()[:2] == (REFUSED, 31)
    clock.to(30.5)
    entry_point.end()
    assert verdicts(entry_point, len(after)) == after


@entry_points("plan")
@pytest.mark.row("R02")
def test_a_plan(enforce: Enforce, entry_point: EntryPoint) -> None:
    enforce(api=rule(entry_point, plans={"authenticated": "5/min"}))
    assert verdicts(entry_point, 6, user=True) == [ALLOWED] * 5 + [REFUSED]


@entry_points("rules")
@pytest.mark.row("R07")
def test_the_cost_that_a_rule_says(enforce: Enforce, entry_point: EntryPoint) -> None:
    enforce(api=rule(entry_point, rate="5/min", cost=2))
    assert verdicts(entry_point, 3) == [ALLOWED] * 2 + [REFUSED]
    assert remaining(entry_point, rule(entry_point, rate="5/min")) == 1


@entry_points("cost")
def test_the_cost_that_a_call_says(enforce: Enforce, entry_point: EntryPoint) -> None:
    enforce(api=rule(entry_point, rate="5/min"))
    assert [entry_point.call(cost=cost).verdict for cost in (3, 3, 2, 0)] == [ALLOWED, REFUSED, ALLOWED, ALLOWED]
    assert entry_point.call(cost=6)[:2] == (REFUSED, None), "which never fits"


@BOTH
@entry_points("refund")
def test_answers_that_do_not_count_are_refunded(enforce: Enforce, entry_point: EntryPoint) -> None:
    options = rule(entry_point, count_on=[401, 403])
    enforce(api=options)
    for status in (200, 401, 302, 404, 403, 500):
        assert entry_point.call(doing=f"login?status={status}").verdict == ALLOWED
    assert remaining(entry_point, options) == 1
    assert entry_point.call(doing="denied").verdict == ALLOWED
    assert verdicts(entry_point, 2) == [REFUSED] * 2


@entry_points("refund")
def test_errors_count_as_what_becomes_of_them(enforce: Enforce, entry_point: EntryPoint) -> None:
    options = rule(entry_point, count_on=[500, 404])
    enforce(api=options)
    for doing in ("fail", "denied", "missing"):
        entry_point.call(doing=doing)
    assert remaining(entry_point, options) == 1


@BOTH
@entry_points("lease")
def test_a_lease_is_held_for_as_long_as_the_call_takes(enforce: Enforce, entry_point: EntryPoint) -> None:
    enforce(api=slots(entry_point))
    ways = WAYS if "refund" in entry_point.traits else ("ok",)
    for doing in ways:
        assert verdicts(entry_point, 2, doing=doing) == [ALLOWED] * 2, doing
        assert (len(get_store().leases), remaining(entry_point, slots(entry_point))) == (0, 1), doing
    assert site.seen == [1] * 2 * len(ways)


@entry_points("lease")
def test_without_a_free_slot_a_call_is_refused(enforce: Enforce, entry_point: EntryPoint) -> None:
    store = enforce(api=slots(entry_point))
    with Limiter([Rule(site.RULE, **slots(entry_point))], store).lease(entry_point.ident):
        assert verdicts(entry_point, 2) == [REFUSED] * 2
    assert verdicts(entry_point, 1) == [ALLOWED]


QUEUE = {"rate": "1/30s", "burst": 3, "algorithm": "leaky_bucket", "action": "delay", "max_delay": 600}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Have calls note their waits, which take no time, and then raise an error where there is one."""

    def note(error: BaseException | None = None) -> list[float]:
        found: list[float] = []

        def sleep(seconds: float) -> None:
            found.append(seconds)
            if error:
                raise error

        async def asleep(seconds: float) -> None:
            found.append(seconds)
            if error:
                raise asyncio.CancelledError

        monkeypatch.setattr(base, "time", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(base, "asyncio", SimpleNamespace(sleep=asleep))
        return found

    return note


@entry_points("delay")
def test_calls_wait_for_their_turn_until_the_queue_is_full(
    enforce: Enforce, entry_point: EntryPoint, waits: Any
) -> None:
    enforce(api=rule(entry_point) | QUEUE)
    seconds = waits()
    assert verdicts(entry_point, 5) == [ALLOWED] * 3 + [REFUSED] * 2
    assert seconds == [30, 60]


@BOTH
@entry_points("delay")
def test_who_goes_away_while_waiting_holds_nothing(enforce: Enforce, entry_point: EntryPoint, waits: Any) -> None:
    options = rule(entry_point) | QUEUE
    enforce(api=options, slots=slots(entry_point, 9))
    seconds = waits(SystemExit())
    assert entry_point.call().verdict == ALLOWED
    for _ in range(3):
        with suppress(SystemExit, asyncio.CancelledError):
            entry_point.call()
        assert len(get_store().leases) == 0
    assert seconds == [30, 30, 30]
    assert remaining(entry_point, options) == 2


TURNS = {**QUEUE, "key": "everyone"}


def call() -> Call:
    return Call("any", ("request", "inflight"), SameByEveryKey())


async def test_asynchronous_calls_wait_side_by_side(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(queue=TURNS)
    await rulebook.acurrent()  # the first reading would shuffle them
    arrived, everybody = [], asyncio.Event()

    async def asleep(seconds: float) -> None:
        arrived.append(seconds)
        if len(arrived) == 2:
            everybody.set()
        await everybody.wait()

    monkeypatch.setattr(base, "asyncio", SimpleNamespace(sleep=asleep))
    async with asyncio.timeout(20):
        decisions = await asyncio.gather(*(adecide(call()) for _ in range(5)))
    assert [decision.delay for decision in decisions if decision.allowed] == [0, 30, 60]
    assert (await adecide(call(), commit=False)).allowed is False, "asking only does not wait"
