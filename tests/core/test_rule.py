"""A rule says what it means or is refused, naming what is wrong."""

import json
from typing import Any

import pytest
from hypothesis import example, given

from django_throttle.core import Rate, Rule
from django_throttle.core.options import EVENTS, LASTING_EVENTS, MAX_RESOLUTION
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidRule
from tests.strategies import rules

CAP: dict[str, Any] = {"rate": None, "limit": 5, "algorithm": "concurrency"}
DEFER: dict[str, Any] = {"algorithm": "leaky_bucket", "action": "defer"}
QUEUE: dict[str, Any] = {"algorithm": "leaky_bucket", "action": "delay"}
INTERVAL: dict[str, Any] = {"algorithm": "token_bucket", "refill": "interval"}
GCRA: dict[str, Any] = {"algorithm": "gcra"}
DAILY: dict[str, Any] = {"rate": "10/day", "algorithm": "fixed_window"}
DENIED: dict[str, Any] = {"count_denied": True}
DAMPER: dict[str, Any] = {"rate": "100/s", "algorithm": "damper"}

BAD: list[tuple[dict[str, Any], str]] = [
    ({"rate": None}, "needs a rate"),
    ({"rate": 5}, 'a rate must be text such as "5/min", not 5'),
    ({"rate": ["10/min"]}, r"""not \['10/min'\]; several go into rates: \["10/s", "1000/day"\]"""),
    ({"plans": {"staff": {"rate": "1/s", "limit": 9}}}, "needs a rate .*, a limit, not both"),
    ({"plans": {"authenticated": "1/s", "staff": "9/s"}}, "'staff' must stand before"),
    ({"scopes": {"api": 1}}, r'scopes must be a list such as \["search"\]'),
    ({"key": ["ip", "user"]}, r"""or "ip\+user" for both together, not \['ip', 'user'\]"""),
    ({"warn_at": 0.8}, r"warn_at must be a list such as \[0.8, 1.0\]"),
    ({"limit": 9}, "give a rate or a limit, not both"),
    ({"algorithm": "tokenbucket"}, r"not 'tokenbucket'; did you mean 'token_bucket'\?"),
    ({"algorithm": None}, "^rule 'api': algorithm must be one of"),
    ({"key": "usr_or_ip"}, r"not 'usr_or_ip'; did you mean 'user_or_ip'\?"),
    ({"key": "tenat+user"}, r"not 'tenat'; did you mean 'tenant'\?"),
    ({"key": 5}, 'key must be text such as "ip", or'),
    ({"events": ("requests",)}, r"events must be one of .*'requests'; did you mean 'request'\?"),
    *(({"events": events}, "events must be a list such as") for events in ("request", 5)),
    ({"events": []}, "events needs at least one name"),
    *(({"scopes": scopes}, r'scopes must be a list such as \["search"\]') for scopes in ("api", b"api", (None,))),
    ({"scopes": ()}, "scopes needs at least one name"),
    *(({"scopes": scopes}, "no empty ones") for scopes in (("",), (" ",))),
    ({"scopes": ("search,chat",)}, "no comma and no space around it, unlike 'search,chat'"),
    *(({"key": key}, "key must be one of") for key in (".", "a..b", ".a", "a.", "a b.c", "shop.limits()")),
    ({"action": "drop"}, "action must be one of"),
    ({"on_store_failure": "open"}, "on_store_failure must be one of"),
    ({"burst": 5}, "burst belongs to token bucket, leaky bucket"),
    *(({**GCRA, "burst": burst}, "burst must be a whole number") for burst in (0, 2.0, True, MAX_LIMIT + 1)),
    *(({"resolution": number}, "resolution must be a whole number") for number in (0, MAX_RESOLUTION + 1, "2")),
    ({"resolution": 2, "algorithm": "gcra"}, "[(]resolution[)] belongs to sliding window only"),
    ({"strict": True, "algorithm": "fixed_window"}, "[(]strict[)] belongs to sliding window only"),
    ({"cost": 0}, "cost must be a whole number"),
    ({"cost": "limits"}, "999 or the path of a function, not 'limits'"),
    ({"unit": "rows", "reserve": "meen"}, "999, 'mean' or the path of a function, not 'meen'"),
    ({"cost": 11}, "one call costs 11"),
    ({"cost": 3, "algorithm": "gcra", "burst": 2}, "one call costs 3"),
    ({"strict": 1}, "strict must be True or False"),
    ({"count_denied": "yes"}, "count_denied must be True or False"),
    ({"enabled": None}, "enabled must be True or False"),
    ({**CAP, "rate": "10/min"}, "has a limit, the number held at once, instead of a rate"),
    *(({**CAP, "limit": limit}, "limit must be a whole number") for limit in (None, 0, True, MAX_LIMIT + 1)),
    ({**CAP, "cost": 2}, "[(]cost[)] does not go with concurrency"),
    ({"rate": "1/366d", "algorithm": "gcra", "burst": MAX_LIMIT}, "longer than a store can count"),
    ({"action": "delay"}, "only a leaky bucket can delay"),
    ({"algorithm": "leaky_bucket", "max_delay": 5}, "belongs to rules that delay"),
    *(({**QUEUE, "max_delay": most}, "max_delay must be") for most in (-1, "5", True, float("nan"), float("inf"))),
    ({"rate": "60/min", **DEFER, "max_queue": 3, "cost": 5}, "costs 5, more than the 4 that the rule allows at once"),
    ({"refill": "interval"}, "refill belongs to token bucket only"),
    ({"algorithm": "token_bucket", "refill": "never"}, "refill must be one of"),
    ({"rate": "10/day", "timezone": "UTC"}, r"time zone \(timezone\) belongs to fixed window only"),
    *(({**DAILY, "timezone": zone}, "there is no time zone") for zone in ("Mars/Base", "../../etc/passwd")),
    ({**DAILY, "timezone": 5}, "timezone must be a name"),
    ({"rate": "10/5m", "algorithm": "fixed_window", "timezone": "UTC"}, "one hour, day, week or month"),
    ({"rate": "10001/min", "algorithm": "sliding_log"}, "a sliding log is at most 10,000; a strict sliding window"),
    ({"rate": "5/s", "rates": ("10/min",)}, "give rate or rates, not both"),
    ({"rate": None, "rates": "10/min"}, "rates must be a list"),
    ({"rate": None, "rates": ("10/min", "5/m")}, "each with another window"),
    ({"rate": None, "rates": tuple(f"5/{number}s" for number in range(1, 12))}, "at most 10"),
    ({**CAP, "rates": ("10/min",)}, "instead of a rate"),
    *(({"methods": given}, "methods must be a list such as") for given in ("GET", None, 5, b"GET")),
    ({"methods": ["PSOT"]}, "no method 'PSOT'; did you mean 'POST'"),
    ({"methods": ["BREW"]}, "no method 'BREW'"),
    ({"methods": ["GET"], "events": ["request", "message"]}, "methods belong to rules of HTTP"),
    ({"audience": "staff"}, "audience must be a list such as"),
    ({"audience": ["Staff"]}, "no audience 'Staff'; did you mean 'staff'"),
    ({"audience": ["group"]}, "no audience 'group'; did you mean 'group:NAME'"),
    *(({"audience": [who]}, "did you mean 'group:x'") for who in ("group: x", "gruop:x")),
    ({"audience": ["user:5"]}, "no audience 'user:5'; choose .*, group:NAME or tenant:NAME$"),
    ({"audience": ["anonymous"], "key": "user"}, "it would limit nobody"),
    ({"audience": ["anonymous"], "key": "ip+user"}, "it would limit nobody"),
    *(({"count_on": given}, "count_on") for given in (401, "401", [99], [600], [401.0], ["401"])),
    ({"count_on": [401], "events": ["message"]}, "count_on belongs to rules of HTTP"),
    *(
        ({"warn_at": given}, "warn_at")
        for given in (0.8, "0.8", ["0.8"], [True], [0], [-1], [101], [float("nan")], [n / 20 for n in range(1, 12)])
    ),
    ({"warn_at": [1.5]}, "never reaches 1.5 times the limit: calls are refused at 1$"),
    ({"warn_at": [80]}, "80 % is 0.8"),
    *(({"rate": None, "limit": 5, "events": [event]}, "add algorithm: concurrency") for event in LASTING_EVENTS),
    *(
        ({"enforce_at": given}, "enforce_at must be a number from 1")
        for given in (0.5, 0, 101, "2", True, None, float("nan"), float("inf"))
    ),
    ({"enforce_at": 150}, "from 1 to 100, not 150; 150 % is 1.5$"),
    ({"algorithm": "leaky_bucket", "action": "delay", "enforce_at": 2}, "has one limit"),
    ({"rate": f"{MAX_LIMIT}/min", "enforce_at": 1.1}, "more than the 999,999,999,999,999 that can be counted"),
    ({"rate": "9000/min", "algorithm": "sliding_log", "enforce_at": 1.5}, "more than the 10,000"),
    *(({"cost": given}, "cost must be a whole number") for given in ("5", "price", "a..b", ".a", "a.b()", 1.5)),
    ({"estimator": "average"}, "[(]estimator[)] belongs to damper only"),
    ({**DAMPER, "estimator": "slow"}, "estimator must be one of fast, average"),
    ({**DAMPER, "rate": None, "rates": ["100/s", "1000/min"]}, "has one rate"),
    ({**DAMPER, "rate": "9/min"}, "one call in six"),
    *(
        ({**shape, option: value}, rf"\({option}\) does not go with {shape['algorithm']}")
        for shape in (CAP, DAMPER)
        for option, value in {"count_denied": True, "count_on": [401], "warn_at": [0.8], "enforce_at": 2.5}.items()
    ),
    ({**DAMPER, "prepaid": True}, r"buy ahead \(prepaid\) does not go with damper"),
    *(({"prepaid": True, **shape}, "cannot be bought ahead") for shape in (QUEUE, INTERVAL, {"unit": "rows"})),
    *(({"prepaid": True, **each}, "about each call") for each in (DENIED, {"count_on": [401]}, {"refund_on": ["5xx"]})),
    ({"unit": "rows", "events": ["connect"]}, "only requests, messages and tasks are measured"),
    ({"unit": "rows", "events": ["message", "send"]}, "only requests, messages and tasks are"),
    ({"unit": "response_bytes", "events": ["message"]}, "response_bytes belongs to rules of HTTP requests"),
    ({"count_on": [404], "refund_on": ["4xx"]}, "no answer would count"),
    ({"count_on": ["1xx"]}, "no answer would count"),
    ({"refund_on": ["2xx", "3xx", "4xx", "5xx"]}, "no answer would count"),
    ({"unit": "units", "measure": "a.b", "events": ["request", "message"]}, "measure is a function of a request"),
    ({**CAP, "events": ["inflight"], "at_limit": "evict_oldest"}, "add the event connection"),
    ({"unit": "rows", "cost": 2}, "what is measured is the cost"),
    ({"rate": f"{MAX_LIMIT}/min", "algorithm": "gcra"}, "2,000,000,000,000 can, and a fixed or sliding"),
    ({**DAMPER, "action": "delay"}, "can delay"),
    ({**CAP, "action": "delay"}, "only a leaky bucket can delay"),
    ({**CAP, "max_queue": 3}, "belongs to rules that delay or defer"),
    ({**QUEUE, "max_queue": 3, "burst": 3}, "give burst or max_queue, not both"),
    ({**INTERVAL, "rate": "1/366d", "burst": MAX_LIMIT}, "longer than a store can count"),
    *(({"measure": "a.b", "unit": unit}, "measure belongs to rules of unit units") for unit in ("calls", "rows")),
    *(({**each, "unit": "rows"}, "a measured cost is known too late") for each in (QUEUE, DAMPER)),
    ({**INTERVAL, "unit": "rows"}, "refill it continuously"),
    ({**DENIED, "unit": "rows"}, "leave count_denied out"),
    ({"unit": "rows", "reserve": 11}, "a call reserves 11, more than the 10 that the rule allows at once"),
    ({**DAMPER, "on_store_failure": "deny"}, "not deny"),
]


