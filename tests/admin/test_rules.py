"""Rules in the admin: what the form, its preview and the list show, and what they do with what was typed."""

import json
import re
import shlex
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.contrib.messages import get_messages
from django.core.management import call_command
from django.test import Client

from django_throttle import rulebook
from django_throttle.admin.option_fields import form_options
from django_throttle.core import Rule
from django_throttle.core.edits import STARTS_AFRESH
from django_throttle.core.options import EVENTS
from django_throttle.models import ThrottleOverride, ThrottleRule
from tests.admin.conftest import errors, form, text, url, user
from tests.inside import forget_rules
from tests.raw_rows import force, write

pytestmark = pytest.mark.django_db

LIST, ADD, PREVIEW = url("throttlerule_changelist"), url("throttlerule_add"), url("preview")
TYPED = {
    "name": "api", "enabled": "on", "algorithm": "token_bucket", "rate": "100/min", "burst": "20", "key": "user",
    "refill": "continuous", "resolution": "1", "scopes": "search, chat", "events": ["request", "message"],
    "action": "reject", "on_store_failure": "local", "cost": "1", "enforce_at": "1.0", "estimator": "fast",
    "unit": "calls", "at_limit": "reject",
}  # fmt: skip
SOCKETS = {"algorithm": "concurrency", "rate": "", "burst": "", "events": ["connection"]}
REQUESTS = {"events": ["request"]}
WORDS = "each user: 100 requests per minute, bursts up to 20, HTTP and WebSocket together, on search and chat together"


class TestPreview:
    @pytest.fixture(autouse=True)
    def nothing_in_force(self) -> None:
        forget_rules()

    def test_it_says_what_is_typed_whatever_its_name(self, operator: Client) -> None:
        ThrottleRule.objects.create(name="api", rate="5/min")
        for ask in (operator.get, operator.post):
            for name in ("api", "", "other"):
                answer = {"words": WORDS, "warnings": [], "errors": []}
                assert ask(PREVIEW, {**TYPED, "name": name}).json() == answer
            assert ask(PREVIEW).json()["errors"]
        rulebook.refresh()
        assert operator.post(PREVIEW, TYPED).json()["words"] == f"{WORDS}. {STARTS_AFRESH}"
        assert operator.put(PREVIEW).status_code == 405

    @pytest.mark.parametrize(
        ("typed", "said"),
        [
            ({"key": "os.abort"}, "Limit per: Select a valid choice."),
            ({"cost": "many"}, "“Cost per call” must be a whole number from 1"),
            ({"methods": "get, psot"}, "There is no method 'PSOT'; did you mean 'POST'?"),
            ({"methods": "post", "events": ["request", "message"]}, "Methods belong to rules of HTTP requests"),
            ({"audience": "groups:editors"}, "did you mean 'group:editors'?"),
            ({"plans": "group:premium = 1000/day"}, "needs the window of the rule (min), so that counts are kept"),
            ({"plans": "shop.limits.plan:pro = 9/min"}, "'shop.limits.plan' is used by no rule in settings"),
            ({"warn_at": "80, 100"}, "Warn at: '80' is 80 times the limit; did you mean 80 %?"),
            ({"warn_at": "150 %"}, "Use never reaches 1.5 times the limit"),
            ({"warn_at": "0,8"}, "write 80 %, or 0.8 with a point"),
            ({"enforce_at": "2,5"}, "Write a number, with a point and no comma: 0.5."),
            ({"enforce_at": "0.5"}, "“Refuse at” must be a number from 1 to 100"),
            ({"count_on": "6xx"}, "must have HTTP statuses, from 100 to 599, or classes such as \"4xx\", not '6xx'"),
        ],
    )
    def test_it_says_what_is_wrong(self, operator: Client, typed: dict[str, Any], said: str) -> None:
        answer = operator.post(PREVIEW, {**TYPED, **typed}).json()
        assert answer["words"] == ""
        assert said in " ".join(answer["errors"])


