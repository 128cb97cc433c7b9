"""Settings and database become one snapshot, which a thread reads and which never costs the hot path anything."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, transaction

from django_throttle import rulebook
from django_throttle.core import Override, Rate, Rule
from django_throttle.core.overrides import Candidate
from django_throttle.exceptions import Cause, StoreError
from django_throttle.identity.call import Call
from django_throttle.models import ThrottleRule
from django_throttle.rulebook import Snapshot, current_rules, sources
from django_throttle.signals import overrides_ended, rules_changed
from django_throttle.stores import MemoryStore, RedisStore
from tests.callers import KeyedCaller
from tests.clock import FrozenClock
from tests.forks import holds_in_child
from tests.inside import book
from tests.raw_rows import force
from tests.rulebook.conftest import charged, names
from tests.servers import RedisServer

Heard = list[tuple[Snapshot, Snapshot]]


def saved(name: str = "api") -> ThrottleRule:
    return ThrottleRule.objects.create(name=name, rate="3/min")


def away(*_: object) -> Any:
    raise DatabaseError("the database is away")


@pytest.fixture
def heard() -> Iterator[Heard]:
    told: Heard = []

    def listen(old: Snapshot, new: Snapshot, **_: object) -> None:
        told.append((old, new))

    rules_changed.connect(listen)
    yield told
    rulebook.pin(None)


@pytest.mark.django_db(transaction=True)
class TestEdits:
    def test_a_saved_rule_is_in_force_when_it_is_committed_and_not_before(self, rules: Any) -> None:
        assert names(rulebook.current()) == []
        with transaction.atomic():
            saved("outer")
            with transaction.atomic():
                saved("inner")
                transaction.set_rollback(True)
            assert names(rulebook.current()) == []
        assert names(rulebook.current()) == ["outer"]
        with transaction.atomic():
            saved("never")
            assert names(rulebook.refresh()) == names(rulebook.current()) == ["never", "outer"]
            transaction.set_rollback(True)
        assert names(rulebook.current()) == ["outer"], "what was read inside does not outlive the rollback"
        saved("next")
        assert names(rulebook.current()) == ["next", "outer"]


def limit(snapshot: Snapshot) -> int | None:
    (charge,) = snapshot.match(Call("page", ("request",), KeyedCaller(user="user:anna")))
    return charge.rule.limit


def test_listeners_are_told_once_of_overrides_that_end_by_themselves(clock: FrozenClock, heard: Heard) -> None:
    rule = Rule("api", "3/min", key="user")
    twice = [
        Override(subject=f"user:{name}", effect="multiply", factor=2, until=clock() + seconds)
        for name, seconds in (("anna", 10), ("ben", 20))
    ]
    rulebook.pin(Snapshot([rule], overrides=twice, now=clock))
    heard.clear()
    clock.to(9.999)
    current_rules.end_overrides()
    assert heard == []
    clock.to(10)
    current_rules.end_overrides()
    current_rules.end_overrides()
    ((old, new),) = heard
    assert (limit(old), limit(new)) == (6, 3)
    assert new is rulebook.current() and new.overrides.all == (twice[1],)
    assert new.version == Snapshot([rule], overrides=twice[1:]).version
    clock.to(20)
    current_rules.end_overrides()
    assert rulebook.current().version == Snapshot([rule]).version
    heard.clear()
    clock.to(0)
    rulebook.pin(Snapshot([rule], overrides=twice, now=clock))
    current_rules.end_overrides()
    heard.clear()
    clock.to(10.2)
    rulebook.pin(Snapshot([replace(rule, enforce_at=1.0, warn_at=(0.5,))], overrides=twice, now=clock))
    assert [limit(snapshot) for pair in heard for snapshot in pair] == [6, 3], (
        "an edit before the next look tells of it"
    )


@pytest.mark.row("F56")
@pytest.mark.django_db(transaction=True)
def test_a_failing_database_leaves_the_last_good_rules_in_force_or_those_of_settings(
    rules: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rules(api={"rate": "10/min"})
    with monkeypatch.context() as patch:
        patch.setattr(sources, "from_database", away)
        assert names(rulebook.current()) == ["api"], "from the start"
        assert "only the rules in settings hold" in caplog.text
        with transaction.atomic():
            rulebook.refresh()
            saved("more")
    good = rulebook.refresh()
    assert names(good) == ["api", "more"], "a reading that fails spoils no edit"
    caplog.clear()
    monkeypatch.setattr(sources, "from_database", away)
    assert rulebook.refresh() is rulebook.refresh() is good
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the rules in force stay" in caplog.text


class Contracts(rulebook.RuleSource):
    """Rules of the rates that a test writes into ``rates``."""

    name = "contracts"

    def __init__(self) -> None:
        self.rates = {"contract": "5/min"}

    def read(self, before: rulebook.SourceRules) -> rulebook.SourceRules:
        if not self.rates:
            raise DatabaseError("no such table: contracts")
        new = rulebook.from_mapping({name: {"rate": rate, "key": "ip"} for name, rate in self.rates.items()})
        return before if new == before else new


@pytest.mark.django_db(transaction=True)
def test_a_source_of_the_site_stands_between_settings_and_admin(
    rules: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Contracts()
    monkeypatch.setattr(sources, "_sources", [])
    rulebook.add_source(source)
    rules(contract={"rate": "1/min"}, api={"rate": "1/min"})
    saved()
    good = rulebook.refresh()
    assert [(rule.name, str(rule.rate)) for rule in good.rules] == [("api", "3/min"), ("contract", "5/min")]
    assert rulebook.refresh() is good
    source.rates["gold"] = "9/min"
    rulebook.changed()
    assert names(better := rulebook.current()) == ["api", "contract", "gold"]
    source.rates["silver"] = "soon"
    assert rulebook.refresh() is better
    assert "rule 'silver' from contracts is skipped" in caplog.text
    caplog.clear()
    source.rates.clear()
    saved("more")
    with transaction.atomic():
        assert names(rulebook.refresh()) == ["api", "contract", "gold", "more"], "the other sources are read"
    assert caplog.text.count("rules cannot be read from contracts: no such table: contracts; its former rules") == 1


def _reading(rate: str) -> sources.Reading:
    return sources.Reading(sources.NO_RULES, sources.SourceRules({"api": Rule("api", rate)}, {}))


def test_a_slow_reading_never_replaces_a_later_one(rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(before: object) -> sources.Reading:
        monkeypatch.setattr(sources, "read", lambda before: _reading("2/min"))
        began.set()
        assert go_on.wait(10)
        return _reading("1/min")

    monkeypatch.setattr(sources, "read", slow)
    thread = threading.Thread(target=rulebook.refresh)
    thread.start()
    assert began.wait(10)
    rulebook.refresh()
    go_on.set()
    thread.join()
    assert rulebook.current().by_name("api") == Rule("api", "2/min")


def test_how_long_after_its_edit_a_rule_is_in_force(rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_rules.shared_clock, "now", lambda: 1000.0)
    versions = {None: None, "990.000-a": None, "997.500-b": 2.5, "1002.000-c": 0.0, "-d": None, "1.2.3-e": None}
    for rate, (seen, after) in enumerate(versions.items(), 1):
        monkeypatch.setattr(sources, "read", lambda before, rate=rate: _reading(f"{rate}/min"))
        rulebook.refresh(seen)
        assert rulebook.effective_since().after == after


class TestPoll:
    """Polling, with a database that only pretends to be shared between threads."""

    @pytest.fixture(autouse=True)
    def readings(self, monkeypatch: pytest.MonkeyPatch, rules: Any) -> list[int]:
        seen: list[int] = []
        reading = sources.Reading(sources.from_settings())
        monkeypatch.setattr(sources, "read", lambda before: (seen.append(1), reading)[1])
        monkeypatch.setattr(sources, "is_private", lambda: False)
        return seen

    @staticmethod
    def poll(store: Any, times: int = 1) -> None:
        for _ in range(times):
            rulebook.poll(store)
            assert book().reader.wait(10)

    @pytest.fixture
    def store(self, redis_url: str) -> RedisStore:
        return RedisStore(redis_url, deadline=5.0)

    def publish(self, store: RedisStore, version: str) -> None:
        store.call("publish_rules", [store.process_key("rules")], [version, 60_000])

    def test_it_reads_when_the_version_is_another_and_only_then(
        self, store: RedisStore, readings: list[int], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.poll(store, 3)
        assert len(readings) == 1
        self.publish(store, "another")
        self.poll(store, 2)
        assert len(readings) == 2
        redis_server.client().flushall()
        self.poll(store, 2)
        assert len(readings) == 3, "a Redis that lost its data is a change"
        monkeypatch.setattr(current_rules, "REREAD_SECONDS", 0.0)
        self.poll(store, 2)
        assert len(readings) == 5, "now and then all the same"
        self.poll(MemoryStore(), 3)
        assert len(readings) == 8, "each time without Redis"

    @pytest.mark.row("F56")
    @pytest.mark.parametrize(
        "current", [rulebook.current, async_to_sync(current_rules.acurrent)], ids=["sync", "async"]
    )
    @pytest.mark.parametrize(("deadline", "rate"), [(0.01, "5/min"), (10.0, "2/min")])
    def test_the_first_calls_wait_for_a_slow_database_until_the_deadline(
        self, deadline: float, rate: str, current: Any, settings: Any, monkeypatch: Any, caplog: Any
    ) -> None:
        own = {"RULES": {"api": {"rate": "5/min"}}, "DEADLINE": deadline}
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **own}
        monkeypatch.setattr("django_throttle.detect_test_run.has_begun", lambda: False)
        answers = threading.Event()
        monkeypatch.setattr(sources, "read", lambda before: answers.wait(10) and _reading("2/min"))
        database = threading.Timer(0.2, answers.set)
        database.start()
        assert current().by_name("api") == Rule("api", rate)
        assert ("only the rules in settings hold" in caplog.text) == (deadline < 1)
        database.join()
        assert book().reader.wait(10)
        assert rulebook.current().by_name("api") == Rule("api", "2/min")

    def test_overrides_that_end_are_told_of_by_the_thread_that_reads(
        self, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sources, "past_edits", lambda seconds: [])
        told: list[tuple[Override, ...]] = []
        overrides_ended.connect(receiver := lambda overrides, **_: told.append(tuple(overrides)))
        twice = Override(subject="user:anna", effect="multiply", factor=2, until=clock() + 10)
        book().snapshot = Snapshot([Rule("api", "3/min", key="user")], overrides=[twice], now=clock)
        clock.to(9.999)
        self.poll(MemoryStore())
        assert told == []
        clock.to(10)
        current_rules.end_overrides()
        assert limit(rulebook.current()) == 3
        self.poll(MemoryStore(), 2)
        assert told == [(twice,)]
        overrides_ended.disconnect(receiver)

    def test_a_candidate_that_cannot_be_promoted_holds_up_no_edit(
        self, readings: list[int], clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(sources, "_sources", [source := Contracts()])
        monkeypatch.setattr(source, "promote_due", away)
        due = Candidate.of("api", Rule("api", "2/min"), 0.0, clock())
        for number in (1, 2):
            book().snapshot = Snapshot([Rule("api", "3/min")], candidates=[due], now=clock)
            self.poll(MemoryStore())
            assert len(readings) == number
        assert caplog.text.count("due contracts were not promoted, the next poll tries again: the database is") == 1

    def test_no_longer_than_the_last_answer_it_knows_its_rules_to_be_the_newest(self, store: RedisStore) -> None:
        self.poll(store)
        before = current_rules.unconfirmed()
        assert before > 0
        self.poll(store)
        assert 0 < current_rules.unconfirmed() < 10

    @pytest.mark.row("F59")
    def test_an_edit_that_redis_was_not_told_is_told_later(
        self, redis_url: str, store: RedisStore, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "REDIS": redis_url}
        other = RedisStore(redis_url, deadline=5.0)

        def version() -> object:
            return other.rules_version("first", publish=False)[0]

        def unheard(*_: object) -> None:
            raise StoreError(Cause.UNAVAILABLE)

        before = version()
        with monkeypatch.context() as patch:
            patch.setattr(RedisStore, "call", unheard)
            rulebook.changed()
        assert version() == before
        self.poll(store)
        after = version()
        assert before != after
        self.poll(store)
        assert after == version()


@pytest.mark.django_db
@pytest.mark.row("R19")
def test_both_sources_are_in_force_the_database_wins_and_what_makes_no_sense_is_skipped(
    rules: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rules(api={"rate": "10/min"}, login={"rate": "5/min"}, off={"rate": "5/min"}, bad={"rate": "1/s", "burts": 3})
    ThrottleRule.objects.create(name="api", rate="20/min")
    ThrottleRule.objects.create(name="extra", rate="1/s")
    ThrottleRule.objects.create(name="off", rate="10/min", enabled=False)
    ThrottleRule.objects.create(name="login", rate="10/min")
    force(ThrottleRule, {"name": "login"}, rate="nonsense")
    snapshot = rulebook.refresh()
    assert [name for name, *_ in charged(snapshot, "any", "request")] == ["api", "extra", "login"]
    assert snapshot.by_name("api") == Rule("api", "20/min")
    assert snapshot.by_name("login") == Rule("login", "5/min"), "a bad row leaves the rule of settings in force"
    assert "rule 'bad' from settings is skipped" in caplog.text


@pytest.mark.usefixtures("servers")
def test_other_settings_and_a_fork_have_a_reader_of_their_own(settings: Any) -> None:
    first = book().reader
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "PREFIX": "other"}
    second = book().reader
    assert second is not first
    assert not first.request(None), "it was told to end"
    assert holds_in_child(lambda: book().reader is not second and book().reader.request(None))


@pytest.mark.django_db(transaction=True)
def test_a_process_that_begins_knows_the_edits_of_rows_and_what_they_replaced(rules: Any) -> None:
    rules(api={"rate": "9/min"})
    row = ThrottleRule.objects.create(name="api", rate="3/min")
    row.rate = Rate(5, 60)
    row.save()
    row.delete()
    edits = [(before.limit, after.limit) for age, before, after in sources.past_edits(60.0) if 0 <= age < 60]
    assert edits == [(9, 3), (3, 5), (5, 9)]
    assert sources.past_edits(0.0) == []
