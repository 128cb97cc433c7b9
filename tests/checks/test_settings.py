"""Every way in which settings and rules can be wrong has its number."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage
from django.core.checks.registry import registry
from django.core.management import call_command
from django.core.signals import got_request_exception
from django.db import connection
from django.test import Client, override_settings
from django.urls import include, path
from rest_framework import throttling
from rest_framework.views import APIView

from django_throttle.checks import project
from django_throttle.checks import settings as checked_settings
from django_throttle.conf import Conf
from django_throttle.drf import UserRateThrottle
from django_throttle.models import ThrottleRule
from django_throttle.stores import RedisStore, pin
from tests.fleet import Sentinels
from tests.proxy import Proxy
from tests.servers import RedisServer, free_port

LOCMEM = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
REDIS = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}


def found(given: Any, **settings: Any) -> list[CheckMessage]:
    with override_settings(DJANGO_THROTTLE=given, **settings):
        return checked_settings.check_settings(None)


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


def of_request(request: object) -> int:
    return 1


def of_both(request: object, response: object) -> int:
    return 1


class Unmakable:
    def __init__(self, what: object) -> None:
        """No hook is given anything."""


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
    ("E005", {"RULES": {"api": {"rate": "100/min", "key": "ip+shop.limits.tenant"}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "ip+tests.checks.test_settings.tenant"}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "key": "."}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "key": "a..b"}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "scopes": ["a,b"]}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.checks.test_settings.tenant"}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.checks.test_settings.tenants"}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.checks.test_settings.partly"}}}),
    ("E006", {"RULES": {"api": {"rate": "100/min", "key": "tests.checks.test_settings.called"}}}),
    ("E010", {"STORE": "disk"}),
    ("E011", {"STORE": "memory", "REDIS": None}),
    ("E011", {"STORE": "memory", "REDIS": ""}),
    ("E012", {"PREFIX": 5}),
    ("E012", {"PREFIX": ""}),
    ("E012", {"PREFIX": "a{b"}),
    ("E013", {"KEY_SECRET": b"bytes"}),
    ("E014", {"DATABASE_RULES": "yes"}),
    ("E015", {"AGENT": 1}),
    ("E017", {"TESTS_IN_MEMORY": "no"}),
    ("E018", {"RULES_WAIT": 5}),
    ("E016", {"REFUSE_SOCKET": "politely"}),
    ("E050", {"RETRY_JITTER": -0.1}),
    ("E050", {"RETRY_JITTER": 1.1}),
    ("E050", {"RETRY_JITTER": float("nan")}),
    ("E050", {"RETRY_JITTER": True}),
    ("E050", {"RETRY_JITTER": "10 %"}),
    ("E051", {"RATELIMIT_HEADERS": "draft-5"}),
    ("E051", {"RATELIMIT_HEADERS": False}),
    ("E052", {"X_RATELIMIT_HEADERS": True}),
    ("E053", {"TELL_KEYS": "shop.limits.tenant"}),
    ("E053", {"TELL_KEYS": ["tenant"]}),
    ("E053", {"TELL_KEYS": [5]}),
    ("E053", {"TELL_KEYS": None}),
    ("E060", {"SHADOW": "no"}),
    ("E061", {"RULES": {"api": {"rate": "100/min", "cost": "shop.limits.price"}}}),
    ("E061", {"RULES": {"api": {"rate": "100/min", "cost": "os.sep"}}}),
    ("E062", {"RULES": {"api": {"rate": "100/min", "cost": "tests.checks.test_settings.tenant"}}}),
    ("E062", {"RULES": {"api": {"rate": "100/min", "cost": "tests.checks.test_settings.called"}}}),
    *(
        (number, {"RULES": {"api": {"rate": "100/min", "unit": "units", option: path}}})
        for option in ("reserve", "measure")
        for number, path in (
            ("E061", "shop.limits.price"),
            ("E061", "os.sep"),
            ("E062", "tests.checks.test_settings.tenant"),
            ("E062", "tests.checks.test_settings.called"),
        )
    ),
    ("E061", {"RULES": {"api": {"rate": "100/min", "cost": "tests.checks.test_settings.of_both"}}}),
    *(
        ("E061", {"RULES": {"api": {"rate": "100/min", "unit": "units", option: f"tests.checks.test_settings.{name}"}}})
        for option, name in (("reserve", "of_both"), ("measure", "of_request"))
    ),
    ("E005", {"RULES": {"api": {"rate": "100/min", "key": "tests.checks.test_settings.of_both"}}}),
    ("E043", {"TENANT": "tests.checks.test_settings.of_both"}),
    ("E044", {"USER_IDENT": "tests.checks.test_settings.of_both"}),
    ("W083", {"METER": False, "LOG_COST_ABOVE": {"rows": 100}}),
    ("W082", {"METER": False, "RULES": {"api": {"rate": "100/min", "unit": "rows"}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "cost": "five"}}}),
    ("E004", {"RULES": {"api": {"rate": "100/min", "methods": ["PSOT"]}}}),
    ("E020", {"RULES_POLL": 0}),
    ("E021", {"RULES_REREAD": "30"}),
    ("E091", {"HISTORY_DAYS": 0}),
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
    ("E072", {"SOCKET_ACCEPT_TIMEOUT": -1}),
    ("E073", {"SOCKET_IDLE_TIMEOUT": True}),
    ("E074", {"SOCKET_MAX_AGE": "a day"}),
    ("E080", {"DAMPER_INTERVAL": 0.4}),
    ("E081", {"PROCESSES": -1}),
    ("E030", {"REDIS": "http://127.0.0.1/0"}),
    ("E030", {"REDIS": "redis+sentinel://127.0.0.1:26379"}),
    ("E030", {"REDIS": "redis+cluster://127.0.0.1:7000/1"}),
    ("E030", {"REDIS": "redis+cluster://127.0.0.1:seven"}),
    ("E031", {"REDIS": "nowhere"}),
    ("E032", {"REDIS": "default"}),
    ("E040", {"TRUSTED_PROXIES": "10.0.0.0/8"}),
    ("E040", {"TRUSTED_PROXIES": ["10.0.0.0/33"]}),
    ("E040", {"TRUSTED_PROXIES": ["10.0.0.7/8"]}),
    ("E040", {"TRUSTED_PROXIES": ["*"]}),
    ("E040", {"TRUSTED_PROXIES": ["0.0.0.0/0"]}),
    ("E040", {"TRUSTED_PROXIES": -1}),
    ("E040", {"TRUSTED_PROXIES": True}),
    ("E041", {"TRUSTED_PROXIES": 1, "PROXY_HEADER": "HTTP_X_FORWARDED_FOR"}),
    ("E041", {"TRUSTED_PROXIES": 1, "PROXY_HEADER": ""}),
    ("E041", {"TRUSTED_PROXIES": 1, "PROXY_HEADER": None}),
    ("E042", {"NO_ADDRESS": "guess"}),
    ("E043", {"TENANT": 5}),
    ("E043", {"TENANT": "user..tenant"}),
    ("E043", {"TENANT": "tests.limits.tenant"}),
    ("E043", {"TENANT": "tests.checks.test_settings.tenant"}),
    ("E043", {"TENANT": "tests.checks.test_settings.WRONG"}),
    ("W013", {"TENANT": "user.tenent_id"}),
    ("W013", {"TENANT": "usr.tenant_id"}),
    ("E044", {"USER_IDENT": 5}),
    ("E044", {"USER_IDENT": "account"}),
    ("E044", {"USER_IDENT": "shop.limits.account"}),
    ("E044", {"USER_IDENT": "tests.checks.test_settings.tenant"}),
    ("E045", {"RULES": {"api": {"rate": "100/min", "key": "tenant+user"}}}),
    ("E045", {"RULES": {"api": {"rate": "100/min", "audience": ["tenant:acme"]}}}),
    ("W010", {"PROXY_HEADER": "X-Real-IP"}),
    ("W010", {"PROXY_HEADER": "X-Real-IP", "TRUSTED_PROXIES": 0}),
    ("W011", {"PROXY_HEADER": "CF-Connecting-IP", "TRUSTED_PROXIES": 2}),
    ("E033", {"PROCESS_TTL": 6, "BEAT_INTERVAL": 5}),
    ("E034", {"CONNECTION_TTL": 300, "EXTEND_INTERVAL": 180}),
    ("E078", {"METER": "auto"}),
    ("E093", {"RECORD": "auto"}),
    ("E094", {"RECORD_IDENTS": 1}),
    ("E079", {"LOG_COST_ABOVE": 50}),
    ("E079", {"LOG_COST_ABOVE": {"querys": 50}}),
    ("E079", {"LOG_COST_ABOVE": {"queries": True}}),
    ("E079", {"LOG_COST_ABOVE": {"db_ms": -1}}),
    ("E075", {"HOOKS": "shop.limits.count"}),
    ("E075", {"HOOKS": None}),
    ("E075", {"HOOKS": [print]}),
    ("E076", {"HOOKS": ["shop.limits.count"]}),
    ("E076", {"HOOKS": [""]}),
    ("E076", {"HOOKS": ["os.sep"]}),
    ("E076", {"HOOKS": ["tests.checks.test_settings.Unmakable"]}),
    ("E077", {"HOOKS": ["tests.checks.test_settings.tenant"]}),
    ("E077", {"HOOKS": ["tests.checks.test_settings.Tenant"]}),
]


@pytest.mark.parametrize(("number", "given"), WRONG, ids=[f"{number} {given}" for number, given in WRONG])
def test_wrong(number: str, given: Any) -> None:
    assert numbers(given, CACHES=LOCMEM) == [number]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"RULES": {"api": {"rate": "100/min", "key": "os.path.basename", "cost": "os.path.getsize"}}},
        {"SHADOW": True},
        {"METER": True, "LOG_COST_ABOVE": {"queries": 50, "db_ms": 0.5}},
        {"REDIS": "redis://127.0.0.1:6379/0"},
        {"REDIS": "rediss://:secret@redis.example:6379/0"},
        {"STORE": "memory", "REDIS": "nowhere"},
        {"HOOKS": ["django_throttle.observe.prometheus.count", "builtins.print"]},
        {"HOOKS": ("tests.observe.test_reports.Note",)},
        {"BEAT_INTERVAL": 1, "PROCESS_TTL": 2, "MAX_VIOLATIONS": 0},
        {"TRUSTED_PROXIES": ["10.0.0.7", "2001:db8::/32", "unix"], "NO_ADDRESS": "refuse"},
        {"TRUSTED_PROXIES": 2, "PROXY_HEADER": "Forwarded"},
        {"TRUSTED_PROXIES": 1, "PROXY_HEADER": "X-Real-IP"},
        {"TENANT": "customer.pk"},  # by middleware of the site
        {"TENANT": "user.email", "RULES": {"api": {"rate": "100/min", "key": "tenant+user"}}},
        {"TENANT": "tests.checks.test_settings.found", "USER_IDENT": "tests.checks.test_settings.found"},
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"REDIS": "localhost:6379"}, "for the server write redis://localhost:6379"),
        (
            {"RULES": {"api": {"rate": "1/s", "plans": {"no.such.plan:x": "2/s"}}}},
            "the function of plans 'no.such.plan'",
        ),
    ],
)
def test_a_message_says_what_to_write(given: Any, said: str) -> None:
    assert any(said in message.msg for message in found(given, CACHES=LOCMEM))


@pytest.mark.django_db
def test_no_check_falls_over_what_another_says(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "DAPHNE", "django_throttle")  # as if it were installed
    settings.CACHES = LOCMEM
    ours = [check for check in registry.get_checks(True) if check.__module__.startswith("django_throttle.")]
    for given in (given for _, given in WRONG):
        settings.DJANGO_THROTTLE = given
        assert [message for check in ours for message in check(app_configs=None, databases=["default"])]


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
    played = {name for _, given in WRONG if isinstance(given, dict) for name in given}
    assert {setting.name for setting in fields(Conf)} <= played
    ids = [number for number, *_ in (*checked_settings.VALUES.values(), *checked_settings.INTERVALS)]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {number for number, _ in WRONG}


def test_the_defaults_are_right() -> None:
    assert numbers({}) == []


class TestDoors:
    OURS = "django_throttle.middleware.ThrottleMiddleware"
    LOGIN = "django.contrib.auth.middleware.AuthenticationMiddleware"

    @pytest.mark.parametrize(
        ("listed", "wanted"),
        [
            ([], []),
            ([LOGIN, OURS], []),
            ([OURS], []),
            ([OURS, LOGIN], ["W040"]),
            ([LOGIN, OURS, OURS], ["W041"]),
            (["django_throttle.channels.ThrottleMiddleware"], ["E070"]),
        ],
    )
    def test_where_the_middleware_stands(self, listed: list[str], wanted: list[str], settings: Any) -> None:
        settings.MIDDLEWARE = listed
        found = [str(message.id).removeprefix("django_throttle.") for message in project.check_middleware(None)]
        assert found == wanted

    @pytest.mark.parametrize(
        ("throttle", "rates", "wanted"),
        [
            (
                "django_throttle.drf.UserRateThrottle",
                {"a": "ten/day", "b": "5/hrs", "c": None, "d": "1/year"},
                ["a", "d"],
            ),
            ("django_throttle.drf.RuleThrottle", {"a": "ten/day"}, []),
            ("rest_framework.throttling.UserRateThrottle", {"a": "ten/day"}, []),
        ],
    )
    def test_rates_of_rest_framework(
        self, throttle: str, rates: dict[str, str | None], wanted: list[str], settings: Any
    ) -> None:
        settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": [throttle], "DEFAULT_THROTTLE_RATES": rates}
        found = project.check_rates(None)
        assert {message.id for message in found} <= {"django_throttle.E071"}
        assert [str(message.msg).split("'")[1] for message in found] == wanted

    @pytest.mark.parametrize(("throttle", "wanted"), [(UserRateThrottle, ["a"]), (throttling.UserRateThrottle, [])])
    def test_rates_of_a_throttle_that_one_view_names(self, throttle: type, wanted: list[str], settings: Any) -> None:
        settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"a": "10/month"}}
        settings.ROOT_URLCONF = (path("api/", include([path("a", APIView.as_view(throttle_classes=[throttle]))])),)
        assert [str(message.msg).split("'")[1] for message in project.check_rates(None)] == wanted


def deployed(number: str, given: Any, debug: bool = False) -> list[CheckMessage]:
    """The warnings of this number before a deployment."""
    with override_settings(DJANGO_THROTTLE=given, DEBUG=debug):
        found: list[CheckMessage] = checked_settings.check_deployment(None)
    return [message for message in found if message.id == f"django_throttle.{number}"]


BY_ADDRESS = {"RULES": {"api": {"rate": "5/min"}, "all": {"rate": "5/min", "key": "everyone"}}}
CAPPED = {"RULES": {"sockets": {"limit": 2, "algorithm": "concurrency"}}}
LOCAL = {"STORE": "redis", "RULES": {"api": {"rate": "5/min"}, "b": {"rate": "5/min", "on_store_failure": "deny"}}}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("number", "given", "said"),
    [
        ("W001", {}, ""),
        ("W001", {"STORE": "memory", "REDIS": "default"}, ""),
        ("W081", LOCAL, "the whole limit of api"),
        ("W012", BY_ADDRESS, "rules count by address (api)"),
        ("W030", {"SHADOW": True}, ""),
        ("W087", CAPPED, "holds its slot until its process ends (sockets)"),
    ],
)
def test_a_deployment_is_warned(number: str, given: Any, said: str, debug: bool) -> None:
    (message,) = deployed(number, given, debug)
    assert said in message.msg


@pytest.mark.parametrize(
    ("number", "given"),
    [
        *(("W001", given) for given in ({"REDIS": "default"}, "nonsense")),
        *(("W081", {**LOCAL, **given}) for given in ({"PROCESSES": 4}, {"STORE": "memory"}, {"RULES": {}})),
        *(("W012", {**BY_ADDRESS, "TRUSTED_PROXIES": proxies}) for proxies in ((), 0, 1, ["10.0.0.0/8"])),
        ("W012", {"RULES": {"all": {"rate": "5/min", "key": "everyone"}, "bad": {}}}),
        *(("W012", given) for given in ({"RULES": "nonsense"}, "nonsense")),
        *(("W030", given) for given in ({}, {"SHADOW": False}, ["SHADOW"])),
        *(("W087", given) for given in ({**CAPPED, "SOCKET_IDLE_TIMEOUT": 60.0}, LOCAL, "nonsense")),
    ],
)
def test_a_deployment_is_not_warned_without_need(number: str, given: Any) -> None:
    assert deployed(number, given) == []


class TestRows:
    def test_without_leave_the_database_is_not_touched(self) -> None:
        assert checked_settings.check_rows(None) == []
        assert checked_settings.check_rows(None, databases=[]) == []

    @pytest.mark.django_db
    def test_a_row_that_is_not_in_force_is_a_warning(self) -> None:
        ThrottleRule.objects.create(name="fine", rate="5/s")
        ThrottleRule.objects.create(name="sad", rate="5/s", key="gone.away")
        (message,) = checked_settings.check_rows(None, databases=["default"])
        assert message.id == "django_throttle.W002"
        assert message.msg.startswith("rule 'sad' in the database: the key 'gone.away'")

    @pytest.mark.django_db
    def test_a_group_that_is_not_there_is_a_warning(self, settings: Any) -> None:
        Group.objects.create(name="editors")
        rule = {"rate": "5/s", "audience": ["group:editors"], "plans": {"group:premum": "9/s"}}
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": {"api": rule}}
        ThrottleRule.objects.create(name="more", rate="5/s", audience=["group:editor"])
        found = checked_settings.check_rows(None, databases=["default"])
        assert [one.id for one in found] == ["django_throttle.W066"] * 2
        assert found[0].msg == "rule 'api': There is no group 'premum' yet, so nobody is in it."
        assert found[1].msg.endswith("Did you mean 'editors'?")

    @pytest.mark.row("F57")
    @pytest.mark.django_db(transaction=True)
    def test_a_table_that_is_not_there_yet_is_no_matter(self) -> None:
        with connection.schema_editor() as editor:
            editor.delete_model(ThrottleRule)
        try:
            assert checked_settings.check_rows(None, databases=["default"]) == []
        finally:
            with connection.schema_editor() as editor:
                editor.create_model(ThrottleRule)


@pytest.fixture
def production(settings: Any) -> Any:
    settings.DEBUG = False
    yield
    pin(None)


def server_numbers(url: str) -> list[str]:
    pin(RedisStore(url, deadline=5.0))
    found: list[CheckMessage] = checked_settings.check_server(None)
    return [str(one.id) for one in found]


@pytest.mark.usefixtures("production", "servers")
@pytest.mark.row("F17")
def test_w038_what_is_evicted_first() -> None:
    with RedisServer("--maxmemory", "100mb") as server, server.client() as client:
        for policy in ("noeviction", "allkeys-lfu", "allkeys-random", "volatile-ttl"):
            client.config_set("maxmemory-policy", policy)
            warned = policy in ("allkeys-random", "volatile-ttl")
            assert server_numbers(server.url) == ["django_throttle.W038"] * warned, policy
        client.config_set("maxmemory", "0")
        assert server_numbers(server.url) == []


@pytest.mark.usefixtures("production", "servers")
def test_w037_min_replicas_to_write() -> None:
    with Sentinels() as servers:
        assert server_numbers(servers.url) == ["django_throttle.W037"]
        with servers.master().client() as client:
            client.config_set("min-replicas-to-write", 1)
        assert server_numbers(servers.url) == []


@pytest.mark.usefixtures("production", "servers")
@pytest.mark.parametrize(
    ("place", "said"), [("127.0.0.1:{}/99", "DB index is out of range"), ("u:wrong@127.0.0.1:{}/0", "invalid username")]
)
def test_w039_what_the_server_refuses(place: str, said: str) -> None:
    with RedisServer() as server:
        pin(RedisStore(f"redis://{place.format(server.port)}", deadline=5.0))
        (found,) = checked_settings.check_server(None)
        assert found.id == "django_throttle.W039" and said in found.msg
        with server.client() as client:
            client.execute_command("ACL SETUSER curious on >secret +@all -info ~*")
        assert server_numbers(f"redis://curious:secret@127.0.0.1:{server.port}/0") == []


@pytest.mark.usefixtures("redis_server")
@pytest.mark.usefixtures("production")
def test_w086_connecting_takes_longer_than_a_decision_may(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port, "delay", 0.15) as proxy:
        pin(RedisStore(f"{proxy.url}?client_name=far", deadline=0.25))
        (found,) = checked_settings.check_server(None)
    assert found.id == "django_throttle.W086"
    assert "longer than DEADLINE (250 ms)" in found.msg


@pytest.mark.usefixtures("production")
def test_nothing_is_said_of_a_server_that_does_not_answer(settings: Any) -> None:
    assert server_numbers(f"redis://127.0.0.1:{free_port()}/0") == []
    settings.DEBUG = True
    assert checked_settings.check_server(None) == []


def test_the_demo_site_passes_them_all(servers: None) -> None:
    """In a process of its own, as this one has imported the views of other tests."""
    command = [sys.executable, "-m", "testproject.manage", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.row("F57")
@pytest.mark.django_db
def test_the_models_have_their_migrations() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_a_server_that_runs_no_checks_logs_which_setting_is_wrong(settings: Any, caplog: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": None, "AGENT": False}
    settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
    got_request_exception.connect(checked_settings.log_errors, dispatch_uid="django_throttle.checks")
    client = Client(raise_request_exception=False)
    assert [client.get("/").status_code for _ in range(2)] == [500, 500]
    said = [record.getMessage() for record in caplog.records if record.name == "django_throttle"]
    assert said == [
        "DJANGO_THROTTLE is wrong: REDIS must be a CACHES alias or a redis:// URL, not None (django_throttle.E011)"
    ]