@pytest.mark.parametrize(("options", "complaint"), BAD, ids=lambda given: str(given)[:50])
@pytest.mark.row("B07")
def test_refuses_what_makes_no_sense(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRule, match=complaint) as caught:
        Rule("api", **{"rate": "10/min", **options})
    assert caught.value.option in {"rate", "algorithm", "burst", *options}


@pytest.mark.parametrize("name", ["", None, 5, "a" * 101, "a\nb", "a\x00b", "\ud800"])
def test_a_name_is_short_and_printable(name: Any) -> None:
    with pytest.raises(InvalidRule, match="a name must have"):
        Rule(name, "10/min")


def test_a_queue_has_room_for_a_call_that_costs_more_than_its_rate() -> None:
    assert Rule("reports", "1/s", max_queue=10, cost=5, **DEFER).params.limit == 11


@pytest.mark.parametrize(
    ("options", "events", "meant"),
    [
        (CAP, ["connect"], "(requests being answered) or both, not 'connect'; did you mean 'connection'?"),
        (CAP, ["connection", "request"], "not 'request'; did you mean 'inflight'?"),
        (CAP, ["message"], "not 'message'"),
        ({"rate": "5/s"}, ["connection"], "not 'connection'; did you mean 'connect'?"),
        ({"rate": "5/s"}, ["request", "inflight"], "not 'inflight'; did you mean 'request'?"),
    ],
)  # fmt: skip
def test_concurrency_counts_what_is_open_and_rates_count_what_happens(
    options: dict[str, Any], events: list[str], meant: str
) -> None:
    with pytest.raises(InvalidRule, match="concurrency rule counts") as caught:
        Rule("api", **options, events=events)
    assert str(caught.value).endswith(meant) and caught.value.option == "events"
    for event in EVENTS:
        if event == "task" or (options is CAP) == (event in LASTING_EVENTS):
            assert Rule("api", **options, events=[event]).events == (event,)


