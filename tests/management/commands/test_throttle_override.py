"""manage.py throttle_override: what the admin does, from a shell."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone, translation

from django_throttle.drf import UserRateThrottle
from django_throttle.models import ThrottleOverride

pytestmark = pytest.mark.django_db
BECAUSE = ("--reason", "a launch")
RULES = {"api": {"rate": "100/min"}, "mail": {"rate": "9/min"}}


def run(*words: str) -> str:
    said = io.StringIO()
    call_command("throttle_override", *words, stdout=said, stderr=said, no_color=True)
    return said.getvalue()


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "100/min"}}, "AGENT": False}
    monkeypatch.setattr("getpass.getuser", lambda: "root")


class Burst(UserRateThrottle):
    rate = "5/min"
    scope = "burst"


class TestAdd:
    @pytest.mark.parametrize(
        ("words", "meaning"),
        [
            (("ip", "192.0.2.7/24", "--block"), "Network 192.0.2.0/24: blocked"),
            (("user", "anna", "--exempt", "--rules", "api"), "User {pk}: exempt from api"),
            (
                ("group", "support", "--times", "3", "--rules", "api", "ap*"),
                "Group support: 3 × the limit of api and ap*",
            ),
            (
                ("tenant", "acme", "--rate", "500 / Min", "--limit", "9"),
                "Tenant acme: 500/min and 9 at once instead of",
            ),
        ],
        ids=str,
    )
    def test_it_is_stored_and_said(self, words: tuple[str, ...], meaning: str) -> None:
        anna = User.objects.create_user("anna")
        said = run("add", *words, *BECAUSE)
        row = ThrottleOverride.objects.get()
        assert said.startswith(f"{row.pk}  {meaning.format(pk=anna.pk)}")
        assert "a launch (root)" in said
        assert row.created_by == "root"
        assert row.until is not None
        assert timedelta(hours=1.9) < row.until - timezone.now() <= timedelta(hours=2)

    @pytest.mark.parametrize("name", ["drf-anon", "drf-user", "drf-burst", "drf-uploads", "drf-*"])
    def test_a_limit_of_rest_framework_may_be_named(self, settings: Any, name: str) -> None:
        settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"uploads": "20/day"}}
        run("add", "ip", "192.0.2.7", "--block", "--rules", name, *BECAUSE)
        assert ThrottleOverride.objects.get().rules == (name,)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [("drf-nothing", ""), ("drf-anno", " Did you mean 'drf-anon'?"), ("drf-bust", " Did you mean")],
    )
    def test_one_that_there_is_not_is_an_error(self, name: str, hint: str) -> None:
        with pytest.raises(CommandError, match=re.escape(f"There is no rule '{name}'.{hint}")):
            run("add", "ip", "192.0.2.7", "--block", "--rules", name, *BECAUSE)
        assert not ThrottleOverride.objects.exists()

    def test_how_long(self) -> None:
        add = ("add", "ip", "192.0.2.7", "--block", *BECAUSE)
        run(*add, "--for", "30m")
        run(*add, "--until", "2100-01-31T18:00")
        run(*add, "--endless")
        endless, moment, short = (row.until for row in ThrottleOverride.objects.all())
        assert endless is None
        assert str(moment) == "2100-01-31 18:00:00+00:00"
        assert short is not None
        assert short - timezone.now() <= timedelta(minutes=30)

    def test_an_api_key_is_read_from_input_and_hashed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("canary-4711\n"))
        said = run("add", "api_key", "-", "--block", *BECAUSE)
        assert "canary" not in said + str(ThrottleOverride.objects.values())

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (("ip", "192.0.2.7"), "say what happens"),
            (("ip", "192.0.2.7", "--block", "--exempt"), "say what happens"),
            (("ip", "here", "--block"), "Who: 'here' is not an address"),
            (("ip", "192.0.2.7", "--times", "0"), "A factor must be more than 0"),
            (("ip", "192.0.2.7", "--rate", "often"), "'often' is not a rate"),
            (("ip", "192.0.2.7", "--block", "--rules", "apii"), "Did you mean 'api'"),
            (("ip", "192.0.2.7", "--block", "--for", "ever"), "'ever' is not a duration"),
            (("ip", "192.0.2.7", "--block", "--for", "400d"), "'400d' is not a duration of 366 days at most"),
            (("ip", "192.0.2.7", "--block", "--until", "soon"), "'soon' is not a moment"),
            (("ip", "192.0.2.7", "--block", "--until", "2030-99-01T00:00"), "is not a moment"),
            (("ip", "192.0.2.7", "--block", "--until", "2001-01-01T00:00"), "has passed"),
            (("user", "anna", "--block"), "No user has the id"),
            (("shoe", "1", "--block"), "invalid choice"),
            (("ip", "192.0.2.1", "--times", "0,5"), "Factor: Write a number, with a point and no comma: 0.5."),
            (("ip", "192.0.2.1", "--rate", "1,000/min"), "'1,000/min' is not a rate: the number must be whole"),
        ],
        ids=str,
    )
    def test_what_makes_no_sense_is_refused(self, words: tuple[str, ...], why: str) -> None:
        with pytest.raises(CommandError, match=re.escape(why)):
            run("add", *words, *BECAUSE)
        assert not ThrottleOverride.objects.exists()

    def test_what_is_wrong_is_said_with_the_label_of_the_field(self) -> None:
        with translation.override("de"), pytest.raises(CommandError, match=r"^Wer: 'here' ist keine Adresse"):
            run("add", "ip", "here", "--block", *BECAUSE)

    def test_a_doubt_is_said(self) -> None:
        assert "There is no group 'support'" in run("add", "group", "support", "--block", *BECAUSE)

    def test_it_says_what_precedes_it(self, settings: Any) -> None:
        """Among overrides of one subject: block, replace, multiply, exempt."""
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": RULES}
        run("add", "ip", "192.0.2.7", "--rate", "5/min", "--rules", "api", "--until", "2100-01-31T18:00", *BECAUSE)
        run("add", "ip", "192.0.2.7", "--block", "--rules", "mail", "--endless", *BECAUSE)
        api, mail = ThrottleOverride.objects.order_by("pk")
        line, *warnings = run("add", "ip", "192.0.2.7", "--exempt", *BECAUSE).splitlines()
        assert "exempt from every rule" in line
        replaced = "5/min instead of the limit of api, until 2100-01-31 18:00:00 UTC"
        nothing = "Until it ends, this one does nothing there."
        assert sorted(warnings) == [
            f"Override {api.pk} precedes this one for api: {replaced}. {nothing}",
            f"Override {mail.pk} precedes this one for mail: blocked from what mail covers, without an end. {nothing}",
        ]
        with translation.override("de"):
            said = run("add", "ip", "192.0.2.7", "--times", "2", "--rules", "mail", *BECAUSE)
        assert f"Ausnahme {mail.pk} geht dieser bei mail vor: gesperrt" in said

    @pytest.mark.parametrize(
        "words",
        [
            ("ip", "192.0.2.7", "--block"),
            ("ip", "192.0.2.8", "--exempt"),
            ("ip", "192.0.2.7", "--exempt", "--rules", "mail"),
            ("ip", "192.0.2.7", "--times", "3"),
        ],
        ids=str,
    )
    def test_what_precedes_nothing_is_not_said(self, settings: Any, words: tuple[str, ...]) -> None:
        """Stronger, for another subject, or for another rule; and of two alike the later one holds."""
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": RULES}
        run("add", "ip", "192.0.2.7", "--times", "2", "--rules", "api", *BECAUSE)
        ended = ThrottleOverride.objects.create(kind="ip", value="192.0.2.7", effect="block", reason="x")
        run("end", str(ended.pk))
        assert "precedes" not in run("add", *words, *BECAUSE)

    def test_a_group_in_other_letters_is_another(self) -> None:
        """Whatever the database takes for equal: MariaDB looks past capitals and accents."""
        Group.objects.create(name="support")
        assert "There is no group" not in run("add", "group", "support", "--block", *BECAUSE)
        for name in ("Support", "súpport"):
            assert f"There is no group {name!r}" in run("add", "group", name, "--block", *BECAUSE)


class TestListAndEnd:
    def test_what_is_in_force(self) -> None:
        assert run("list") == "No override is in force.\n"
        assert run("list", "--all") == "There are no overrides.\n"
        run("add", "ip", "192.0.2.7", "--block", *BECAUSE)
        run("add", "ip", "192.0.2.8", "--block", "--endless", *BECAUSE)
        second, first = ThrottleOverride.objects.all()
        assert (
            run("list").splitlines()[0] == f"{second.pk}  Address 192.0.2.8: blocked, without an end: a launch (root)"
        )
        assert run("end", str(first.pk)).startswith(f"ended: {first.pk}  Address 192.0.2.7")
        assert [line.split()[0] for line in run("list").splitlines()] == [str(second.pk)]
        assert len(run("list", "--all").splitlines()) == 2
        with pytest.raises(CommandError, match=f"nothing was ended: {first.pk} is not in force"):
            run("end", str(second.pk), str(first.pk))
        assert ThrottleOverride.objects.in_force().count() == 1

    @pytest.mark.django_db(transaction=True)
    def test_a_table_that_is_not_there(self) -> None:
        with connection.schema_editor() as editor:
            editor.delete_model(ThrottleOverride)
        try:
            with pytest.raises(CommandError, match=r"run `manage\.py migrate`"):
                run("list")
        finally:
            with connection.schema_editor() as editor:
                editor.create_model(ThrottleOverride)
