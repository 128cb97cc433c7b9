"""Every way in which settings and rules can be wrong has its number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.core.management import call_command
from django.db import connection
from django.test import override_settings

from django_throttle import checks
from django_throttle.checks import fit, values
from django_throttle.conf import Conf
from django_throttle.models import ThrottleRule

LOCMEM = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
REDIS = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}


def found(given: Any, **settings: Any) -> list[CheckMessage]:
    with override_settings(DJANGO_THROTTLE=given, **settings):
        return checks.check_settings(None)


def numbers(given: Any, **settings: Any) -> list[str]:
    return [str(message.id).removeprefix("django_throttle.") for message in found(given, **settings)]


async def tenant(subject: object) -> str:
    return "acme"


async def tenants(subject: object) -> AsyncIterator[str]:
    yield "acme"


class Tenant:
    async def __call__(self, subject: object) -> str:
        return "acme"


partly, called = partial(tenant), Tenant()

WRONG: list[tuple[str, Any]] = [
    ("E001", ["RULES"]),
    ("E001", None),
    ("E002", {"RULLES": {}}),
    ("E002", {"rules": {}}),
    ("E003", {"RULES": ["api"]}),
    ("E004", {"RULES": {"api": {"rate": "100"}}}),
    ("E004", {"RULES": {"api": {"rat": "100/min"}}}),
    ("E004", {"RULES": {"api": "100/min"}}),
    ("E004", {"RULES": {"": {"rate": "100/min"}}}),
    ("E004", {"RULES": {5: {"rate": "100/min"}}}),
    ("E005", {"RULES": {"api": {"rate": "100/min", "key": "shop.limits.tenant"}}}),
    ("E005", {"RULES": {"api": {"rate": "100/min", "key": "os.sep"}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "key": "."}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "key": "a..b"}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "scopes": ["a,b"]}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.test_checks.tenant"}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.test_checks.tenants"}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.test_checks.partly"}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.test_checks.called"}}}),
    ("E010", {"STORE": "disk"}),
    ("E011", {"STORE": "memory", "REDIS": None}),
    ("E011", {"STORE": "memory", "REDIS": ""}),
    ("E012", {"PREFIX": 5}),
    ("E012", {"PREFIX": ""}),
    ("E012", {"PREFIX": "a{b"}),
    ("E013", {"KEY_SECRET": b"bytes"}),
    ("E014", {"DATABASE_RULES": "yes"}),
    ("E015", {"AGENT": 1}),
    ("E016", {"REFUSE_SOCKET": "politely"}),
    ("E020", {"RULES_POLL": 0}),
    ("E021", {"RULES_REREAD": "30"}),
    ("E022", {"DEADLINE": -0.1}),
    ("E022", {"DEADLINE": True}),
    ("E022", {"DEADLINE": float("nan")}),
    ("E023", {"MAX_CONNECTIONS": 2.5}),
    ("E024", {"BEAT_INTERVAL": None}),
    ("E025", {"PROCESS_TTL": 10**6}),
    ("E026", {"CONNECTION_TTL": float("inf")}),
    ("E027", {"EXTEND_INTERVAL": 0}),
    ("E028", {"IPV6_PREFIX": 129}),
    ("E029", {"MAX_VIOLATIONS": -1}),
    ("E030", {"REDIS": "http://127.0.0.1/0"}),
    ("E030", {"REDIS": "redis+sentinel://127.0.0.1:26379"}),
    ("E030", {"REDIS": "redis+cluster://127.0.0.1:7000/1"}),
    ("E030", {"REDIS": "redis+cluster://127.0.0.1:seven"}),
    ("E031", {"REDIS": "nowhere"}),
    ("E032", {"REDIS": "default"}),
    ("E033", {"PROCESS_TTL": 6, "BEAT_INTERVAL": 5}),
    ("E034", {"CONNECTION_TTL": 300, "EXTEND_INTERVAL": 180}),
]


@pytest.mark.parametrize(("number", "given"), WRONG, ids=[f"{number} {given}" for number, given in WRONG])
def test_wrong(number: str, given: Any) -> None:
    assert numbers(given, CACHES=LOCMEM) == [number]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"RULES": {"api": {"rate": "100/min", "key": "os.path.basename"}}},
        {"REDIS": "redis://127.0.0.1:6379/0"},
        {"REDIS": "rediss://:secret@redis.example:6379/0"},
        {"STORE": "memory", "REDIS": "nowhere"},
        {"BEAT_INTERVAL": 1, "PROCESS_TTL": 2, "MAX_VIOLATIONS": 0},
    ],
    ids=str,
)
def test_right(given: Any) -> None:
    assert numbers(given, CACHES=LOCMEM) == []


def test_a_module_that_fails_to_import_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_limits.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    (message,) = found({"RULES": {"api": {"rate": "100/min", "key": "broken_limits.tenant"}}})
    assert message.id == "django_throttle.E005"
    assert "cannot be imported (division by zero)" in message.msg


def test_an_alias_that_django_redis_serves_is_right() -> None:
    assert numbers({"REDIS": "default"}, CACHES=REDIS) == []


def test_the_nearest_setting_is_named() -> None:
    (message,) = found({"DEADLIN": 1})
    assert message.msg.endswith("did you mean 'DEADLINE'?")


def test_every_bad_rule_is_named() -> None:
    messages = found({"RULES": {"one": {"rate": "x"}, "two": {"rate": "5/s", "burts": 3}, "fine": {"rate": "5/s"}}})
    assert [message.msg.split(":")[0] for message in messages] == ["rule 'one'", "rule 'two'"]
    assert "did you mean 'burst'?" in messages[1].msg


def test_every_setting_has_its_check_and_every_check_its_test() -> None:
    checked = {*values.NUMBERS, *values.TEXTS, *values.SWITCHES, *values.CHOICES, "RULES", "REDIS"}
    assert checked == {setting.name for setting in fields(Conf)}
    ids = [number for number, *_ in (*values.NUMBERS.values(), *values.CHOICES.values(), *fit.PAIRS)]
    ids += [*values.TEXTS.values(), *values.SWITCHES.values()]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {number for number, _ in WRONG}


def test_the_defaults_are_right() -> None:
    assert numbers({}) == []


class TestStore:
    def found(self, given: Any, debug: bool = False) -> list[CheckMessage]:
        with override_settings(DJANGO_THROTTLE=given, DEBUG=debug):
            return checks.check_store(None)

    def test_memory_in_production_is_a_warning(self) -> None:
        assert [message.id for message in self.found({})] == ["django_throttle.W001"]
        assert [message.id for message in self.found({"STORE": "memory", "REDIS": "default"})] == [
            "django_throttle.W001"
        ]

    def test_redis_is_none_nor_is_development(self) -> None:
        assert self.found({"REDIS": "default"}) == []
        assert self.found({}, debug=True) == []
        assert self.found("nonsense") == []


class TestRows:
    def test_without_leave_the_database_is_not_touched(self) -> None:
        assert checks.check_rows(None) == []
        assert checks.check_rows(None, databases=[]) == []

    @pytest.mark.django_db
    def test_a_row_that_is_not_in_force_is_a_warning(self) -> None:
        ThrottleRule.objects.create(name="fine", rate="5/s")
        ThrottleRule.objects.create(name="sad", rate="5/s", key="gone.away")
        (message,) = checks.check_rows(None, databases=["default"])
        assert message.id == "django_throttle.W002"
        assert message.msg.startswith("rule 'sad' in the database: the key 'gone.away'")

    @pytest.mark.django_db(transaction=True)
    def test_a_table_that_is_not_there_yet_is_no_matter(self) -> None:
        with connection.schema_editor() as editor:
            editor.delete_model(ThrottleRule)
        try:
            assert checks.check_rows(None, databases=["default"]) == []
        finally:
            with connection.schema_editor() as editor:
                editor.create_model(ThrottleRule)


def test_the_demo_site_passes_them_all() -> None:
    call_command("check")


@pytest.mark.django_db
def test_the_models_have_their_migrations() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
