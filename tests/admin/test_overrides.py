"""Overrides in the admin: what is typed and what becomes of it, and the two actions for 3 a.m."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_throttle import rulebook
from django_throttle.models import ThrottleOverride, ThrottleRule
from tests.admin.conftest import errors, messages, text, url
from tests.inside import forget_rules

pytestmark = pytest.mark.django_db
LIST, ADD = url("throttleoverride_changelist"), url("throttleoverride_add")
TYPED = {"kind": "ip", "value": "192.0.2.7", "rules": "api", "effect": "multiply", "factor": "3"}
TYPED |= {"lasting": "7200", "reason": "a launch"}
BLOCK = {"rules": "*", "effect": "block", "factor": ""}
REPLACE = {"effect": "replace", "factor": "", "limit": "9"}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> Iterator[None]:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": {"api": {"rate": "5/min"}}}
    yield
    forget_rules()


def create(**options: Any) -> ThrottleOverride:
    given = {"kind": "ip", "value": "192.0.2.7", "effect": "block", "reason": "because", **options}
    return ThrottleOverride.objects.create(**given)


def action(client: Client, name: str, *rows: ThrottleOverride) -> Any:
    return client.post(f"{LIST}?state=all", {"action": name, "_selected_action": [row.pk for row in rows]})


class TestForm:
    @pytest.mark.django_db(transaction=True)
    def test_what_is_typed_is_stored_and_in_force_at_once(self, operator: Client) -> None:
        form = operator.get(ADD).context["adminform"].form
        assert form["lasting"].value() == "7200"
        assert dict(form.fields["lasting"].choices)["7200"] == "2 hours from now"
        before = timezone.now()
        assert operator.post(ADD, TYPED).status_code == 302
        row = ThrottleOverride.objects.get()
        assert (row.rules, row.factor, row.created_by, row.meaning) == (("api",), 3, "somebody", "3 × the limit of api")
        assert row.until is not None
        assert before + timedelta(hours=2) <= row.until <= timezone.now() + timedelta(hours=2)
        assert LogEntry.objects.get().object_repr == "Address 192.0.2.7"
        assert [override.subject for override in rulebook.current().overrides.all] == ["ip:192.0.2.7"]
        action(operator, "end_now", row)
        assert rulebook.current().overrides.all == ()

    @pytest.mark.parametrize(
        ("typed", "field", "said"),
        [
            ({"rules": "apii"}, "rules", "There is no rule 'apii'. Did you mean 'api'?"),
            ({"value": "nobody", "kind": "user"}, "value", "No user has the id"),
            ({"value": "192.0.2.999"}, "value", "is not an address"),
            ({"effect": "replace", "factor": ""}, "rate", ""),
            ({"lasting": ""}, "lasting", ""),
            ({"until_0": "someday", "until_1": "00:00", "lasting": ""}, "until", ""),
            ({"until_0": "2020-01-01", "until_1": "00:00"}, "until", "This moment has passed."),
            ({"until_0": "9999-12-31", "until_1": "23:59:59"}, "until", "9998"),
        ],
        ids=str,
    )
    def test_an_error_stands_at_its_field(
        self, operator: Client, settings: Any, typed: dict[str, Any], field: str, said: str
    ) -> None:
        settings.TIME_ZONE = "America/New_York"  # in which the last moment of all dates has no local time
        found = errors(operator.post(ADD, {**TYPED, **typed}))
        assert list(found) == [field] and said in " ".join(found[field])
        assert not ThrottleOverride.objects.exists()

    @pytest.mark.parametrize(
        ("typed", "doubt"),
        [
            ({"kind": "group", "value": "support"}, "There is no group 'support'"),
            ({"kind": "tenant", "value": "acme"}, "The setting TENANT is empty: the override does nothing"),
            ({"rules": "ap?s"}, "No rule is named ap?s"),
            ({"rules": "drf-*"}, None),
            ({**REPLACE, "rules": "api, search"}, "It does not fit api and search, which hold as they are: give what"),
            ({**BLOCK, "value": "127.0.0.0/8"}, "This override blocks you, too."),
            ({"kind": "tenant", "value": "first", **BLOCK, "effect": "exempt"}, "Override 1 precedes this one for"),
        ],
        ids=str,
    )
    def test_a_doubt_is_saved_and_said(
        self, operator: Client, settings: Any, typed: dict[str, Any], doubt: str | None
    ) -> None:
        if typed.get("value") == "first":
            settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "TENANT": "user.username"}
            create(pk=1, kind="tenant", value="first", rules="*")
        ThrottleRule.objects.create(name="search", rate="5/s")
        said = messages(operator.post(ADD, {**TYPED, **typed}))
        assert ThrottleOverride.objects.filter(created_by="somebody").count() == 1
        assert any(message.startswith(doubt or "The override") for message in said)
        assert (len(said) == 1) == (doubt is None)

    def test_a_typed_time_precedes_the_choice_and_an_end_is_left_out_when_chosen(self, operator: Client) -> None:
        operator.post(ADD, {**TYPED, "until_0": "2100-01-01", "until_1": "00:00"})
        assert ThrottleOverride.objects.get().until.year == 2100  # type: ignore[union-attr]
        ThrottleOverride.objects.all().delete()
        operator.post(ADD, {**TYPED, "lasting": "endless"})
        row = ThrottleOverride.objects.get()
        assert row.until is None
        page = operator.get(url("throttleoverride_change", row.pk))
        assert page.context["adminform"].form["lasting"].value() == "endless"

    def test_an_api_key_is_in_no_table_and_in_no_log(self, operator: Client) -> None:
        operator.post(ADD, {**TYPED, "kind": "api_key", "value": "canary-4711"})
        row = ThrottleOverride.objects.get()
        change = url("throttleoverride_change", row.pk)
        page = operator.get(LIST).content.decode() + operator.get(change).content.decode()
        assert "canary" not in str(ThrottleOverride.objects.values()) + str(LogEntry.objects.values()) + page
        assert operator.post(change, {**TYPED, "kind": "api_key", "value": row.value})
        assert ThrottleOverride.objects.get().value == row.value


class TestList:
    def test_it_reads_well(self, operator: Client) -> None:
        anna, now = User.objects.create_user("anna"), timezone.now()
        until = now + timedelta(hours=2, minutes=1, seconds=30)
        create(kind="user", value=str(anna.pk), effect="exempt", until=until, created_by="me")
        create(kind="user", value="4711", effect="multiply", factor=0.5, until=now - timedelta(minutes=5))
        create(value="203.0.113.0/24")
        assert "User 4711" not in text(operator.get(LIST)), "it has ended"
        shown = text(operator.get(f"{LIST}?state=all")).replace("\xa0", " ")
        for words in (
            f"User {anna.pk}, anna exempt from every rule in 2 hours, 1 minute because 0 minutes ago by me",
            "User 4711 0.5 × the limit of every rule expired 5 minutes ago",
            "Network 203.0.113.0/24 blocked no end",
        ):
            assert words in shown

    def test_filters_and_a_search_by_who_they_are(self, operator: Client) -> None:
        create(value="192.0.2.1", until=timezone.now() - timedelta(hours=1))
        create(kind="user", value=str(User.objects.create_user("anna").pk))
        create(value="203.0.113.0/24")
        create(value="2001:db8::/48", reason="the launch")
        in_force = ["2001:db8::/48", "203.0.113.0/24", "user"]
        for query, found in (
            *((f"state={state}", in_force + over) for state, over in (("force", []), ("shoe", ["192.0.2.1"]))),
            *(("state=expired", ["192.0.2.1"]), ("q=anna", ["user"]), ("q=launch", ["2001:db8::/48"])),
            *((f"q=203.0.113.{end}", ["203.0.113.0/24"]) for end in ("77", "0/24")),
            ("q=2001:db8::7", ["2001:db8::/48"]),
            *((f"q={nobody}", []) for nobody in ("198.51.100.1", "9" * 50, "%25")),
        ):
            rows = operator.get(f"{LIST}?{query}").context["cl"].result_list
            assert ["user" if row.kind == "user" else row.value for row in rows] == found, query


def test_end_now_and_extend(operator: Client) -> None:
    now = timezone.now()
    rows = [create(), create(until=now + timedelta(hours=1)), create(until=now - timedelta(days=1))]
    assert messages(action(operator, "extend", *rows)) == ["2 overrides extended."]
    endless, running, over = (ThrottleOverride.objects.get(pk=row.pk).until for row in rows)
    assert (endless, running) == (None, now + timedelta(hours=3))
    assert over is not None
    assert now + timedelta(hours=2) <= over <= timezone.now() + timedelta(hours=2)
    past = create(until=now - timedelta(hours=1))
    assert messages(action(operator, "end_now", *rows, past))[-1] == "3 overrides ended."
    assert not ThrottleOverride.objects.in_force().exists()
    assert ThrottleOverride.objects.get(pk=past.pk).until == past.until
    entries = sorted(entry.get_change_message() for entry in LogEntry.objects.all())
    assert entries == [*["Ended by hand."] * 3, *["Extended by 2 hours."] * 2]
