"""Every way in which settings and rules can be wrong has its number."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
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
from redis import Redis
from rest_framework.views import APIView

from django_throttle.checks import project
from django_throttle.checks import settings as checked_settings
from django_throttle.conf import Conf
from django_throttle.drf import UserRateThrottle
from django_throttle.middleware import ThrottleMiddleware
from django_throttle.models import ThrottleRule
from django_throttle.stores import RedisStore, pin
from tests.fleet import RedisCluster, Sentinels
from tests.proxy import Proxy
from tests.servers import RedisServer, free_port

LOCMEM = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
REDIS = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
HERE = "tests.checks.test_settings."


def found(given: Any, **settings: Any) -> list[CheckMessage]:
    with override_settings(DJANGO_THROTTLE=given, **settings):
        return checked_settings.check_settings(None)


def numbers(given: Any, **settings: Any) -> list[str]:
    return [str(message.id).removeprefix("django_throttle.") for message in found(given, **settings)]


def rule(**options: Any) -> dict[str, Any]:
    return {"RULES": {"api": {"rate": "100/min", **options}}}


def measured(*paths: str) -> Iterator[dict[str, Any]]:
    """Rules whose measure, or what they reserve, is one of these functions."""
    return (rule(unit="units", **{option: path}) for option in ("reserve", "measure") for path in paths)


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


class Hook:
    def __call__(self, event: object) -> None: ...


class Unmakable:
    def __init__(self, what: object) -> None:
        """No hook is given anything."""


TENANT, CALLED, OF_BOTH = (f"{HERE}{name}" for name in ("tenant", "called", "of_both"))
NAN, INFINITE = float("nan"), float("inf")
#: By the number of each check: settings that it refuses.
WRONG: dict[str, list[Any]] = {
    "E001": [
        *(["RULES"], None, {"RULES": ["api"]}, {"STORE": "disk"}, {"DATABASE_RULES": "yes"}, {"RECORD_IDENTS": 1}),
        *({"STORE": "memory", "REDIS": url} for url in (None, "")),
        *({"PREFIX": prefix} for prefix in (5, "", "a{b")),
        *({"KEY_SECRET": b"bytes"}, {"SHADOW": "no"}, {"TESTS": False}),
        *({"DEADLINE": deadline} for deadline in (-0.1, True, NAN, "0.1")),
        *({"PROCESS_TTL": 10**6}, {"PROCESS_TTL": INFINITE}, {"IPV6_PREFIX": 129}, {"IPV6_PREFIX": 2.5}),
        *({"PROCESSES": -1}, {"SOCKET_IDLE_TIMEOUT": True}, {"NO_ADDRESS": "guess"}),
        *(
            {"TRUSTED_PROXIES": proxies}
            for proxies in ("10.0.0.0/8", ["10.0.0.0/33"], ["10.0.0.7/8"], ["*"], ["0.0.0.0/0"], -1, True)
        ),
        *({"TRUSTED_PROXIES": 1, "PROXY_HEADER": header} for header in ("HTTP_X_FORWARDED_FOR", "", None)),
        *({"TENANT": path} for path in (5, "user..tenant")),
        *({"RETRY_JITTER": jitter} for jitter in (-0.1, 1.1, NAN, True, "10 %")),
        *({"RATELIMIT_HEADERS": version} for version in ("draft-5", False)),
        {"X_RATELIMIT_HEADERS": True},
        *({"TELL_KEYS": keys} for keys in (TENANT, ["tenant"], ["shop.limits.tenant"], [5], None)),
        *({"HOOKS": hooks} for hooks in ("shop.limits.count", None, [print])),
        *({"LOG_COST_ABOVE": above} for above in (50, {"querys": 50}, {"queries": True}, {"db_ms": -1})),
    ],
    "E002": [{"RULLES": {}}, {"rules": {}}, {"MAX_VIOLATIONS": 5}],
    "E004": [
        *({"RULES": {"api": options}} for options in ({"rate": "100"}, {"rat": "100/min"}, "100/min")),
        *({"RULES": {name: {"rate": "100/min"}}} for name in ("", 5)),
        *(rule(key=key) for key in (".", "a..b")),
        *(rule(scopes=["a,b"]), rule(cost="five"), rule(methods=["PSOT"])),
    ],
    "E005": [
        *(rule(key=key) for key in ("shop.limits.tenant", "os.sep", "ip+shop.limits.tenant", OF_BOTH)),
        *(rule(key=key) for key in (f"ip+{TENANT}", TENANT, f"{HERE}tenants", f"{HERE}partly", CALLED)),
        *({"TENANT": path} for path in (OF_BOTH, "tests.limits.tenant", TENANT, f"{HERE}WRONG")),
        *(rule(cost=path) for path in ("shop.limits.price", "os.sep", OF_BOTH, TENANT, CALLED)),
        *measured("shop.limits.price", "os.sep", TENANT, CALLED),
        *(rule(unit="units", reserve=OF_BOTH), rule(unit="units", measure=f"{HERE}of_request")),
        *({"HOOKS": [path]} for path in ("shop.limits.count", "", "os.sep", f"{HERE}Unmakable")),
        *({"HOOKS": [path]} for path in (TENANT, f"{HERE}Tenant")),
    ],
    "E012": [rule(key="tenant+user"), rule(audience=["tenant:acme"])],
    "E039": [
        *({"REDIS": url} for url in ("http://127.0.0.1/0", "redis+sentinel://127.0.0.1:26379")),
        *({"REDIS": url} for url in ("redis+cluster://127.0.0.1:7000/1", "redis+cluster://127.0.0.1:seven")),
        *({"REDIS": "nowhere"}, {"REDIS": "default"}),
    ],
    "W010": [
        *({"PROXY_HEADER": "X-Real-IP"}, {"PROXY_HEADER": "X-Real-IP", "TRUSTED_PROXIES": 0}),
        {"PROXY_HEADER": "CF-Connecting-IP", "TRUSTED_PROXIES": 2},
    ],
    "W095": [{"TENANT": "user.tenent_id"}, {"TENANT": "usr.tenant_id"}, {"TENANT": "request.user.pk"}],
}


@pytest.mark.parametrize("number", WRONG)
def test_wrong(number: str) -> None:
    for given in WRONG[number]:
        assert numbers(given, CACHES=LOCMEM) == [number], given


def test_right() -> None:
    for given in (
        {},
        rule(key="os.path.basename", cost="os.path.getsize"),
        {"LOG_COST_ABOVE": {"queries": 50, "db_ms": 0.5}},
        {"REDIS": "redis://127.0.0.1:6379/0"},
        {"REDIS": "rediss://:secret@redis.example:6379/0"},
        {"STORE": "memory", "REDIS": "nowhere"},
        {"HOOKS": ["django_throttle.contrib.prometheus.count", "builtins.print"]},
        {"HOOKS": (f"{HERE}Hook",)},
        {"PROCESS_TTL": 2},
        {"TRUSTED_PROXIES": ["10.0.0.7", "2001:db8::/32", "unix"], "NO_ADDRESS": "refuse"},
        {"TRUSTED_PROXIES": 2, "PROXY_HEADER": "Forwarded"},
        {"TENANT": "customer.pk"},  # by middleware of the site
        {"TENANT": "user.email", **rule(key="tenant+user")},
        {"TENANT": f"{HERE}found"},
    ):
        assert numbers(given, CACHES=LOCMEM) == [], given
    assert numbers({"REDIS": "default"}, CACHES=REDIS) == []


def test_settings_that_are_named_nearly_as_ours() -> None:
    for name in ("DJANGO_THROTTLES", "DJANGO_TROTTLE", "DJANGO_THROTTLE_RULES"):
        assert numbers({}, **{name: {}}) == ["W002"]


SAID: list[tuple[Any, ...]] = [
    ({"REDIS": "localhost:6379"}, "for the server write redis://localhost:6379"),
    (rule(plans={"no.such.plan:x": "2/min"}), "the function of plans 'no.such.plan'"),
    ({"DEADLIN": 1}, "did you mean 'DEADLINE'?"),
    ({"RULES": {"one": {"rate": "x"}, "two": {"burts": 3}, "fine": {"rate": "5/s"}}}, "rule 'one'", "mean 'burst'?"),
    (rule(key="broken_limits.tenant"), "cannot be imported (division by zero)"),
]


def test_each_message_says_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_limits.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for given, *said in SAID:
        messages = found(given, CACHES=LOCMEM)
        assert [text in message.msg for text, message in zip(said, messages, strict=True)] == [True] * len(said)


@pytest.mark.django_db
def test_no_check_falls_over_what_another_says(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "DAPHNE", "django_throttle")  # as if it were installed
    settings.CACHES = LOCMEM
    ours = [check for check in registry.get_checks(True) if check.__module__.startswith("django_throttle.")]
    for given in (given for faults in WRONG.values() for given in faults):
        settings.DJANGO_THROTTLE = given
        assert [message for check in ours for message in check(app_configs=None, databases=["default"])]


def test_every_setting_has_its_check_and_every_check_its_test() -> None:
    played = {name for faults in WRONG.values() for given in faults if isinstance(given, dict) for name in given}
    names = {setting.name for setting in fields(Conf)}
    assert names <= played
    assert names == {*checked_settings.VALUES, "TRUSTED_PROXIES"}


OURS = "django_throttle.middleware.ThrottleMiddleware"
LOGIN = "django.contrib.auth.middleware.AuthenticationMiddleware"
OWN = f"{__name__}.OwnMiddleware"
OwnMiddleware = type("OwnMiddleware", (ThrottleMiddleware,), {})


def test_where_the_middleware_stands(settings: Any) -> None:
    for listed, wanted in (
        *(([], []), ([LOGIN, OURS], []), ([OURS], []), ([OURS, LOGIN], ["W040"]), ([LOGIN, OURS, OWN], ["W040"])),
        (["django_throttle.channels.ThrottleMiddleware"], ["E040"]),
    ):
        settings.MIDDLEWARE = listed
        ids = [message.id for message in project.check_middleware(None)]
        assert ids == [f"django_throttle.{number}" for number in wanted]


@pytest.mark.parametrize(
    ("key", "listed", "told"),
    [
        ("user", [OURS], True), ("user+ip", [OURS], True), ("session", [LOGIN, OURS], True),
        ("user", [LOGIN, OURS], False), ("user_or_ip", [OURS], False), ("user", [], False),
    ],
)  # fmt: skip
def test_rules_by_whom_nothing_finds(settings: Any, key: str, listed: list[str], told: bool) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = (), listed
    settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "5/min", "key": key}}}
    found = [message.msg for message in project.check_middleware(None) if message.id == "django_throttle.W040"]
    part = key.partition("+")[0]
    assert found == [f"rule 'api' counts by {part}, which nothing in MIDDLEWARE finds: it applies to nobody"] * told


def test_rates_of_rest_framework(settings: Any) -> None:
    rates = {"DEFAULT_THROTTLE_RATES": {"a": "ten/day", "b": "5/hrs", "c": None, "d": "1/year"}}
    ours, theirs = "django_throttle.drf.UserRateThrottle", "rest_framework.throttling.UserRateThrottle"
    view = path("a", APIView.as_view(throttle_classes=[UserRateThrottle]))
    for named, routes, wanted in (([ours], (), ["a", "d"]), ([theirs], (), []), ([], (view,), ["a", "d"])):
        settings.REST_FRAMEWORK = {**rates, "DEFAULT_THROTTLE_CLASSES": named}
        settings.ROOT_URLCONF = (path("api/", include(list(routes))),)
        errors = project.check_rates(None)
        assert {message.id for message in errors} <= {"django_throttle.E004"}
        assert [str(message.msg).split("'")[1] for message in errors] == wanted
    settings.REST_FRAMEWORK = {**rates, "DEFAULT_THROTTLE_CLASSES": ["django_throttle.drf.RuleThrottle"]}
    settings.ROOT_URLCONF = ()
    assert [message.id for message in project.check_rates(None)] == ["django_throttle.W089"]


BY_ADDRESS = {"RULES": {"api": {"rate": "5/min"}, "all": {"rate": "5/min", "key": "everyone"}}}
CAPPED = {"RULES": {"sockets": {"limit": 2, "algorithm": "concurrency"}}}
LOCAL = {"STORE": "redis", "RULES": {"api": {"rate": "5/min"}, "b": {"rate": "5/min", "on_store_failure": "deny"}}}
#: Warnings before a deployment: settings, and what is said of them; and settings without need of one.
DEPLOYED: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "W001": ({"": {}, "memory": {"STORE": "memory", "REDIS": "default"}}, [{"REDIS": "default"}, "nonsense"]),
    "W012 TRUSTED_PROXIES": (
        {"rules count by address (api)": BY_ADDRESS},
        [
            *({**BY_ADDRESS, "TRUSTED_PROXIES": proxies} for proxies in ((), 0, 1, ["10.0.0.0/8"])),
            *({"RULES": rules} for rules in ({"all": {"rate": "5/min", "key": "everyone"}, "bad": {}}, "nonsense")),
            "nonsense",
        ],
    ),
    "W030": ({"SHADOW": {"SHADOW": True}}, [{}, {"SHADOW": False}, ["SHADOW"]]),
    "W012 PROCESSES": (
        {"the whole limit of api": LOCAL},
        [{**LOCAL, **given} for given in ({"PROCESSES": 4}, {"STORE": "memory"}, {"RULES": {}})],
    ),
    "W012 vanishes": (
        {"holds its slot until its process ends (sockets)": CAPPED},
        [{**CAPPED, "SOCKET_IDLE_TIMEOUT": 60.0}, LOCAL, "nonsense"],
    ),
}


@pytest.mark.parametrize("name", DEPLOYED)
def test_a_deployment_is_warned_where_there_is_need(name: str) -> None:
    number, _, word = name.partition(" ")

    def said(given: Any, debug: bool = False) -> list[str]:
        with override_settings(DJANGO_THROTTLE=given, DEBUG=debug):
            messages = checked_settings.check_deployment(None)
        return [
            message.msg for message in messages if message.id == f"django_throttle.{number}" and word in message.msg
        ]

    warned, fine = DEPLOYED[name]
    for words, given in warned.items():
        (message,) = said(given)
        assert words in message and said(given, debug=True) == [message]
    for given in fine:
        assert said(given) == [], given


@pytest.mark.django_db
def test_a_row_that_is_not_in_force_and_a_group_that_is_not_there_are_warnings(settings: Any) -> None:
    Group.objects.create(name="editors")
    options = {"rate": "5/s", "audience": ["group:editors"], "plans": {"group:premum": "9/s"}}
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": {"api": options}}
    ThrottleRule.objects.create(name="fine", rate="5/s", options={"audience": ["group:editor"]})
    ThrottleRule.objects.create(name="sad", rate="5/s", key="gone.away")
    assert checked_settings.check_rows(None) == checked_settings.check_rows(None, databases=[]) == []
    messages = {message.msg: message.id for message in checked_settings.check_rows(None, databases=["default"])}
    sad, plan, audience = sorted(messages, key=lambda text: (messages[text], "editor" in text))
    assert [*messages.values()] == [f"django_throttle.{number}" for number in ("W004", "W088", "W088")]
    assert sad.startswith("rule 'sad' in the database: the key 'gone.away'")
    assert plan == "rule 'api': There is no group 'premum' yet, so nobody is in it."
    assert audience.endswith("Did you mean 'editors'?")


@pytest.mark.row("F57")
@pytest.mark.django_db(transaction=True)
def test_a_table_that_is_not_there_yet_is_no_matter() -> None:
    with connection.schema_editor() as editor:
        editor.delete_model(ThrottleRule)
    try:
        assert checked_settings.check_rows(None, databases=["default"]) == []
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(ThrottleRule)


Warned = Callable[..., list[CheckMessage]]


@pytest.fixture
def warned(settings: Any, redis_url: str) -> Iterator[Warned]:
    def warned(url: str, deadline: float = 5.0) -> list[CheckMessage]:
        pin(RedisStore(url, deadline=deadline))
        return checked_settings.check_server(None)

    settings.DEBUG = True  # as on a fresh project
    yield warned
    pin(None)


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    """A client of the Redis of the run, which afterwards is as it was."""
    with redis_server.client() as client:
        yield client
        client.replicaof("NO", "ONE")
        client.execute_command("ACL DELUSER curious plain")
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.row("F17")
def test_w037_what_is_evicted_first(warned: Warned, redis_url: str, client: Redis) -> None:
    client.config_set("maxmemory", "100mb")
    for policy in ("noeviction", "allkeys-lfu", "volatile-ttl"):
        client.config_set("maxmemory-policy", policy)
        wanted = ["django_throttle.W037"] * (policy == "volatile-ttl")
        assert [message.id for message in warned(redis_url)] == wanted, policy
    client.config_set("maxmemory", "0")
    assert warned(redis_url) == []


@pytest.mark.usefixtures("servers")
def test_w037_min_replicas_to_write(warned: Warned) -> None:
    with Sentinels() as servers:
        assert [message.id for message in warned(servers.url)] == ["django_throttle.W037"]
        with servers.master().client() as client:
            client.config_set("min-replicas-to-write", 1)
        assert warned(servers.url) == []


def test_w039_what_the_server_refuses(warned: Warned, redis_server: RedisServer, client: Redis, settings: Any) -> None:
    where = f"127.0.0.1:{redis_server.port}"
    client.execute_command("ACL SETUSER curious on >secret +@all -info ~*")
    assert warned(f"redis://curious:secret@{where}/0") == []
    client.execute_command("ACL SETUSER plain on >secret +@all -evalsha ~*")
    nobody = f"127.0.0.1:{free_port()}"
    client.replicaof("127.0.0.1", free_port())
    for url, said in (
        (f"redis://{where}/99", "DB index is out of range"),
        (f"{redis_server.url}?client_name=two+words", "Client names cannot contain spaces"),
        (f"redis://plain:secret@{where}/0", f"at {where}: it refuses calls: "),
        (redis_server.url, "it is a replica, which takes no writes, of 127.0.0.1:"),
        (f"redis://user:password@{nobody}/0", f"at {nobody}: it does not answer"),
    ):
        (message,) = warned(url)
        assert message.id == "django_throttle.W039" and said in message.msg and "password" not in message.msg
    pin(None)
    for settings.DJANGO_THROTTLE in ({"STORE": "memory"}, {"STORE": "none"}):
        assert checked_settings.check_server(None) == [], "nothing to ask, and a mistake that another check names"


@pytest.mark.usefixtures("servers")
def test_w086_how_long_connecting_takes_and_w039_a_node_of_a_cluster(warned: Warned, redis_server: RedisServer) -> None:
    with Proxy(redis_server.port, "delay", 0.15) as proxy:
        (message,) = warned(f"{proxy.url}?client_name=far", deadline=0.7)
    assert message.id == "django_throttle.W086" and "longer than DEADLINE (700 ms)" in message.msg
    with RedisCluster(replicas=0) as cluster:
        assert warned(cluster.url) == []
        for node in cluster.nodes[:2]:
            (message,) = warned(node.url)
            assert message.id == "django_throttle.W039" and "name it by a redis+cluster:// URL" in message.msg


@pytest.mark.row("F57")
@pytest.mark.usefixtures("servers")
def test_the_command_works_on_an_empty_database_and_nothing_is_asked_of_it_before(database: str) -> None:
    """Its system checks included; Django warns of whoever asks the database while applications are loaded."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings", "DATABASE": database}
    line = [sys.executable, "-W", "error::RuntimeWarning", "-m", "django", "migrate"]
    done = subprocess.run(line, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.row("F57")
@pytest.mark.django_db
def test_the_models_have_their_migrations() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_a_server_that_runs_no_checks_logs_which_setting_is_wrong(settings: Any, caplog: Any) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": None}
    settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
    got_request_exception.connect(checked_settings.log_errors, dispatch_uid="django_throttle.checks")
    client = Client(raise_request_exception=False)
    assert [client.get("/").status_code for _ in range(2)] == [500, 500]
    said = [record.getMessage() for record in caplog.records if record.name == "django_throttle"]
    assert said == [
        "DJANGO_THROTTLE is wrong: REDIS must be a CACHES alias or a redis:// URL, not None (django_throttle.E001)"
    ]
