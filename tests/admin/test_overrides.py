"""Overrides in the admin: who may do what, what is typed and what becomes of it, and the two actions for 3 a.m."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from django_throttle import rulebook
from django_throttle.models import ThrottleOverride, ThrottleRule
from tests.admin.conftest import user
from tests.admin.test_rules import NASTY, Scripts, text
from tests.inside import forget_rules
from tests.raw_rows import force

pytestmark = pytest.mark.django_db

LIST = reverse("admin:django_throttle_throttleoverride_changelist")
ADD = reverse("admin:django_throttle_throttleoverride_add")
TYPED = {
    "kind": "ip",
    "value": "192.0.2.7",
    "rules": "api, chat*",
    "effect": "multiply",
    "factor": "3",
    "lasting": "7200",
    "reason": "a launch",
}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> Iterator[None]:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": {"api": {"rate": "5/min"}}}
    yield
    forget_rules()


def made(**options: Any) -> ThrottleOverride:
    given = {"kind": "ip", "value": "192.0.2.7", "effect": "block", "reason": "because", **options}
    return ThrottleOverride.objects.create(**given)


def change_url(row: ThrottleOverride) -> str:
    return reverse("admin:django_throttle_throttleoverride_change", args=[row.pk])


def action(client: Client, name: str, *rows: ThrottleOverride, **options: Any) -> Any:
    return client.post(LIST, {"action": name, "_selected_action": [row.pk for row in rows]}, **options)


def errors(page: Any) -> dict[str, list[str]]:
    return {name: list(found) for name, found in page.context["adminform"].form.errors.items()}


def said(answer: Any) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


class TestPermissions:
    MATRIX = [
        ("anonymous", None, 302, 302, 302, False),
        ("no staff", {"staff": False}, 302, 302, 302, False),
        ("staff", {}, 403, 403, 403, False),
        ("view", {"permissions": ["view_throttleoverride"]}, 200, 200, 403, False),
        ("add", {"permissions": ["add_throttleoverride"]}, 403, 403, 200, False),
        ("change", {"permissions": ["change_throttleoverride"]}, 200, 200, 403, True),
        ("delete", {"permissions": ["delete_throttleoverride"]}, 403, 403, 403, False),
        ("superuser", {"superuser": True}, 200, 200, 200, True),
    ]

    @pytest.mark.row("A55")
    @pytest.mark.parametrize(
        ("who", "options", "seen_list", "seen_change", "seen_add", "may_end"), MATRIX, ids=[row[0] for row in MATRIX]
    )
    def test_matrix(
        self, client: Client, who: str, options: Any, seen_list: int, seen_change: int, seen_add: int, may_end: bool
    ) -> None:
        row = made(until=timezone.now() + timedelta(hours=1))
        if options is not None:
            client.force_login(
                user(*options.get("permissions", ()), **{k: v for k, v in options.items() if k != "permissions"})
            )
        assert client.get(LIST).status_code == seen_list
        assert client.get(change_url(row)).status_code == seen_change
        assert client.get(ADD).status_code == seen_add
        for name in ("extend", "end_now"):
            before = ThrottleOverride.objects.get().until
            action(client, name, row)
            assert (ThrottleOverride.objects.get().until != before) == may_end
        assert LogEntry.objects.count() == (2 if may_end else 0)

    def test_a_rule_may_be_edited_by_who_may_not_edit_overrides(self, client: Client) -> None:
        found = user()
        found.user_permissions.add(*Permission.objects.filter(codename__endswith="_throttlerule"))
        client.force_login(found)
        assert client.get(LIST).status_code == 403

    def test_who_may_only_see_is_told_everything_and_edits_nothing(self, client: Client) -> None:
        row = made(rules=("api", "chat"), until=timezone.now() + timedelta(hours=2, minutes=1))
        client.force_login(user("view_throttleoverride"))
        for page in (client.get(change_url(row)), client.get(LIST)):
            assert "blocked from what api and chat covers" in text(page)
            assert "192.0.2.7" in text(page)
            assert "because" in text(page)
        assert "How long" in text(client.get(change_url(row)))
        assert "from now" not in text(client.get(change_url(row)))

    @pytest.mark.row("A54")
    def test_the_token_is_wanted_and_nothing_is_done_by_get(self) -> None:
        row = made()
        client = Client(enforce_csrf_checks=True)
        client.force_login(user(superuser=True))
        assert action(client, "end_now", row).status_code == 403
        assert client.post(ADD, TYPED).status_code == 403
        client.get(LIST, {"action": "end_now", "_selected_action": row.pk, "index": 0})
        client.get(ADD, TYPED)
        row.refresh_from_db()
        assert row.until is None
        assert ThrottleOverride.objects.count() == 1


class TestForm:
    def test_what_is_typed_is_stored_with_its_end_and_its_maker(self, operator: Client) -> None:
        before = timezone.now()
        assert operator.post(ADD, {**TYPED, "rules": "api"}).status_code == 302
        row = ThrottleOverride.objects.get()
        assert (row.rules, row.factor, row.created_by, row.meaning) == (("api",), 3, "somebody", "3 × the limit of api")
        assert row.until is not None
        assert before + timedelta(hours=2) <= row.until <= timezone.now() + timedelta(hours=2)
        assert LogEntry.objects.get().object_repr == "Address 192.0.2.7"

    @pytest.mark.django_db(transaction=True)
    def test_it_is_in_force_at_once_and_so_is_its_end(self, operator: Client) -> None:
        assert rulebook.current().overrides.all == ()
        operator.post(ADD, {**TYPED, "rules": "api"})
        assert [found.subject for found in rulebook.current().overrides.all] == ["ip:192.0.2.7"]
        action(operator, "end_now", ThrottleOverride.objects.get())
        assert rulebook.current().overrides.all == ()

    def test_two_hours_are_what_a_new_one_gets(self, operator: Client) -> None:
        form = operator.get(ADD).context["adminform"].form
        assert form["lasting"].value() == "7200"
        assert dict(form.fields["lasting"].choices)["7200"] == "2 hours from now"

    @pytest.mark.parametrize(
        ("typed", "field"),
        [
            ({"rules": "apj"}, "rules"),
            ({"value": "nobody", "kind": "user"}, "value"),
            ({"value": "192.0.2.999"}, "value"),
            ({"factor": ""}, "factor"),
            ({"effect": "block"}, "factor"),
            ({"effect": "replace", "factor": ""}, "rate"),
            ({"reason": " "}, "reason"),
            ({"lasting": ""}, "lasting"),
            ({"until_0": "2020-01-01", "until_1": "00:00"}, "until"),
            ({"until_0": "someday", "until_1": "00:00", "lasting": ""}, "until"),
        ],
        ids=str,
    )
    def test_an_error_stands_at_its_field(self, operator: Client, typed: dict[str, Any], field: str) -> None:
        page = operator.post(ADD, {**TYPED, "rules": "api", **typed})
        assert page.status_code == 200
        assert list(errors(page)) == [field]
        assert not ThrottleOverride.objects.exists()

    def test_a_misspelt_rule_is_put_right(self, operator: Client) -> None:
        assert errors(operator.post(ADD, {**TYPED, "rules": "apii"})) == {
            "rules": ["There is no rule 'apii'. Did you mean 'api'?"]
        }

    @pytest.mark.parametrize("rules", ["drf-anon", "drf-*"])
    def test_a_limit_of_rest_framework_is_named_though_no_rulebook_lists_it(self, operator: Client, rules: str) -> None:
        assert len(said(operator.post(ADD, {**TYPED, "rules": rules}))) == 1
        assert ThrottleOverride.objects.get().rules == (rules,)

    def test_several_rules_that_it_does_not_fit_hold_as_they_are(self, operator: Client) -> None:
        ThrottleRule.objects.create(name="search", rate="5/s")
        answer = operator.post(ADD, {**TYPED, "rules": "api, search", "effect": "replace", "factor": "", "limit": "9"})
        assert "It does not fit api and search, which hold as they are: give what fits." in said(answer)

    def test_names_to_choose_from_are_shown(self, operator: Client) -> None:
        ThrottleRule.objects.create(name=f"x{NASTY}", rate="5/s")
        page = operator.get(ADD)
        assert "Rules: api, x<img" in text(page)
        assert Scripts(page.content.decode()).found == []

    def test_a_time_that_is_typed_goes_before_the_choice(self, operator: Client) -> None:
        operator.post(ADD, {**TYPED, "rules": "api", "until_0": "2100-01-01", "until_1": "00:00"})
        assert ThrottleOverride.objects.get().until.year == 2100  # type: ignore[union-attr]

    def test_without_an_end_only_when_chosen(self, operator: Client) -> None:
        operator.post(ADD, {**TYPED, "rules": "api", "lasting": "endless"})
        row = ThrottleOverride.objects.get()
        assert row.until is None
        assert operator.get(change_url(row)).context["adminform"].form["lasting"].value() == "endless"

    def test_saving_what_is_shown_changes_nothing_and_a_choice_counts_from_now(self, operator: Client) -> None:
        row = made(rules=("gone",), until=timezone.now().replace(microsecond=0) + timedelta(days=3))
        form = operator.get(change_url(row)).context["adminform"].form
        assert form["lasting"].value() == ""
        shown = {**TYPED, "rules": "gone", "effect": "block", "factor": "", "lasting": "", "reason": "because"}
        assert row.until is not None
        shown |= {"until_0": f"{row.until:%Y-%m-%d}", "until_1": f"{row.until:%H:%M:%S}"}
        assert operator.post(change_url(row), shown).status_code == 302
        assert LogEntry.objects.latest("pk").get_change_message() == "No fields changed."
        assert list(errors(operator.post(change_url(row), {**shown, "until_0": "", "until_1": ""}))) == ["lasting"]
        operator.post(change_url(row), {**shown, "lasting": "0"})
        row.refresh_from_db()
        assert row.until is not None
        assert row.until <= timezone.now()

    def test_an_api_key_is_in_no_table_and_in_no_log(self, operator: Client) -> None:
        operator.post(ADD, {**TYPED, "kind": "api_key", "value": "canary-4711", "rules": "api"})
        row = ThrottleOverride.objects.get()
        page = operator.get(LIST).content.decode() + operator.get(change_url(row)).content.decode()
        kept = str(ThrottleOverride.objects.values()) + str(LogEntry.objects.values()) + page
        assert "canary" not in kept
        assert operator.post(change_url(row), {**TYPED, "kind": "api_key", "value": row.value, "rules": "api"})
        assert ThrottleOverride.objects.get().value == row.value

    @pytest.mark.parametrize(
        ("typed", "doubt"),
        [
            ({"kind": "group", "value": "support"}, "There is no group 'support'"),
            ({"kind": "tenant", "value": "acme"}, "The setting TENANT is empty: the override does nothing"),
            ({"rules": "ap?s"}, "No rule is named ap?s"),
            ({"effect": "replace", "factor": "", "limit": "9"}, "It does not fit api, which holds as it is"),
        ],
        ids=str,
    )
    def test_what_may_not_be_meant_is_saved_and_said(self, operator: Client, typed: dict[str, Any], doubt: str) -> None:
        answer = operator.post(ADD, {**TYPED, "rules": "api", **typed})
        assert ThrottleOverride.objects.count() == 1
        assert any(message.startswith(doubt) for message in said(answer))

    def test_an_override_that_another_precedes_is_saved_and_said(self, operator: Client) -> None:
        other = made(kind="ip", value="192.0.2.7", rules="*", effect="block", factor=None, until=None)
        typed = {**TYPED, "kind": "ip", "value": "192.0.2.7", "rules": "*", "effect": "exempt", "factor": ""}
        warning, _ = said(operator.post(ADD, typed))
        assert warning.startswith(f"Override {other.pk} precedes this one for every rule: blocked, without an end.")

    def test_whoever_blocks_the_own_address_is_told_how_to_get_back(self, operator: Client) -> None:
        typed = {**TYPED, "rules": "*", "effect": "block", "factor": ""}
        assert len(said(operator.post(ADD, typed))) == 1
        answer = operator.post(ADD, {**typed, "value": "127.0.0.0/8"})
        assert said(answer)[1].startswith("This override blocks you, too.")

    def test_a_group_that_is_there_raises_no_doubt(self, operator: Client) -> None:
        Group.objects.create(name="support")
        answer = operator.post(ADD, {**TYPED, "rules": "api", "kind": "group", "value": "support"})
        assert len(said(answer)) == 1


class TestList:
    def test_it_reads_well(self, operator: Client) -> None:
        anna = User.objects.create_user("anna")
        now = timezone.now()
        made(
            kind="user",
            value=str(anna.pk),
            effect="exempt",
            until=now + timedelta(hours=2, minutes=1, seconds=30),
            created_by="me",
        )
        made(kind="user", value="4711", effect="multiply", factor=0.5, until=now - timedelta(minutes=5))
        made(value="203.0.113.0/24")
        shown = text(operator.get(LIST)).replace("\xa0", " ")
        for words in (
            f"User anna (id {anna.pk}) exempt from every rule in 2 hours, 1 minute because 0 minutes ago by me",
            "User 4711 0.5 × the limit of every rule expired 5 minutes ago",
            "Network 203.0.113.0/24 blocked no end",
        ):
            assert words in shown

    def test_the_names_of_users_cost_one_query(self, operator: Client, django_assert_num_queries: Any) -> None:
        def count() -> int:
            from django.db import connection
            from django.test.utils import CaptureQueriesContext

            with CaptureQueriesContext(connection) as queries:
                operator.get(LIST)
            return len(queries)

        made(kind="user", value="1")
        few = count()
        for n in range(20):
            made(kind="user", value=str(n))
        assert count() == few

    def test_a_state_to_filter_by(self, operator: Client) -> None:
        made(value="192.0.2.1", until=timezone.now() - timedelta(hours=1))
        made(value="192.0.2.2")
        for state, seen in (("force", ["192.0.2.2"]), ("expired", ["192.0.2.1"]), ("shoe", ["192.0.2.2", "192.0.2.1"])):
            page = operator.get(LIST, {"state": state})
            assert [row.value for row in page.context["cl"].result_list] == seen

    @pytest.mark.parametrize(
        ("typed", "found"),
        [
            ("anna", ["user"]),
            ("203.0.113.77", ["203.0.113.0/24"]),
            ("203.0.113.0/24", ["203.0.113.0/24"]),
            ("2001:db8::7", ["2001:db8::/48"]),
            ("launch", ["2001:db8::/48"]),
            ("198.51.100.1", []),
            ("9" * 50, []),
            ("%", []),
        ],
    )
    def test_a_search_by_who_they_are(self, operator: Client, typed: str, found: list[str]) -> None:
        anna = User.objects.create_user("anna")
        made(kind="user", value=str(anna.pk))
        made(value="203.0.113.0/24")
        made(value="2001:db8::/48", reason="the launch")
        rows = operator.get(LIST, {"q": typed}).context["cl"].result_list
        assert ["user" if row.kind == "user" else row.value for row in rows] == found

    @pytest.mark.row("A53")
    def test_what_somebody_typed_is_shown_and_not_run(self, operator: Client) -> None:
        row = made(kind="tenant", value=NASTY, rules=(NASTY,), reason=NASTY, created_by=NASTY)
        for page in (operator.get(LIST), operator.get(change_url(row)), action(operator, "end_now", row, follow=True)):
            assert [tag for tag in Scripts(page.content.decode()).found if "/static/admin/" not in tag] == []
            assert "<img src=x" in text(page)

    def test_a_row_that_makes_no_sense_breaks_nothing(self, operator: Client) -> None:
        row = made(kind="user", value="1")
        force(ThrottleOverride, value="9" * 40, rate="often")
        assert 'class="rule-wrong"' in operator.get(LIST).content.decode()
        assert operator.get(change_url(row)).status_code == 200


class TestActions:
    @pytest.mark.row("A57")
    @pytest.mark.parametrize("typed", ["*", "{}", "a*", "../1", "%"])
    def test_what_is_typed_is_one_subject_whatever_signs_are_in_it(self, operator: Client, typed: str) -> None:
        operator.post(ADD, {**TYPED, "rules": "api", "kind": "group", "value": typed})
        other = made(kind="group", value="a")
        row = ThrottleOverride.objects.get(value=typed)
        assert row.as_override().subject == f"group:{typed}"
        LogEntry.objects.all().delete()
        action(operator, "end_now", row)
        other.refresh_from_db()
        assert other.until is None
        assert LogEntry.objects.get().object_id == str(row.pk)

    def test_end_now(self, operator: Client) -> None:
        past = timezone.now() - timedelta(hours=1)
        rows = [made(), made(until=timezone.now() + timedelta(days=1)), made(until=past)]
        assert said(action(operator, "end_now", *rows)) == ["2 overrides ended."]
        assert not ThrottleOverride.objects.in_force().exists()
        assert ThrottleOverride.objects.get(pk=rows[2].pk).until == past
        entries = LogEntry.objects.all()
        assert {entry.object_id for entry in entries} == {str(rows[0].pk), str(rows[1].pk)}
        assert {entry.get_change_message() for entry in entries} == {"Ended by hand."}

    def test_extend_from_the_end_or_from_now(self, operator: Client) -> None:
        now = timezone.now()
        rows = [made(), made(until=now + timedelta(hours=1)), made(until=now - timedelta(days=1))]
        assert said(action(operator, "extend", *rows)) == ["2 overrides extended."]
        endless, running, over = (ThrottleOverride.objects.get(pk=row.pk).until for row in rows)
        assert endless is None
        assert running == now + timedelta(hours=3)
        assert over is not None
        assert now + timedelta(hours=2) <= over <= timezone.now() + timedelta(hours=2)
        assert re.fullmatch(
            r"(Extended by 2 hours\. ?)+", " ".join(e.get_change_message() for e in LogEntry.objects.all())
        )


class TestTheEndOfAllDates:
    """A moment that has no local time everywhere."""

    TYPED = {**TYPED, "lasting": "given", "until_0": "9999-12-31", "until_1": "23:59:59"}

    @pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
    def test_it_is_refused_in_words(self, operator: Client, settings: Any, zone: str) -> None:
        settings.TIME_ZONE = zone
        assert "9998" in " ".join(errors(operator.post(ADD, self.TYPED))["until"])

    def test_a_row_that_has_it_is_shown_and_can_be_mended(self, operator: Client, settings: Any) -> None:
        settings.TIME_ZONE = "Europe/Berlin"
        row = made(until=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        assert operator.get(LIST).status_code == 200
        assert operator.get(change_url(row)).status_code == 200
        action(operator, "end_now", row)
        row.refresh_from_db()
        assert not row.lasts()


def test_an_end_is_shown_as_the_reader_writes_moments(operator: Client) -> None:
    made(until=datetime(2090, 1, 31, 23, 0, tzinfo=UTC))
    with timezone.override("Asia/Tokyo"), translation.override("de"):
        assert 'title="1. Februar 2090 08:00"' in operator.get(LIST).content.decode()
