"""A rule says what it means or is refused, naming what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given

from django_throttle.core import Rate, Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.options import EVENTS, HELD, MAX_RESOLUTION
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidRate, InvalidRule
from tests.strategies import FAILURE_POLICIES, KEYS, rules

CAP: dict[str, Any] = {"limit": 5, "algorithm": "concurrency"}
DEFER: dict[str, Any] = {"algorithm": "leaky_bucket", "action": "defer"}
DAMPER: dict[str, Any] = {"rate": "100/s", "algorithm": "damper"}

BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "needs a rate"),
    ({"limit": 5}, "add algorithm: concurrency"),
    ({"rate": 5}, 'a rate must be text such as "5/min", not 5'),
    ({"rate": ["10/min"]}, r"""not \['10/min'\]; several go into rates: \["10/s", "1000/day"\]"""),
    ({"rate": "10/min", "plans": {"premium": "1/s"}}, "tenant:NAME or a function such as shop.limits.plan:NAME"),
    ({"rate": "10/min", "plans": {"shop.plan: pro": "1/s"}}, "there is no audience 'shop.plan: pro'"),
    ({"rate": "10/min", "plans": {"staff": {"rate": "1/s", "limit": 9}}}, "needs a rate .*, a limit, not both"),
    ({"rate": "10/min", "plans": {"authenticated": "1/s", "staff": "9/s"}}, "'staff' must stand before"),
    ({"rate": "10/min", "scopes": {"api": 1}}, r'scopes must be a list such as \["search"\]'),
    ({"rate": "10/min", "key": ["ip", "user"]}, r"""or "ip\+user" for both together, not \['ip', 'user'\]"""),
    ({"rate": "10/min", "warn_at": 0.8}, r"warn_at must be a list such as \[0.8, 1.0\]"),
    ({"rate": "10/min", "limit": 9}, "give a rate or a limit, not both"),
    ({"rate": "10/min", "limit": 10}, "give a rate or a limit, not both"),
    ({"rates": ["10/min", "2/s"], "limit": 10}, "give a rate or a limit, not both"),
    ({"rate": "10/min", "algorithm": "leaky"}, "algorithm must be one of"),
    ({"rate": "10/min", "algorithm": "tokenbucket"}, r"not 'tokenbucket'; did you mean 'token_bucket'\?"),
    ({"rate": "10/min", "algorithm": None}, "algorithm must be one of"),
    ({"rate": "10/min", "key": "cookie"}, "key must be one of"),
    ({"rate": "10/min", "key": "usr_or_ip"}, r"not 'usr_or_ip'; did you mean 'user_or_ip'\?"),
    ({"rate": "10/min", "key": "tenat+user"}, r"not 'tenat'; did you mean 'tenant'\?"),
    ({"rate": "10/min", "key": 5}, 'key must be text such as "ip", or'),
    (
        {"rate": "10/min", "events": ("requests",)},
        r"events must be one of .*, not 'requests'; did you mean 'request'\?",
    ),
    ({"rate": "10/min", "events": "request"}, "events must be a list such as"),
    ({"rate": "10/min", "events": []}, "events needs at least one name"),
    ({"rate": "10/min", "events": 5}, "events must be a list such as"),
    ({"rate": "10/min", "scopes": "api"}, "scopes must be a list such as"),
    ({"rate": "10/min", "scopes": b"api"}, "scopes must be a list such as"),
    ({"rate": "10/min", "scopes": ()}, "scopes needs at least one name"),
    ({"rate": "10/min", "scopes": ("",)}, "no empty ones"),
    ({"rate": "10/min", "scopes": (" ",)}, "no empty ones"),
    ({"rate": "10/min", "scopes": (None,)}, r'scopes must be a list such as \["search"\]'),
    ({"rate": "10/min", "scopes": ("search,chat",)}, "no comma and no space around it, unlike 'search,chat'"),
    ({"rate": "10/min", "scopes": ("chat", " search ")}, "unlike ' search '"),
    *(
        ({"rate": "10/min", "key": key}, "key must be one of")
        for key in (".", "a..b", ".a", "a.", "a b.c", "shop.limits()")
    ),
    ({"rate": "10/min", "action": "drop"}, "action must be one of"),
    ({"rate": "10/min", "on_store_failure": "open"}, "on_store_failure must be one of"),
    ({"rate": "10/min", "burst": 5}, "burst belongs to token bucket, leaky bucket and GCRA only"),
    ({"rate": "10/min", "algorithm": "gcra", "burst": 0}, "burst must be a whole number"),
    ({"rate": "10/min", "algorithm": "gcra", "burst": 2.0}, "burst must be a whole number"),
    ({"rate": "10/min", "algorithm": "gcra", "burst": True}, "burst must be a whole number"),
    ({"rate": "10/min", "algorithm": "gcra", "burst": MAX_LIMIT + 1}, "burst must be a whole number"),
    ({"rate": "10/min", "resolution": 0}, "resolution must be a whole number"),
    ({"rate": "10/min", "resolution": MAX_RESOLUTION + 1}, "resolution must be a whole number"),
    ({"rate": "10/min", "resolution": "2"}, "resolution must be a whole number"),
    ({"rate": "10/min", "resolution": 2, "algorithm": "gcra"}, "resolution belongs to sliding window only"),
    ({"rate": "10/min", "strict": True, "algorithm": "fixed_window"}, "strict belongs to sliding window only"),
    ({"rate": "10/min", "cost": 0}, "cost must be a whole number"),
    ({"rate": "10/min", "cost": "limits"}, "999 or the path of a function, not 'limits'"),
    ({"rate": "10/min", "unit": "rows", "reserve": "meen"}, "999, 'mean' or the path of a function, not 'meen'"),
    ({"rate": "10/min", "cost": 11}, "one call costs 11"),
    ({"rate": "10/min", "cost": 3, "algorithm": "gcra", "burst": 2}, "one call costs 3"),
    ({"rate": "10/min", "strict": 1}, "strict must be True or False"),
    ({"rate": "10/min", "count_denied": "yes"}, "count_denied must be True or False"),
    ({"rate": "10/min", "enabled": None}, "enabled must be True or False"),
    ({**CAP, "rate": "10/min"}, "has a limit, the number held at once, instead of a rate"),
    ({"algorithm": "concurrency"}, "limit must be a whole number"),
    ({**CAP, "limit": 0}, "limit must be a whole number"),
    ({**CAP, "limit": True}, "limit must be a whole number"),
    ({**CAP, "limit": MAX_LIMIT + 1}, "limit must be a whole number"),
    ({**CAP, "cost": 2}, "cost does not go with concurrency"),
    ({**CAP, "count_denied": True}, r"calls \(count_denied\) does not go with concurrency"),
    ({**CAP, "burst": 2}, "burst belongs to token bucket, leaky bucket and GCRA only"),
    ({"rate": "1/366d", "algorithm": "gcra", "burst": MAX_LIMIT}, "longer than a store can count"),
    ({"rate": "10/min", "action": "delay"}, "only a leaky bucket can delay"),
    ({"rate": "10/min", "algorithm": "leaky_bucket", "max_delay": 5}, "belongs to rules that delay"),
    *(
        ({"rate": "10/min", "algorithm": "leaky_bucket", "action": "delay", "max_delay": most}, "max_delay must be")
        for most in (-1, "5", True, float("nan"), float("inf"))
    ),
    ({"rate": "60/min", **DEFER, "max_queue": 3, "cost": 5}, "costs 5, more than the 4 that the rule allows at once"),
    ({"rate": "10/min", "refill": "interval"}, "refill belongs to token bucket only"),
    ({"rate": "10/min", "algorithm": "token_bucket", "refill": "never"}, "refill must be one of"),
    ({"rate": "10/day", "timezone": "UTC"}, r"time zone \(timezone\) belongs to fixed window only"),
    ({"rate": "10/day", "algorithm": "fixed_window", "timezone": "Mars/Base"}, "there is no time zone"),
    ({"rate": "10/day", "algorithm": "fixed_window", "timezone": "../../etc/passwd"}, "there is no time zone"),
    ({"rate": "10/day", "algorithm": "fixed_window", "timezone": 5}, "timezone must be a name"),
    ({"rate": "10/5m", "algorithm": "fixed_window", "timezone": "UTC"}, "one hour, day, week or month"),
    ({"rate": "10001/min", "algorithm": "sliding_log"}, "a sliding log is at most 10,000; a strict sliding window"),
    ({"rate": "5/s", "rates": ("10/min",)}, "give rate or rates, not both"),
    ({"rates": "10/min"}, "rates must be a list"),
    ({"rates": ("10/min", "5/m")}, "each with another window"),
    ({"rates": tuple(f"5/{number}s" for number in range(1, 12))}, "at most 10"),
    ({**CAP, "rates": ("10/min",)}, "instead of a rate"),
    *(({"rate": "10/min", "methods": given}, "methods must be a list such as") for given in ("GET", None, 5, b"GET")),
    ({"rate": "10/min", "methods": [""]}, "no empty ones"),
    ({"rate": "10/min", "methods": ["PSOT"]}, "no method 'PSOT'; did you mean 'POST'"),
    ({"rate": "10/min", "methods": ["BREW"]}, "no method 'BREW'"),
    ({"rate": "10/min", "methods": ["GET"], "events": ["request", "message"]}, "methods belong to rules of HTTP"),
    ({"rate": "10/min", "audience": "staff"}, "audience must be a list such as"),
    ({"rate": "10/min", "audience": ["Staff"]}, "no audience 'Staff'; did you mean 'staff'"),
    ({"rate": "10/min", "audience": ["group"]}, "no audience 'group'; did you mean 'group:NAME'"),
    ({"rate": "10/min", "audience": ["group: x"]}, "did you mean 'group:x'"),
    ({"rate": "10/min", "audience": ["gruop:x"]}, "did you mean 'group:x'"),
    ({"rate": "10/min", "audience": ["user:5"]}, "no audience 'user:5'"),
    ({"rate": "10/min", "audience": ["anonymous"], "key": "user"}, "it would limit nobody"),
    *(({"rate": "10/min", "count_on": given}, "count_on") for given in (401, "401", [99], [600], [401.0], ["401"])),
    ({"rate": "10/min", "count_on": [401], "events": ["message"]}, "count_on belongs to rules of HTTP"),
    ({**CAP, "count_on": [401]}, r"answers \(count_on\) does not go with concurrency"),
    *(
        ({"rate": "10/min", "warn_at": given}, "warn_at")
        for given in (0.8, "0.8", ["0.8"], [True], [0], [-1], [101], [float("nan")], [n / 20 for n in range(1, 12)])
    ),
    ({"rate": "10/min", "warn_at": [1.5]}, "never reaches 1.5 times the limit: calls are refused at 1$"),
    ({"rate": "10/min", "warn_at": [80]}, "80 % is 0.8"),
    ({"limit": 5, "events": ["connection"]}, "add algorithm: concurrency"),
    ({"limit": 5, "events": ["inflight"]}, "add algorithm: concurrency"),
    ({"rate": "10/min", "warn_at": [150], "enforce_at": 2}, "150 % is 1.5"),
    ({**CAP, "warn_at": [0.8]}, r"warn at \(warn_at\) does not go with concurrency"),
    *(
        ({"rate": "10/min", "enforce_at": given}, "enforce_at must be a number from 1")
        for given in (0.5, 0, 101, "2", True, None, float("nan"), float("inf"))
    ),
    ({"rate": "10/min", "enforce_at": 150}, "from 1 to 100, not 150; 150 % is 1.5$"),
    ({**CAP, "enforce_at": 2}, r"refuse at \(enforce_at\) does not go with concurrency"),
    ({"rate": "10/min", "algorithm": "leaky_bucket", "action": "delay", "enforce_at": 2}, "has one limit"),
    ({"rate": f"{MAX_LIMIT}/min", "enforce_at": 1.1}, "more than the 999,999,999,999,999 that can be counted"),
    ({"rate": "10/min", "algorithm": "gcra", "burst": MAX_LIMIT, "enforce_at": 1.1}, "that can be counted"),
    ({"rate": "9000/min", "algorithm": "sliding_log", "enforce_at": 1.5}, "more than the 10,000"),
    *(
        ({"rate": "10/min", "cost": given}, "cost must be a whole number")
        for given in ("5", "price", "a..b", ".a", "a.b()", 1.5)
    ),
    ({**CAP, "cost": "shop.limits.price"}, "cost does not go with concurrency"),
    ({"rate": "10/min", "estimator": "average"}, "estimator belongs to damper only"),
    ({**DAMPER, "estimator": "slow"}, "estimator must be one of fast, average"),
    ({**DAMPER, "rate": None, "rates": ["100/s", "1000/min"]}, "has one rate"),
    ({**DAMPER, "rate": "9/min"}, "one call in six"),
    ({**DAMPER, "count_denied": True}, r"calls \(count_denied\) does not go with damper"),
    ({**DAMPER, "count_on": [401]}, r"answers \(count_on\) does not go with damper"),
    ({**DAMPER, "warn_at": [0.8]}, r"warn at \(warn_at\) does not go with damper"),
    ({**DAMPER, "enforce_at": 2.5}, r"refuse at \(enforce_at\) does not go with damper"),
    ({**DAMPER, "burst": 5}, "burst belongs to"),
    ({**DAMPER, "prepaid": True}, r"buy ahead \(prepaid\) does not go with damper"),
    ({"rate": "10/min", "algorithm": "leaky_bucket", "action": "delay", "prepaid": True}, "cannot be bought ahead"),
    ({"rate": "10/min", "algorithm": "token_bucket", "refill": "interval", "prepaid": True}, "cannot be bought ahead"),
    ({"rate": "10/min", "unit": "rows", "prepaid": True}, "cannot be bought ahead"),
    ({"rate": "10/min", "count_denied": True, "prepaid": True}, "about each call"),
    ({"rate": "10/min", "count_on": [401], "prepaid": True}, "about each call"),
    ({"rate": "10/min", "refund_on": ["5xx"], "prepaid": True}, "about each call"),
    ({**DAMPER, "action": "delay"}, "can delay"),
    ({**DAMPER, "on_store_failure": "deny"}, "not deny"),
]


@pytest.mark.parametrize(("options", "complaint"), BAD, ids=lambda given: str(given)[:50])
def test_refuses_what_makes_no_sense(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRule, match=complaint):
        Rule("api", **options)


@pytest.mark.parametrize("name", ["", None, 5, "a" * 101, "a\nb", "a\x00b", "\ud800"])
def test_a_name_is_short_and_printable(name: Any) -> None:
    with pytest.raises(InvalidRule, match="a name must have"):
        Rule(name, "10/min")


def test_a_queue_has_room_for_a_call_that_costs_more_than_its_rate() -> None:
    assert Rule("reports", "1/s", max_queue=10, cost=5, **DEFER).plan.limit == 11


def test_an_error_names_the_rule() -> None:
    with pytest.raises(InvalidRule, match="rule 'logins': algorithm must be one of"):
        Rule("logins", "5/min", algorithm="magic")


def test_a_bad_rate_is_an_invalid_rate() -> None:
    with pytest.raises(InvalidRate):
        Rule("api", "ten a minute")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("event", EVENTS)
def test_concurrency_counts_what_is_open_and_rates_count_what_happens(algorithm: str, event: str) -> None:
    options: dict[str, Any] = CAP if algorithm == "concurrency" else {"rate": "60/min", "algorithm": algorithm}
    if (algorithm == "concurrency") == (event in HELD):
        assert Rule("api", **options, events=[event]).events == (event,)
    else:
        with pytest.raises(InvalidRule, match="concurrency rule counts"):
            Rule("api", **options, events=[event])
    with pytest.raises(InvalidRule, match="concurrency rule counts"):
        Rule("api", **options, events=("connection", "request"))


def test_sockets_and_requests_may_share_one_count() -> None:
    assert Rule("api", **CAP, events=["connection", "inflight"]).events == ("connection", "inflight")


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (
            {**CAP, "events": ["connect"]},
            "(requests being answered) or both, not 'connect'; did you mean 'connection'?",
        ),
        ({**CAP, "events": ["connection", "request"]}, "not 'request'; did you mean 'inflight'?"),
        ({**CAP, "events": ["message"]}, "not 'message'"),
        ({"rate": "5/s", "events": ["connection"]}, "not 'connection'; did you mean 'connect'?"),
        ({"rate": "5/s", "events": ["request", "inflight"]}, "not 'inflight'; did you mean 'request'?"),
    ],
)
def test_an_event_of_the_wrong_kind_names_the_one_that_is_meant(options: dict[str, Any], meant: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Rule("api", **options)
    assert str(caught.value).endswith(meant) and caught.value.option == "events"


def test_only_a_socket_is_closed_for_another() -> None:
    with pytest.raises(InvalidRule, match="add the event connection"):
        Rule("api", **CAP, events=["inflight"], at_limit="evict_oldest")
    assert Rule("api", **CAP, events=["inflight", "connection"], at_limit="evict_oldest").at_limit == "evict_oldest"


@pytest.mark.parametrize("key", [*KEYS, "shop.keys.tenant"])
def test_a_key_is_a_known_one_or_a_dotted_path(key: str) -> None:
    event = "message" if key == "connection" else "request"
    assert Rule("api", "5/min", key=key, events=(event,)).key == key


@pytest.mark.parametrize("policy", FAILURE_POLICIES)
def test_failure_policies(policy: str) -> None:
    assert Rule("api", "5/min", on_store_failure=policy).on_store_failure == policy


def test_defaults() -> None:
    rule = Rule("api", "100/min")
    assert rule.rate == Rate(100, 60) and rule.limit == 100
    assert (rule.scopes, rule.events, rule.key, rule.algorithm) == (
        ("*",),
        ("request",),
        "user_or_ip",
        "sliding_window",
    )
    assert (rule.resolution, rule.strict, rule.count_denied, rule.cost) == (1, False, False, 1)
    assert (rule.action, rule.on_store_failure, rule.enabled, rule.burst) == ("reject", "local", True, None)
    assert not rule.is_concurrency and Rule("cap", **CAP).is_concurrency
    assert Rule("cap", **CAP).events == ("connection",)


def test_a_rule_is_a_frozen_value() -> None:
    rule = Rule("api", "100/min")
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.limit = 5  # type: ignore[misc]
    assert rule == Rule("api", Rate(100, 60)) and hash(rule) == hash(Rule("api", Rate(100, 60)))


def test_only_a_rule_that_asks_for_nothing_more_is_plain() -> None:
    assert Rule("api", "10/min", warn_at=[0.8], enforce_at=2, count_on=[401], cost=3).is_plain
    options = {"methods": ["GET"], "audience": ["staff"], "cost": "shop.limits.price", "plans": {"staff": "20/min"}}
    for more in ({name: value} for name, value in options.items()):
        assert not Rule("api", "10/min", **more).is_plain


@pytest.mark.parametrize(
    "rule",
    [
        Rule("api", "100/min", count_denied=True, warn_at=(0.8,), enforce_at=2, methods=("GET",)),
        Rule("queue", "10/s", algorithm="leaky_bucket", action="delay", max_delay=2.5),
        Rule("queue", rates=("10/s", "100/min"), algorithm="leaky_bucket", action="delay", max_delay=2.5),
        Rule("cap", **CAP),
    ],
    ids=str,
)
def test_a_shadow_decides_as_the_rule_does_and_refuses_nobody(rule: Rule) -> None:
    shadow = rule.as_shadow()
    assert shadow.is_shadow and shadow.as_shadow() is shadow
    assert [(part.is_shadow, part.plan.numbers, part.id) for part in shadow.parts] == [
        (True, part.plan.numbers, part.id) for part in rule.parts
    ]


BASE = Rule("api", "100/min")


@pytest.mark.row("F25")
@pytest.mark.parametrize(
    "other",
    [
        Rule("ap", "100/min"),
        Rule("api", "100/h"),
        Rule("api", "100/min", resolution=2),
        Rule("api", "100/min", algorithm="gcra"),
        Rule("api", "100/min", algorithm="fixed_window"),
        Rule("api", **CAP),
    ],
    ids=lambda rule: f"{rule.name} {rule.rate} {rule.algorithm}",
)
def test_a_change_of_what_a_value_means_changes_its_place(other: Rule) -> None:
    assert other.id != BASE.id


@pytest.mark.parametrize(
    "other",
    [
        Rule("api", "7/min"),
        Rule("api", "100/min", cost=2, key="ip", scopes=("a",), action="shadow"),
        Rule("api", "100/min", strict=True, count_denied=True),
    ],
    ids=str,
)
def test_an_edited_limit_meets_what_was_counted(other: Rule) -> None:
    assert other.id == BASE.id


def test_short_ids_are_short_and_plain() -> None:
    found = {Rule(f"rule {number}", "5/min").id for number in range(2000)}
    assert len(found) == 2000 and all(len(name) == 8 and name.isascii() for name in found)


def test_what_is_tolerated_is_the_store_s_and_the_limit_stays() -> None:
    rule = Rule("api", "100/min", enforce_at=2.3)
    assert (rule.limit, rule.plan.limit, rule.tolerance) == (100, 230, 130)
    bucket = Rule("api", "60/min", algorithm="gcra", burst=10, enforce_at=2)
    assert (bucket.plan.limit, bucket.tolerance, bucket.plan.unit) == (
        20,
        10,
        Rule("api", "60/min", algorithm="gcra").plan.unit,
    )
    assert Rule("api", "100/min").tolerance == 0


def test_a_share_tolerates_its_part() -> None:
    shared = Rule("api", "100/min", enforce_at=2.5, warn_at=(0.8,)).share(4)
    assert (shared.limit, shared.plan.limit) == (25, 62)
    assert Rule("api", "100/min", cost="shop.limits.price").share(4).limit == 25


@given(rules())
def test_every_number_of_a_plan_is_exact_in_a_double(rule: Rule) -> None:
    assert all(type(number) is int and 0 <= number < 2**53 for number in rule.plan.numbers)
    assert rule.plan.limit >= rule.cost


@pytest.mark.parametrize(
    ("limit", "parts", "share"), [(100, 1, 100), (100, 0, 100), (100, 4, 25), (100, 3, 33), (2, 5, 1)]
)
def test_the_shares_of_all_processes_add_up_to_no_more_than_the_limit(limit: int, parts: int, share: int) -> None:
    assert Rule("api", Rate(limit, 60)).share(parts).limit == share
    assert Rule("cap", limit=limit, algorithm="concurrency").share(parts).limit == share
    shared = Rule("api", Rate(limit, 60), algorithm="gcra", burst=limit).share(parts)
    assert (shared.limit, shared.burst, shared.id) == (share, share, Rule("api", Rate(1, 60), algorithm="gcra").id)


@given(rules())
def test_every_rule_has_a_share_that_counts_in_the_same_place(rule: Rule) -> None:
    for part in rule.parts:
        assert part.share(3).id == part.id


def test_a_month_stays_a_month() -> None:
    rule = Rule("quota", "1000/month", algorithm="fixed_window", timezone="Europe/Berlin")
    assert str(rule.share(2).rate) == "500/month"


def test_a_share_still_admits_one_call() -> None:
    rule = Rule("api", "10/min", cost=4).share(10)
    assert rule.limit == rule.plan.limit == 4


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"events": ["connect"]}, "only requests, messages and tasks are measured"),
        ({"events": ["message", "send"]}, "only requests, messages and tasks are measured"),
        ({"events": ["message"], "unit": "response_bytes"}, "response_bytes belongs to rules of HTTP requests"),
        ({"events": ["request", "message"], "unit": "units", "measure": "a.b"}, "measure is a function of a request"),
    ],
)
def test_what_cannot_be_measured_has_no_measured_unit(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidRule, match=fault):
        Rule("rows", "100/min", **{"unit": "rows", **options})