@pytest.mark.row("F25")
def test_a_change_of_what_a_value_means_changes_its_place_and_an_edited_limit_meets_what_was_counted() -> None:
    base = Rule("api", "100/min")
    others = [
        Rule("ap", "100/min"), Rule("api", "100/h"), Rule("api", "100/min", resolution=2), Rule("api", **CAP),
        Rule("api", "100/min", algorithm="gcra"), Rule("api", "100/min", algorithm="fixed_window"),
    ]  # fmt: skip
    assert len({base.id, *(rule.id for rule in others)}) == 1 + len(others)
    same = [
        Rule("api", "7/min"), Rule("api", "100/min", cost=2, key="ip", scopes=("a",), action="shadow"),
        Rule("api", "100/min", strict=True, count_denied=True),
    ]  # fmt: skip
    assert {rule.id for rule in same} == {base.id}


def test_what_is_tolerated_is_the_store_s_and_the_limit_stays() -> None:
    rule = Rule("api", "100/min", enforce_at=2.3)
    assert (rule.limit, rule.params.limit, rule.tolerance, Rule("api", "100/min").tolerance) == (100, 230, 130, 0)
    bucket, strict = (Rule("api", "60/min", algorithm="gcra", burst=10, enforce_at=times) for times in (2, 1))
    assert (bucket.params.limit, bucket.tolerance, bucket.params.unit) == (20, 10, strict.params.unit)


