"""What a rule means, in words."""

from __future__ import annotations

import itertools

import pytest

from django_throttle.core import Rate, Rule, descriptions
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.descriptions import describe
from django_throttle.core.key import AUDIENCE_WORDS, AUDIENCES, KEY_KINDS
from django_throttle.core.option_words import COUNTED, NOUNS
from django_throttle.core.options import BUCKETS, EVENTS, HELD
from tests.strategies import ACTIONS, FAILURE_POLICIES, KEYS

SENTENCES = [
    ({"rate": "100/min"}, "each user or address: 100 requests per minute"),
    ({"rate": "1/s", "key": "ip"}, "each address: 1 request per second"),
    ({"rate": "5/10m", "key": "session"}, "each session: 5 requests per 10 minutes"),
    ({"rate": "1000/day", "key": "everyone"}, "everyone together: 1,000 requests per day"),
    ({"rate": "1/1500ms"}, "each user or address: 1 request per 1,500 milliseconds"),
    (
        {"rate": "100/min", "burst": 20, "algorithm": "token_bucket", "key": "user", "events": ["request", "message"]},
        "each user: 100 requests per minute, bursts up to 20, HTTP and WebSocket together",
    ),
    (
        {"limit": 5, "algorithm": "concurrency", "events": ["connection"]},
        "each user or address: 5 open WebSockets at once",
    ),
    ({"limit": 1, "algorithm": "concurrency"}, "each user or address: 1 open WebSocket at once"),
    (
        {"limit": 2, "algorithm": "concurrency", "events": ["inflight"], "methods": ["POST"]},
        "each user or address: 2 requests in flight at once, only POST",
    ),
    (
        {"limit": 5, "algorithm": "concurrency", "events": ["connection", "inflight"]},
        "each user or address: 5 calls at once, HTTP requests in flight and open WebSockets together",
    ),
    (
        {"limit": 3, "algorithm": "concurrency", "at_limit": "evict_oldest"},
        "each user or address: 3 open WebSockets at once, a new WebSocket closes the oldest",
    ),
    (
        {"limit": 3, "algorithm": "concurrency", "at_limit": "evict_idle", "scopes": ["chat"]},
        "each user or address: 3 open WebSockets at once, on chat, a new WebSocket closes the one silent for longest",
    ),
    (
        {"rate": "10/s", "events": ["message", "task", "request"]},
        "each user or address: 10 calls per second, HTTP requests, WebSocket messages and tasks together",
    ),
    ({"rate": "60/min", "events": ["connect"]}, "each user or address: 60 connection attempts per minute"),
    ({"rate": "60/min", "events": ["send"]}, "each user or address: 60 messages sent per minute"),
    (
        {"rate": "2/min", "algorithm": "fixed_window"},
        "each user or address: 2 requests per minute, counted afresh every minute",
    ),
    (
        {"rate": "2/h", "resolution": 6, "strict": True},
        "each user or address: 2 requests per hour, moving on in 6 steps, never more in any hour",
    ),
    ({"rate": "60/min", "algorithm": "gcra"}, "each user or address: 60 requests per minute, bursts up to 60"),
    (
        {"rate": "60/min", "algorithm": "gcra", "burst": 1},
        "each user or address: 60 requests per minute, evenly spaced",
    ),
    ({"rate": "9/min", "scopes": ["login"]}, "each user or address: 9 requests per minute, on login"),
    (
        {"rate": "9/min", "scopes": ["a", "b", "c"]},
        "each user or address: 9 requests per minute, on a, b and c together",
    ),
    (
        {"rates": ["10/s", "1000/day"], "algorithm": "gcra"},
        "each user or address: 10 requests per second and 1,000 per day, bursts up to 10 and 1,000",
    ),
    (
        {"rates": ["10/s", "1000/day"], "algorithm": "token_bucket", "burst": 5},
        "each user or address: 10 requests per second and 1,000 per day, bursts up to 5",
    ),
    (
        {"rate": "10/min", "algorithm": "sliding_log"},
        "each user or address: 10 requests per minute, counted exactly in any minute",
    ),
    (
        {"rate": "1000/month", "algorithm": "fixed_window", "timezone": "Europe/Berlin"},
        "each user or address: 1,000 requests per month, counted afresh every month in Europe/Berlin",
    ),
    (
        {"rate": "1000/s", "algorithm": "damper", "events": ["publish"], "key": "everyone"},
        (
            "everyone together: 1,000 publications per second, held to that by refusing a share of what is attempted, "
            "judged by the last seconds"
        ),
    ),
    (
        {"rate": "100000/s", "algorithm": "gcra", "prepaid": True, "key": "everyone"},
        "everyone together: 100,000 requests per second, bursts up to 100,000, bought ahead by each process",
    ),
    (
        {"rate": "60/h", "algorithm": "token_bucket", "refill": "interval", "burst": 90},
        "each user or address: 60 requests per hour, bursts up to 90, refilled all at once every hour",
    ),
    (
        {"rate": "10/s", "algorithm": "leaky_bucket"},
        "each user or address: 10 requests per second, bursts up to 10",
    ),
    (
        {"rate": "10/s", "algorithm": "leaky_bucket", "burst": 30, "action": "delay", "max_delay": 2.5, "key": "ip"},
        "each address: 10 requests per second, evenly spaced, up to 30 waiting their turn for at most 2.5 seconds",
    ),
    (
        {"rate": "100/min", "key": "user", "plans": {"group:premium": "1000/min", "staff": "5000/min"}},
        "each user: 100 requests per minute, group premium 1,000, staff 5,000",
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
    (
        {"limit": 3, "algorithm": "concurrency", "plans": {"tenant:acme": 20, "tenant:Größe 1": 50}},
        "each user or address: 3 open WebSockets at once, tenant acme 20, tenant 'Größe 1' 50",
    ),
    ({"rate": "9/min", "scopes": ["api:*"]}, "each user or address: 9 requests per minute, on api:* together"),
    (
        {"rate": "9/min", "cost": 3, "count_denied": True},
        "each user or address: 9 requests per minute, each counting 3, refused ones count too",
    ),
    ({"rate": "9/min", "action": "shadow"}, "each user or address: 9 requests per minute, recorded but never refused"),
    (
        {"rate": "9/min", "on_store_failure": "deny", "enabled": False},
        "each user or address: 9 requests per minute, refused while the store is away, switched off",
    ),
    (
        {"rate": "9/min", "methods": ["POST"], "audience": ["anonymous"], "count_on": [401]},
        (
            "each user or address: 9 requests per minute, only POST, only for visitors who are not logged in, "
            "counting only answers of status 401"
        ),
    ),
    (
        {"rate": "9/min", "methods": ["get", "put"], "audience": ["authenticated", "group:a:b", "tenant:acme"]},
        (
            "each user or address: 9 requests per minute, only GET, PUT and HEAD, "
            "only for logged-in users, the group a:b and the tenant acme"
        ),
    ),
    (
        {"rate": "10000/month", "algorithm": "fixed_window", "warn_at": [0.8, 1, 1.5], "enforce_at": 2.5},
        (
            "each user or address: 10,000 requests per month, counted afresh every month, "
            "tolerated up to 2.5 times as much, warned of at 80 %, 100 % and 150 %"
        ),
    ),
    (
        {"rate": "9/min", "cost": "shop.limits.price"},
        "each user or address: 9 requests per minute, each counting as much as shop.limits.price says",
    ),
    ({"rate": "9/min", "key": "shop.limits.tenant"}, "each value of shop.limits.tenant: 9 requests per minute"),
]


@pytest.mark.parametrize(("options", "sentence"), SENTENCES, ids=[sentence for _, sentence in SENTENCES])
def test_sentence(options: dict[str, object], sentence: str) -> None:
    assert describe(Rule.from_options("rule", options)) == sentence


def test_nothing_that_a_rule_may_say_is_without_words() -> None:
    assert set(NOUNS) == set(COUNTED) - {""} == set(EVENTS)
    assert all(kind.words for kind in KEY_KINDS.values())
    assert set(AUDIENCE_WORDS) == set(AUDIENCES)


def test_every_choice_shows() -> None:
    seen: dict[str, tuple[object, ...]] = {}
    for algorithm, event, key, action, policy in itertools.product(ALGORITHMS, EVENTS, KEYS, ACTIONS, FAILURE_POLICIES):
        if (algorithm == "concurrency") != (event in HELD):
            continue  # they belong together, and to nothing else
        if action in ("delay", "defer") and algorithm != "leaky_bucket":
            continue
        if algorithm == "damper" and policy == "deny":
            continue  # it asks no store
        if key == "connection" and (event not in ("message", "send") or algorithm == "damper" or policy != "local"):
            continue  # one socket's own
        given: dict[str, object] = {
            "algorithm": algorithm,
            "events": [event],
            "key": key,
            "action": action,
            "on_store_failure": policy,
        }
        given |= {"limit": 3} if algorithm == "concurrency" else {"rate": "30/min"}
        sentence = describe(Rule.from_options("rule", given))
        # All kinds of bucket are the same to who is limited, so they read the same.
        family = "bucket" if algorithm in BUCKETS else algorithm
        choice = (family, event, key, action, policy)
        assert seen.setdefault(sentence, choice) == choice
    families = len(ALGORITHMS) - len(BUCKETS)  # without concurrency, with the buckets as one
    moments = len(EVENTS) - len(HELD)
    queues, others = 2, len(ACTIONS) - 2  # only a leaky bucket delays and defers
    ways = (families * moments + len(HELD)) * others + moments * queues
    never = moments * others  # what a damper does not do while the store is away
    own = (families - 1) * 2 * others + 2 * queues  # of one socket: its messages, each way, without the store
    assert len(seen) == (ways * len(FAILURE_POLICIES) - never) * (len(KEYS) - 1) + own


@pytest.mark.parametrize(
    ("seconds", "words_"),
    [
        (60, "minute"),
        (90, "90 seconds"),
        (7 * 86_400, "week"),
        (172_800, "2 days"),
        (1.5, "1,500 milliseconds"),
        (0.001, "millisecond"),
    ],
)
def test_window(seconds: float, words_: str) -> None:
    assert descriptions.window(Rate(1, seconds)) == words_
