"""The history: every edit has a line in its transaction, lines say who and why, and a revert takes an edit back."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.serializers import deserialize, serialize
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F
from django.utils import timezone, translation

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule
from django_throttle.rulebook import Snapshot, history
from django_throttle.rulebook.current_rules import rules_read
from django_throttle.rulebook.history import ended
from django_throttle.rulebook.history import lines as recording
from django_throttle.rulebook.history.from_settings import record_settings
from django_throttle.signals import overrides_ended
from tests.inside import forget_rules

pytestmark = pytest.mark.django_db


def lines(*fields: str) -> list[Any]:
    return list(ThrottleChange.objects.order_by("pk").values_list(*fields or ("name", "action", "words")))


def last() -> ThrottleChange:
    return ThrottleChange.objects.latest("pk")


def saved(name: str = "api", **options: Any) -> ThrottleRule:
    return ThrottleRule.objects.create(**{"name": name, "rate": "5/min", **options})


def edited(name: str, **values: Any) -> ThrottleRule:
    row = ThrottleRule.objects.get(name=name)
    for field, value in values.items():
        setattr(row, field, value)
    return row


@pytest.fixture
def book() -> Iterator[Snapshot]:
    yield rulebook.refresh()
    forget_rules()


def block(**options: Any) -> ThrottleOverride:
    given = {"kind": "user", "value": "42", "effect": "block", "reason": "abuse", **options}
    return ThrottleOverride.objects.create(**given)


class TestEdits:
    def test_a_rule_is_added_changed_and_removed(self) -> None:
        row = saved()
        meaning = row.meaning
        row.rate, row.scopes = "7 / Minute", ("search", "chat")
        row.save()
        row.save()  # which changes nothing
        row.delete()
        assert lines()[:2] == [
            ("api", "added", meaning),
            ("api", "changed", "rate: 5/min → 7/min; scopes: default → search, chat"),
        ]
        added, changed, removed = ThrottleChange.objects.order_by("pk")
        assert (added.before, removed.action, removed.after) == (None, "removed", None)
        assert added.after == changed.before == {"name": "api", "rate": "5/min"}
        assert changed.after == removed.before == {"name": "api", "rate": "7/min", "scopes": ["search", "chat"]}

    WAYS: dict[str, Callable[[], object]] = {
        "update": lambda: ThrottleRule.objects.filter(name="api").update(rate="9/min"),
        "update of an expression": lambda: ThrottleRule.objects.filter(name="sockets").update(limit=F("limit") + 1),
        "update_or_create": lambda: ThrottleRule.objects.update_or_create(name="api", defaults={"rate": "9/min"}),
        "bulk_update": lambda: ThrottleRule.objects.bulk_update([edited("api", rate="9/min")], ["rate"]),
        "bulk_create": lambda: ThrottleRule.objects.bulk_create([ThrottleRule(name="new", rate="9/min")]),
        "delete of a queryset": lambda: ThrottleRule.objects.filter(name="api").delete(),
        "a fixture": lambda: [
            each.save() for each in deserialize("json", serialize("json", [edited("api", rate="9/min")]))
        ],
        "update_fields": lambda: edited("api", rate="9/min").save(update_fields=["rate"]),
    }

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    def test_every_way_to_edit_is_in_force_and_has_one_line(self, book: Snapshot, way: Callable[[], object]) -> None:
        saved()
        saved("sockets", rate="", limit=5, algorithm="concurrency", events=("connection",))
        ThrottleChange.objects.all().delete()
        before = rulebook.current().version
        way()
        assert rulebook.current().version not in (book.version, before)
        ((name, action, words),) = lines()
        assert (name, action) in (("api", "changed"), ("api", "removed"), ("sockets", "changed"), ("new", "added"))
        assert words in ("rate: 5/min → 9/min", "limit: 5 → 6") or action != "changed"

    def test_an_edit_that_fails_or_is_rolled_back_has_no_line(self) -> None:
        with transaction.atomic():
            saved()
            ThrottleRule.objects.update(rate="1/min")
            assert len(lines()) == 2
            transaction.set_rollback(True)
        assert lines() == []
        saved()
        for fail in (saved, lambda: ThrottleRule.objects.update(limit=0)):
            with pytest.raises(IntegrityError), transaction.atomic():
                fail()
        assert len(lines()) == 1

    def test_an_override_has_its_number_and_subject(self) -> None:
        until = timezone.now() + timedelta(hours=2)
        row = block(until=until)
        ThrottleOverride.objects.filter(pk=row.pk).update(until=None)
        added, ended = ThrottleChange.objects.order_by("pk")
        assert (added.kind, added.name, added.row) == ("override", "User 42", row.pk)
        assert added.after["until"] == until.isoformat()
        assert ended.words == f"until: {until:%Y-%m-%d %H:%M:%S} UTC → default"


class TestLines:
    def test_a_line_says_who_what_and_why(self) -> None:
        with history.editing("anna", "admin", "around"):
            assert history.record("rule", "api", "changed", before={"rate": "1/min"}, after={"rate": "2/min"}, row=3)
            with history.because("inside"):
                history.record("rule", "api", "changed", "words")
            with history.because("  "):
                history.record("rule", "api", "changed", "words")
        history.record("rule", "api", "changed", "words")
        assert lines("who", "via", "reason", "kind", "words", "row")[0] == (
            *("anna", "admin", "around", "rule", "rate: 1/min → 2/min", 3),
        )
        assert lines("reason", "who")[1:] == [("inside", "anna"), ("around", "anna"), ("", "")]

    def test_what_is_told_once_has_one_line_even_inside_a_transaction(self) -> None:
        with transaction.atomic():
            told = [history.record("override", "User 7", "ended", "words", once="7:ended") for _ in range(2)]
        assert (told, len(lines())) == ([True, False], 1)

    def test_changes_name_lists_switches_and_defaults(self) -> None:
        before, after = {"scopes": ["a", "b"], "strict": True, "burst": 3}, {"scopes": [], "strict": False, "limit": 5}
        found = list(history.changes(before, after))
        assert found == ["scopes: a, b → none", "strict: yes → no", "burst: 3 → default", "limit: default → 5"]
        assert list(history.changes(None, None)) == []

    def test_old_lines_are_removed_but_the_newest_of_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert history.delete_old("default") == 0
        for kind in ("settings", "settings", "rule", "rule"):
            history.record(kind, "api", "changed", "words")
        ThrottleChange.objects.update(at=timezone.now() - timedelta(days=400))
        history.record("rule", "new", "changed", "words")
        assert history.delete_old("default") == 3
        assert lines("kind", "name") == [("settings", "api"), ("rule", "new")]
        monkeypatch.setattr(recording, "MAX_LINES", 2)
        for number in range(4):
            history.record("rule", f"r{number}", "changed", "words")
        history.delete_old("default")
        assert lines("name") == [("api",), ("r2",), ("r3",)]

    def test_a_line_is_kept_the_same_and_read_in_the_language_of_the_reader(self) -> None:
        line = ThrottleChange(kind="rule", name="api", action="discarded", via="import")
        network = ThrottleOverride(kind="ip", value="203.0.113.0/24")
        with translation.override("de"):
            over = ThrottleChange(kind="override", name=network.history_name, action="ran out", via="import")
            assert network.named() == "Netz 203.0.113.0/24"
            assert (str(line), line.author) == ("Regel api verworfen", "jemand (Import)")
            assert (str(over), over.author) == ("Ausnahme Network 203.0.113.0/24 abgelaufen", "zur Endzeit")
        assert (str(line), line.author) == ("Rule api discarded", "somebody (import)")
        assert (str(over), over.author) == ("Override Network 203.0.113.0/24 ran out", "its end time")
        assert ThrottleChange(action="promoted", who="its start time", via="schedule").author == "its start time"


class TestOverridesThatRanOut:
    def test_one_line_whoever_tells_it_and_none_where_an_edit_came_first(self, monkeypatch: Any, caplog: Any) -> None:
        row = block(until=timezone.now() - timedelta(seconds=1))

        def tell() -> list[Any]:
            overrides_ended.send_robust(sender=Snapshot, overrides=(row.as_override(),))
            return [words for action, words in lines("action", "words") if action == "ran out"]

        def fail(*args: object, **options: object) -> None:
            raise DatabaseError("away")

        with monkeypatch.context() as patch:
            patch.setattr(ended, "record", fail)
            assert tell() == [] and "the history lacks" in caplog.text
        ThrottleOverride.objects.update(until=timezone.now() + timedelta(hours=1))
        assert tell() == []
        ThrottleOverride.objects.update(until=row.until)
        assert tell() == tell() == [row.meaning]

    def test_those_that_ended_unseen_are_told_once_the_database_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = timezone.now()
        *unseen, by_edit = (block(value=str(n), until=now + timedelta(hours=1)) for n in (1, 2, 3))
        later = now + timedelta(hours=2)
        monkeypatch.setattr(timezone, "now", lambda: later)
        by_edit.until = later - timedelta(seconds=1)
        by_edit.save()

        def told() -> list[Any]:
            rules_read.send_robust(sender=Snapshot)
            return [name for action, name in lines("action", "name") if action == "ran out"]

        def away(*args: object, **options: object) -> None:
            raise DatabaseError("away")

        monkeypatch.setattr(ended, "_lines_up_to", 0)
        monkeypatch.setattr(ended, "BATCH_SIZE", 1)
        with monkeypatch.context() as patch:
            patch.setattr(ended, "record", away)
            assert told() == []
        assert sorted(told()) == sorted(told()) == [row.history_name for row in unseen]


def tell(**rates: str) -> bool:
    return record_settings({name: Rule(name, rate) for name, rate in rates.items()}, "default")


class TestRulesOfSettings:
    def test_each_rule_that_changed_has_a_line_and_what_stays_has_none(self) -> None:
        assert not tell()
        assert tell(api="5/min", site="9/min")
        assert not tell(api="5/min", site="9/min")
        ThrottleChange.objects.exclude(kind="settings").delete()
        assert tell(api="7/min", new="1/s")
        assert lines("kind", "name", "action", "words")[1:] == [
            ("settings", "", "changed", "RULES: 1 added, 1 changed, 1 removed"),
            ("rule", "api", "changed", "rate: 5/min → 7/min"),
            ("rule", "site", "removed", "no longer in settings"),
            ("rule", "new", "added", "each user or address: 1 request per second"),
        ]
        assert not any(map(history.is_revertible, ThrottleChange.objects.all()))
        assert {line.author for line in ThrottleChange.objects.all()} == {"settings"}
        assert tell(api="5/min", site="9/min"), "rules that come back have lines again"
        assert tell()


class TestRevert:
    """As an edit like any other; what the admin makes of it is in tests/admin/test_history.py."""

    def test_every_kind_of_column_comes_back_and_a_revert_of_a_revert_too(self) -> None:
        options = {"methods": ["GET"], "warn_at": [0.5, 0.8], "refund_on": ["5xx"]}
        row = saved(rate="5/min, 50/hour", scopes=("a", "b"), options=options)
        before = row.state()
        row.delete()
        removal = last()
        history.revert(removal)
        again = ThrottleRule.objects.get()
        assert (again.state(), again.pk) == (before, removal.row)
        history.revert(last())
        assert not ThrottleRule.objects.exists()

    def test_a_renamed_rule_gets_its_name_back_and_columns_that_there_are_no_longer_are_left_out(self) -> None:
        saved()
        ThrottleRule.objects.update(name="site")
        ThrottleChange.objects.filter(pk=last().pk).update(before={"name": "api", "rate": "5/min", "gone": 3})
        history.revert(last())
        assert ThrottleRule.objects.get().name == "api"

    def test_a_rule_that_was_made_again_is_only_replaced_when_confirmed(self) -> None:
        saved().delete()
        removal = last()
        saved(rate="9/min")
        with pytest.raises(ValidationError, match="There is one again since") as caught:
            history.revert(removal)
        assert caught.value.code == history.CHANGED
        history.revert(removal, confirmed=True)
        assert ThrottleRule.objects.get().rate == "5/min"

    @pytest.mark.parametrize("who", [("user", "987"), ("api_key", "hash:" + "x" * 22)])
    def test_an_override_for_somebody_who_is_gone_comes_back(self, who: tuple[str, str]) -> None:
        block(kind=who[0], value=who[1]).delete()
        history.revert(last())
        again = ThrottleOverride.objects.get()
        assert (again.kind, again.value) == who

    @pytest.mark.parametrize("kind", ["settings", "rule"])
    def test_a_line_that_is_no_edit_is_refused(self, kind: str) -> None:
        history.record(kind, "api", "seen", "words")
        with pytest.raises(ValidationError, match="nothing to revert"):
            history.revert(last())
