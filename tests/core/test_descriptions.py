"""Rules in words: the whole sentence, and the words of each option."""

from typing import Any

import pytest

from django_throttle.core import Rate, Rule, descriptions
from django_throttle.core.descriptions import describe
from django_throttle.core.options import table

LEAKY: dict[str, Any] = {"algorithm": "leaky_bucket", "rate": "30/min"}
SLOTS: dict[str, Any] = {"limit": 3, "algorithm": "concurrency"}
MONTHLY: dict[str, Any] = {"algorithm": "fixed_window", "timezone": "Europe/Berlin"}

SENTENCES: list[tuple[dict[str, Any], str]] = [
    ({"rate": "1/s", "key": "ip"}, "each address: 1 request per second"),
    ({"rate": "1000/day", "key": "everyone"}, "everyone together: 1,000 requests per day"),
    ({"rate": "1/1500ms"}, "each user or address: 1 request per 1,500 milliseconds"),
    ({"rate": "9/min", "key": "shop.limits.tenant"}, "each value of shop.limits.tenant: 9 requests per minute"),
    (
        {"rate": "100/min", "burst": 20, "algorithm": "token_bucket", "key": "user", "events": ["request", "message"]},
        "each user: 100 requests per minute, bursts up to 20, HTTP and WebSocket together",
    ),
    (
        {"rates": ["10/s", "1000/day"], "algorithm": "gcra"},
        "each user or address: 10 requests per second and 1,000 per day, bursts up to 10 and 1,000",
    ),
    (
        {"rate": "1000/month", **MONTHLY, "key": "session"},
        "each session: 1,000 requests per month, counted afresh every month in Europe/Berlin",
    ),
    (
        {"rate": "1000/s", "algorithm": "damper", "events": ["publish"], "key": "everyone"},
        (
            "everyone together: 1,000 publications per second, held to that by refusing a share of what is attempted, "
            "judged by the last seconds"
        ),
    ),
    (
        {**LEAKY, "burst": 30, "action": "delay", "max_delay": 2.5, "key": "ip"},
        "each address: 30 requests per minute, evenly spaced, up to 30 waiting their turn for at most 2.5 seconds",
    ),
    (
        {
            "rates": ["10/s", "100/day"],
            "algorithm": "gcra",
            "plans": {"shop.limits.plan:pro": {"rates": ["20/s", "300/day"], "burst": 30}},
        },
        (
            "each user or address: 10 requests per second and 100 per day, bursts up to 10 and 100, "
            "shop.limits.plan pro 20 per second and 300 per day with bursts up to 30"
        ),
    ),
]
# Of rules of nine units a minute: what follows their beginning.
ENDS: list[tuple[dict[str, Any], str]] = [
    (
        {"events": ["message", "task", "request"]},
        "calls per minute, HTTP requests, WebSocket messages and tasks together",
    ),
    ({"events": ["connect"]}, "connection attempts per minute"),
    (
        {"cost": 3, "count_denied": True, "action": "shadow", "enabled": False},
        "requests per minute, each counting 3, refused ones count too, recorded but never refused, switched off",
    ),
    ({"events": ["send"]}, "messages sent per minute"),
    ({"unit": "rows"}, "rows read by HTTP requests per minute"),
    ({"algorithm": "fixed_window"}, "requests per minute, counted afresh every minute"),
    ({"resolution": 6, "strict": True}, "requests per minute, moving on in 6 steps, never more in any minute"),
    ({"algorithm": "sliding_log"}, "requests per minute, counted exactly in any minute"),
    ({"algorithm": "gcra"}, "requests per minute, bursts up to 9"),
    ({"algorithm": "gcra", "burst": 1}, "requests per minute, evenly spaced"),
    ({"algorithm": "gcra", "prepaid": True}, "requests per minute, bursts up to 9, bought ahead by each process"),
    (
        {"algorithm": "token_bucket", "refill": "interval", "burst": 90},
        "requests per minute, bursts up to 90, refilled all at once every minute",
    ),
    ({"scopes": ["a", "b", "c"]}, "requests per minute, on a, b and c together"),
    ({"plans": {"group:premium": "1000/min", "staff": "50/min"}}, "requests per minute, group premium 1,000, staff 50"),
    (
        {"audience": ["anonymous"], "on_store_failure": "deny"},
        "requests per minute, only for visitors who are not logged in, refused while the store is away",
    ),
    ({**SLOTS, "rate": None}, "open WebSockets at once"),
    ({**SLOTS, "rate": None, "events": ["inflight"], "methods": ["POST"]}, "requests in flight at once, only POST"),
    (
        {**SLOTS, "rate": None, "events": ["connection", "inflight"]},
        "calls at once, HTTP requests in flight and open WebSockets together",
    ),
    ({**SLOTS, "rate": None, "at_limit": "evict_oldest"}, "open WebSockets at once, a new WebSocket closes the oldest"),
    (
        {**SLOTS, "rate": None, "at_limit": "evict_idle", "scopes": ["chat"]},
        "open WebSockets at once, on chat, a new WebSocket closes the one silent for longest",
    ),
    ({**SLOTS, "rate": None, "plans": {"tenant:Größe 1": 50}}, "open WebSockets at once, tenant 'Größe 1' 50"),
]


@pytest.mark.parametrize(("options", "sentence"), SENTENCES, ids=[sentence for _, sentence in SENTENCES])
def test_sentence(options: dict[str, Any], sentence: str) -> None:
    assert describe(Rule.from_options("rule", options)) == sentence


@pytest.mark.parametrize(("options", "end"), ENDS, ids=[end for _, end in ENDS])
def test_end_of_a_sentence(options: dict[str, Any], end: str) -> None:
    rule = Rule("rule", **{"rate": "9/min", **options})
    assert describe(rule) == f"each user or address: {rule.limit} {end}"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("scopes", ("*",), ""),
        ("scopes", ("api",), "on api"),
        ("scopes", ("api-?",), "on api-? together"),
        ("methods", ("GET", "POST"), "only GET, POST and HEAD"),
        (
            "audience",
            ("authenticated", "group:a:b", "tenant:acme"),
            "only for logged-in users, the group a:b and the tenant acme",
        ),
        ("enforce_at", 2.5, "tolerated up to 2.5 times as much"),
        ("warn_at", (0.8, 1, 1.5), "warned of at 80 %, 100 % and 150 %"),
        ("reserve", 2000, "2,000 reserved beforehand"),
        ("reserve", "mean", "the usual reserved beforehand"),
        ("reserve", "shop.limits.rows", "as much reserved beforehand as shop.limits.rows says"),
        ("cost", "shop.limits.cost", "each counting as much as shop.limits.cost says"),
        ("count_on", (401, 403), "counting only answers of status 401 and 403"),
        ("refund_on", ("304", "cancelled"), "not counting what ends as 304 and cancelled"),
        ("on_store_failure", "local", ""),
    ],
)
def test_an_option_in_words(name: str, value: object, words: str) -> None:
    assert table(Rule)[name].describe(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(60, "minute"), (90, "90 seconds"), (7 * 86_400, "week"), (172_800, "2 days"), (0.001, "millisecond")],
)
def test_window(seconds: float, words: str) -> None:
    assert descriptions.window_in_words(Rate(1, seconds)) == words
