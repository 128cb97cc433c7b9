"""What is decided for everybody does not follow the clock of one host; what is known of the store's time."""

from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import path, reverse
from django.utils import timezone

from django_throttle import rulebook, runtime
from django_throttle.console.models import ThrottleCandidate
from django_throttle.core import Override, Rule
from django_throttle.decorators import throttle
from django_throttle.identity.call import Call
from django_throttle.later.queue_slots import queue_slot_under
from django_throttle.limiter import decide
from django_throttle.local import shared_clock
from django_throttle.local.shared_clock import SharedClock
from django_throttle.local.store_time import STEP_US, Calendar, StoreTime, micros
from django_throttle.models import ThrottleOverride, ThrottleRule
from django_throttle.rulebook import current_rules, sources
from django_throttle.rulebook.snapshot import Overrides
from django_throttle.runtime import LogThrottle
from django_throttle.stores import MemoryStore, RedisStore
from tests.callers import KeyedCaller, SameByEveryKey
from tests.clock import FrozenClock
from tests.inside import count_in
from tests.websockets.guarded import Live, live_enforcer

enforce = pytest.fixture(live_enforcer)
real_now = timezone.now
SECOND = 1_000_000
DAY = 86_400 * SECOND
MONTHLY = Rule("quota", "9/month", algorithm="fixed_window")
OFF = pytest.mark.parametrize("off", [-300.0, 300.0], ids=["slow", "fast"])
QUEUE = {"rate": "1/s", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 100, "events": ["task"]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes this process that of a host whose clock is so many seconds off; it knows nothing of the store's yet."""

    def be(off: float) -> None:
        monkeypatch.setattr(timezone, "now", lambda: real_now() + timedelta(seconds=off))
        clock = shared_clock.shared_clock
        clock.offset, clock._log_throttle = 0.0, SharedClock()._log_throttle

    yield be  # type: ignore[misc]
    shared_clock.shared_clock.offset = 0.0


@OFF
def test_turns_are_in_the_order_of_the_calls(enforce: Live, host: Callable[[float], None], off: float) -> None:
    enforce(queue={**QUEUE, "key": "user"})
    moments = []
    for number in range(8):
        host(off if number % 2 else 0.0)
        turn = queue_slot_under(decide(Call("work", ("task",), SameByEveryKey())), "queue")  # type: ignore[arg-type]
        if turn is not None:
            moments.append(turn.at)
            assert turn.wait == pytest.approx(len(moments), abs=2.0)
    assert [after - before for before, after in pairwise(moments)] == pytest.approx([1] * 6, abs=0.5)
    assert moments[0] == pytest.approx(real_now().timestamp() + 1, abs=2.0)


@OFF
def test_an_override_ends_at_its_moment_and_a_process_logs_once_that_its_clock_is_off(
    enforce: Live, host: Callable[[float], None], off: float, caplog: pytest.LogCaptureFixture
) -> None:
    store = enforce()
    host(off)
    for _ in range(3):
        assert current_rules.fetch(store)
    (line,) = [record.message for record in caplog.records if "the clock of this host" in record.message]
    assert ("300.0 s behind Redis'" in line) is (off < 0)
    now = real_now().timestamp()
    overrides = Overrides([Override(subject="user:1", effect="block", until=now + more) for more in (60, -60)])
    (lasting,) = overrides.for_caller(KeyedCaller(user="user:1"))  # type: ignore[arg-type]
    assert lasting.until == now + 60


@pytest.mark.django_db
@OFF
def test_the_end_of_an_override_is_made_by_the_time_of_the_store(
    enforce: Live, host: Callable[[float], None], off: float, admin_client: Client
) -> None:
    enforce()
    host(off)
    line = ["add", "ip", "192.0.2.7", "--block", "--for", "2m", "--reason", "x"]
    call_command("throttle_override", *line, stdout=StringIO())
    row, now = ThrottleOverride.objects.get(), real_now().timestamp()
    assert row.until.timestamp() == pytest.approx(now + 120, abs=20)
    typed = {"kind": "ip", "value": "192.0.2.8", "rules": "*", "effect": "block", "lasting": "7200", "reason": "x"}
    host(off)  # another process
    admin_client.post(reverse("admin:django_throttle_throttleoverride_add"), typed)
    assert ThrottleOverride.objects.latest("pk").until.timestamp() == pytest.approx(now + 7200, abs=20)


@OFF
def test_clients_are_told_the_moment_of_the_store(
    enforce: Live, host: Callable[[float], None], off: float, settings: Any
) -> None:
    redis = enforce(api={"rate": "1/h", "algorithm": "gcra"}, X_RATELIMIT_HEADERS="epoch")
    settings.ROOT_URLCONF = (path("", throttle("api")(lambda request: HttpResponse())),)
    settings.MIDDLEWARE = []
    host(off)
    current_rules.fetch(redis)
    expected = pytest.approx(real_now().timestamp() + 3600, abs=20)
    assert [float(Client().get("/")["X-RateLimit-Reset"]) for _ in range(2)] == [expected] * 2


@pytest.mark.django_db
@OFF
@pytest.mark.parametrize("is_editor", [True, False])
def test_an_edit_is_as_old_on_every_host(
    enforce: Live, host: Callable[[float], None], off: float, is_editor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis: RedisStore = enforce()
    monkeypatch.setattr(sources, "are_in_database", lambda: True)
    for is_off in (is_editor, not is_editor):
        host(off * is_off)
        current_rules.fetch(redis)
        if is_off is is_editor:
            row = ThrottleRule.objects.create(name="edited", rate="5/min")
            row.rate = "6/min"
            row.save()
    *_, (age, _before, _after) = sources.past_edits(3600)
    assert age == pytest.approx(0, abs=20)


@pytest.mark.django_db
@OFF
@pytest.mark.parametrize("store", ["redis", "memory"])
def test_a_candidate_is_promoted_at_its_moment(
    store: str, enforce: Live, host: Callable[[float], None], off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis: RedisStore = enforce()
    if store == "memory":
        count_in(MemoryStore(), monkeypatch)
    for name, more in (("due", -60), ("later", 60)):
        ThrottleRule.objects.create(name=name, rate="5/min")
        candidate = ThrottleCandidate.from_row(ThrottleRule(name=name, rate="9/min"), name, "anna")
        candidate.starts_at = real_now() + timedelta(seconds=more)
        candidate.save()
    host(off)
    if store == "redis":
        assert current_rules.fetch(redis)
    sources.promote_due()
    assert [each.name for each in ThrottleCandidate.objects.all()] == ["later"]
    rulebook.refresh()


@pytest.mark.django_db
@pytest.mark.parametrize("offset", [0.0, 7200.0])
def test_a_site_without_time_zones(settings: Any, monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    settings.USE_TZ = False
    monkeypatch.setattr(shared_clock.shared_clock, "offset", offset)
    until = datetime.now() + timedelta(hours=1)  # noqa: DTZ005 - as the database of such a site has it
    row = ThrottleOverride(kind="user", value="1", effect="block", rules="*", reason="test", until=until)
    row.save()
    assert (list(ThrottleOverride.objects.in_force()), row.lasts()) == (([], False) if offset else ([row], True))


def known(there: int, sent: float = 0.0, heard: float = 0.2) -> StoreTime:
    time = StoreTime()
    assert not time.learn(there, sent, heard), "the first answer is no step"
    return time


def test_a_quicker_answer_is_believed_more_and_a_slower_one_no_more() -> None:
    assert StoreTime().offset is None
    time = known(10 * SECOND)
    for there, sent, heard, offset in (
        (10, 0.0, 0.2, micros(0.1)),
        (11, 1.0, 1.02, micros(0.01)),
        (12, 2.0, 2.5, micros(0.01)),
    ):
        assert not time.learn(there * SECOND, sent, heard)
        assert time.offset == 10 * SECOND - offset, "half of the way there and back"


@pytest.mark.parametrize("step", [STEP_US + SECOND, -STEP_US - SECOND, STEP_US // 2])
def test_a_clock_that_was_set_is_noticed_and_followed_as_a_drift_is(step: int) -> None:
    time = known(10 * SECOND)
    assert time.learn(11 * SECOND + step, 1.0, 1.2) is (abs(step) > STEP_US)
    assert time.offset == 10 * SECOND + step - micros(0.1)
    assert not time.learn(12 * SECOND + step, 2.0, 2.2)


def test_bounds_are_unknown_until_the_time_is_and_hold_it_then() -> None:
    calendar, now = Calendar(), 1_750_000_000 * SECOND
    unknown = calendar.params(MONTHLY)
    assert (unknown.start, unknown.middle, unknown.finish) == (0, 0, 0)
    calendar.learn(now)
    plan = calendar.params(MONTHLY)
    assert plan.start <= now < plan.middle < plan.finish
    assert 28 * DAY <= plan.middle - plan.start <= 31 * DAY


def test_one_line_a_minute_about_each_subject_unless_they_are_made_up_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FrozenClock()
    throttle = LogThrottle(clock)
    assert [throttle.try_acquire(subject) for subject in ("one", "two", "one", "two")] == [True, True, False, False]
    clock.tick(59)
    assert not throttle.try_acquire("one")
    clock.tick(1)
    assert throttle.left_out("one") == 2
    assert throttle.overdue() == [(("two",), 1)]
    assert throttle.overdue() == []
    monkeypatch.setattr(runtime, "MAX_SUBJECTS", 3)
    throttle, rules = LogThrottle(), [f"rule {number}" for number in range(4)] * 2
    assert [throttle.left_out(rule, "exceeded") for rule in rules] == [0] * 8