class TestForm:
    def test_what_is_typed_is_stored_and_shown(self, operator: Client) -> None:
        page = operator.get(ADD)
        assert re.findall(r'name="events" value="(\w+)"', page.content.decode()) == [*EVENTS]
        shown = [field for line in page.context["adminform"] for place in line for field in place.fields]
        assert set(shown) == {*form_options(Rule), "in_words", "description", "edit_reason", "updated_at"}
        assert operator.post(ADD, {**TYPED, "rate": "100 / Minute"}).status_code == 302
        row = ThrottleRule.objects.get()
        assert row.meaning == WORDS
        assert (row.rate, row.scopes, row.events) == ("100/min", ("search", "chat"), ("request", "message"))
        page = operator.get(url("throttlerule_change", row.pk))
        html = page.content.decode()
        assert WORDS in text(page) and 'value="search, chat"' in html
        assert re.findall(r'name="events" value="(\w+)"[^>]*checked', html) == ["request", "message"]
        operator.post(url("throttlerule_change", row.pk), TYPED)
        assert LogEntry.objects.latest("pk").get_change_message() == "No fields changed."

    @pytest.mark.row("A49")
    @pytest.mark.parametrize(
        ("typed", "field", "said"),
        [
            ({"algorithm": "fixed_window"}, "burst", "belongs to"),
            ({"rate": "5/s, 10 Per Minute"}, "rate", "'10 Per Minute' is not a rate: write"),
            (
                {**SOCKETS, "limit": "0"},
                "limit",
                "“Open at once” must be a whole number from 1 to 999,999,999,999,999, not 0",
            ),
            ({**SOCKETS, "limit": str(10**15)}, "limit", "must be a whole number from 1 to"),
            ({**SOCKETS, "limit": str(2**63)}, "limit", f"not {2**63}"),
            ({"cost": "os.path.getsize"}, "cost", "is used by no rule in settings; name it there first"),
            *(({name: value}, None, "") for name, value in (("max_delay", "5"), ("timezone", "UTC"), ("strict", "on"))),
            *(({**REQUESTS, name: value}, name, "") for name, value in (("methods", "psot"), ("count_on", "often"))),
            *(({**REQUESTS, name: value}, name, "") for name, value in (("warn_at", "80"), ("audience", "stuff"))),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_said_at_its_field(
        self, operator: Client, typed: dict[str, Any], field: str | None, said: str
    ) -> None:
        page = operator.post(ADD, {**TYPED, **typed})
        found = errors(page)
        assert found and not ThrottleRule.objects.exists()
        assert field is None or list(found) == [field]
        words = " ".join(text for each in found.values() for text in each)
        assert said in words
        if not said:
            assert not re.search(r"=|\w'\w|_(window|log|bucket|delay)\b(?!\))", words), words
        if field and "events" in typed and not said:
            assert f'value="{typed[field]}"' in page.content.decode(), "as it was typed"

    def test_a_rule_of_settings_fills_the_form_with_what_can_be_told(self, operator: Client, settings: Any) -> None:
        fine = {"rate": "9/s", "scopes": ["chat", "search"], "events": ["request", "message"], "key": "ip"}
        fine |= {"cost": "tests.entry_points.site.cost"}
        wrong = {"rate": "9/mn", "scopes": "chat", "key": ["ip"], "plans": {"staff": "9/h"}, "count_on": [401]}
        settings.DJANGO_THROTTLE = {
            "RULES": {"a&b": wrong, "many": {"rates": ["9/s", "9"]}, "text": "9/s", "fine": fine}
        }
        links = re.findall(r'href="([^"]+\?replace=[^"]+)"', operator.get(LIST).content.decode())
        forms = [operator.get(link).context["adminform"].form for link in links]
        shown = [{name: form[name].value() for name in ("name", "rate", "scopes", "key")} for form in forms]
        assert shown == [
            {"name": "fine", "rate": "9/s", "scopes": "chat, search", "key": "ip"},
            {"name": "a&b", "rate": "9/mn", "scopes": "chat", "key": "user_or_ip"},
            {"name": "many", "rate": "9/s, 9", "scopes": "*", "key": "user_or_ip"},
            {"name": "text", "rate": "", "scopes": "*", "key": "user_or_ip"},
        ]
        assert list(forms[0]["events"].value()) == ["request", "message"]
        assert "There is tests.entry_points.site.cost." in text(operator.get(ADD, {"replace": "nobody"}))
        assert (forms[1]["plans"].value(), forms[1]["count_on"].value()) == ("staff = 9/hour", "401")

    def test_plans_are_typed_a_line_each_and_names_that_nothing_has_are_said(self, operator: Client) -> None:
        Group.objects.create(name="editors")
        plans = " group:gold=900 / Minute\r\n\r\nstaff = 20/min burst 30 "
        groups = "group:editors, group:edtors, staff"
        typed = {**TYPED, "name": "typed", "plans": plans, "audience": groups, "scopes": "serach, search chat"}
        previewed = " ".join(operator.post(PREVIEW, typed).json()["warnings"])
        said = [str(message) for message in operator.post(ADD, typed, follow=True).context["messages"]]
        assert "There is no group 'gold' yet, so nobody is in it." in said
        assert "There is no group 'edtors' yet, so nobody is in it. Did you mean 'editors'?" in said
        for scope, meant in (("serach", "search"), ("search chat", "search, chat")):
            fault = f"nothing has the scope {scope!r}; did you mean {meant!r}?"
            assert f"rule 'typed': {fault}" in " ".join(said) and fault in previewed
        row = ThrottleRule.objects.get()
        assert row.options["plans"] == ["group:gold = 900/min", "staff = 20/min burst 30"]
        form = operator.get(url("throttlerule_change", row.pk)).content.decode()
        assert "group:gold = 900/min\nstaff = 20/min burst 30</textarea>" in form

    @pytest.mark.parametrize(
        ("changed", "is_said"),
        [
            ({"scopes": "*"}, True), ({"scopes": "admin:*", "name": "my rule; echo $HOME"}, True),
            ({"scopes": "search"}, False), ({"scopes": "*", "enabled": ""}, False),
        ],
    )  # fmt: skip
    def test_who_limits_the_admin_learns_the_way_in(
        self, operator: Client, settings: Any, changed: dict[str, Any], is_said: bool
    ) -> None:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django_throttle.middleware.ThrottleMiddleware"]
        page = operator.post(ADD, {**TYPED, **changed})
        assert page.status_code == 302
        told = [str(message) for message in get_messages(page.wsgi_request) if "manage.py" in str(message)]
        name = changed.get("name", "api")
        said = [message.startswith(f"Rule {name} limits the pages of this admin too") for message in told]
        assert said == [True] * is_said
        for message in told:  # the command works as it stands there
            call_command(*shlex.split(message.partition("manage.py ")[2]))
            assert ThrottleOverride.objects.get().rules == (name,)


class TestList:
    def row(self, **changes: Any) -> dict[str, Any]:
        row = ThrottleRule.objects.get()
        action = row.options.get("action", "reject")
        shown = {"id": row.pk, "rate": row.rate, "limit": "", "action": action, "enabled": "on", **changes}
        form = {f"form-0-{name}": value for name, value in shown.items()}
        return {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "_save": "Save", **form}

    @pytest.mark.django_db(transaction=True)
    def test_an_edit_in_the_list_is_in_force(self, operator: Client) -> None:
        operator.post(ADD, TYPED)
        assert operator.post(LIST, self.row(rate="7/s", action="shadow")).status_code == 302
        rule = rulebook.current().by_name("api")
        assert rule is not None
        assert (str(rule.rate), rule.action, rule.enabled) == ("7/s", "shadow", True)
        operator.post(LIST, {**self.row(), "form-0-enabled": ""})
        assert rulebook.current().by_name("api").enabled is False  # type: ignore[union-attr]
        ThrottleRule.objects.create(name="other", rate="5/s")
        ThrottleOverride.objects.create(kind="ip", value="192.0.2.7", effect="block", rules="api", reason="abuse")
        overrides = f'<a class="rule-badge" href="{url("throttleoverride_changelist")}?q=api">overrides: 1</a>'
        assert operator.get(LIST).content.decode().count(overrides) == 1
        lines = operator.get(url("throttlerule_history", ThrottleRule.objects.get(name="api").pk), follow=True)
        assert {line.name for line in lines.context["cl"].result_list} == {"api"}

    def test_what_makes_no_sense_is_refused_there_too(self, operator: Client) -> None:
        ThrottleRule.objects.create(name="api", rate="50/s", options={"cost": 10})
        for typed, said in (("sometimes", "is not a rate"), ("5/s", "One call costs 10, more than the 5")):
            page = operator.post(LIST, self.row(rate=typed))
            assert page.status_code == 200
            assert said in text(page)
        assert ThrottleRule.objects.get().rate == "50/s"

    @pytest.mark.row("F58")
    def test_a_row_that_makes_no_sense_is_red_and_breaks_nothing(self, operator: Client) -> None:
        row = ThrottleRule.objects.create(name="api", rate="5/s")
        force(ThrottleRule, rate="often", events="", key="shoe")
        page = operator.get(LIST)
        assert 'class="rule-wrong"' in page.content.decode()
        assert "Not in force: 'often' is not a rate" in text(page)
        assert operator.get(url("throttlerule_change", row.pk)).status_code == 200

    def test_options_without_a_field_stay_in_the_list_and_a_whole_form_forgets_unknown_ones(
        self, operator: Client
    ) -> None:
        row = ThrottleRule.objects.create(name="api", rate="50/s", options={"cost": 10, "warn_at": [0.8]})
        operator.post(LIST, self.row(rate="70/s"))
        stored = {"cost": 10, "warn_at": [0.8]}
        assert ThrottleRule.objects.values_list("rate", "options").get() == ("70/s", stored)
        write(ThrottleRule, options=json.dumps({**stored, "of another version": 1}))
        page = operator.post(LIST, self.row(rate="90/s"))
        assert "There is no option 'of another version'" in text(page)
        change = url("throttlerule_change", row.pk)
        assert operator.post(change, form(operator, change, cost="20")).status_code == 302
        assert ThrottleRule.objects.get().options == {**stored, "cost": 20}

    def test_who_may_only_see_sees_which_options_a_rule_has(self, client: Client) -> None:
        client.force_login(user("view_throttlerule"))
        options = {"warn_at": [0.8], "action": "shadow", "count_denied": True}
        row = ThrottleRule.objects.create(name="api", rate="50/s", options=options)
        page = text(client.get(url("throttlerule_change", row.pk)))
        assert "Rate: 50/s" in page and "Also count refused calls: yes" in page and "Warn at: 80 %" in page
        ThrottleOverride.objects.create(kind="ip", value="192.0.2.7", effect="block", rules="api", reason="abuse")
        rulebook.refresh()
        listed = text(client.get(LIST))
        assert "Edit" not in page and "Only record" in listed and "overrides" not in listed

    def test_filters_and_search(self, operator: Client) -> None:
        api = {"events": ["request", "message"], "key": "user", "scopes": "search,orders"}
        ThrottleRule.objects.create(name="api", rate="5/s", **api)
        ThrottleRule.objects.create(name="knock", rate="5/s", events=["connect"], algorithm="gcra", scopes="chat")
        ThrottleRule.objects.filter(name="knock").update(options={"action": "shadow"})
        for query in ("event=message", "key=user", "q=sear", "action=reject"):
            assert [row.name for row in operator.get(f"{LIST}?{query}").context["cl"].result_list] == ["api"]
        for query in ("event=connect", "algorithm__exact=gcra", "q=chat", "action=shadow"):
            assert [row.name for row in operator.get(f"{LIST}?{query}").context["cl"].result_list] == ["knock"]
        for query in ("event=sneeze", "o=8", "o=-8"):
            assert len(operator.get(f"{LIST}?{query}").context["cl"].result_list) == 2