@given(rules())
@example(Rule("owes", "127/366d", algorithm="gcra", unit="rows"))  # a second bucket at most
def test_every_number_of_a_plan_is_exact_in_a_double_and_a_share_counts_in_the_same_place(rule: Rule) -> None:
    assert all(type(number) is int and 0 <= number < 2**53 for number in rule.params.numbers)
    if rule.params.name.startswith("gcra"):
        assert 2 * rule.params.buckets * rule.params.bucket < 2**53, "the largest sum that a script makes"
    assert rule.params.limit >= rule.cost
    assert [part.share(3).id for part in rule.parts] == [part.id for part in rule.parts]


@pytest.mark.parametrize(
    ("limit", "parts", "share"), [(100, 1, 100), (100, 0, 100), (100, 4, 25), (100, 3, 33), (2, 5, 1)]
)
def test_the_shares_of_all_processes_add_up_to_no_more_than_the_limit(limit: int, parts: int, share: int) -> None:
    assert Rule("api", Rate(limit, 60)).share(parts).limit == share
    assert Rule("cap", limit=limit, algorithm="concurrency").share(parts).limit == share
    shared = Rule("api", Rate(limit, 60), algorithm="gcra", burst=limit).share(parts)
    assert (shared.limit, shared.burst, shared.id) == (share, share, Rule("api", Rate(1, 60), algorithm="gcra").id)


@pytest.mark.parametrize(
    ("mistyped", "meant"), [("algoritm", "algorithm"), ("scope", "scopes"), ("bursts", "burst"), ("limits", "limit")]
)
def test_an_unknown_option_is_refused_with_the_nearest_one(mistyped: str, meant: str) -> None:
    with pytest.raises(InvalidRule, match=f"no option '{mistyped}'; did you mean '{meant}'"):
        Rule.from_options("api", {"rate": "5/min", mistyped: 1})


@pytest.mark.parametrize("options", [None, "10/min", ["rate"], 5])
def test_options_are_a_mapping(options: Any) -> None:
    with pytest.raises(InvalidRule, match="options must be a dictionary such as"):
        Rule.from_options("api", options)


@given(rules())
def test_options_round_trip_through_json(rule: Rule) -> None:
    options = json.loads(json.dumps(rule.as_options()))
    again = Rule.from_options(rule.name, options)
    assert again == rule and again.id == rule.id and again.params == rule.params


def test_lists_are_tidied() -> None:
    rule = Rule("api", "10/min", methods=["post", "GET", "Post"], warn_at=[1, 0.8, 0.8], count_on=(403, 401, 403))
    assert (rule.methods, rule.warn_at, rule.count_on) == (("POST", "GET"), (0.8, 1.0), (401, 403))
    assert rule == Rule("api", "10/min", methods=("POST", "GET"), warn_at=(0.8, 1), count_on=(401, 403))
    assert Rule("api", "10/min", audience=["staff", "staff"]).audience == ("staff",)


def test_a_single_status_may_be_all_that_counts_and_a_single_call_a_burst() -> None:
    assert [Rule("api", "10/min", count_on=[status]).count_on for status in (200, 599)] == [(200,), (599,)]
    rule = Rule("api", "10/min", **GCRA, plans={"staff": {"rate": "5/min", "burst": 1}})
    assert rule.plans == ("staff = 5/min burst 1",)


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert Rule("api", "100/min").as_options() == {"rate": "100/min"}
    cap: dict[str, Any] = {"limit": 5, "algorithm": "concurrency"}
    assert Rule("cap", **cap).as_options() == cap
