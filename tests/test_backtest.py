"""Rules replayed over calls: what they would have refused, exactly."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse
from django.urls import path

from django_throttle.access_log import Call, read
from django_throttle.backtest import replay, why_not
from django_throttle.core import Rule
from tests.test_access_log import LOG

urlpatterns = [path("b/<int:number>", lambda request, number: HttpResponse(), name="things")]
CALL = Call(1e9, "192.0.2.7", "", "GET", "/a", "", 200)


def refused(*calls: Call, together: bool = False, **rules: dict[str, Any]) -> dict[str, dict[str, int]]:
    made = [Rule.from_options(name, options) for name, options in rules.items()]
    return {name: dict(one.idents) for name, one in replay(made, calls, together=together).items()}


def test_a_log_counted_by_hand() -> None:
    """A window of the last minute, counted in a few lines of Python over the same log, says the same."""
    calls = read(str(LOG)).calls
    rules = [Rule(f"each{n}", f"{n}/min", algorithm="sliding_log", key="ip") for n in (60, 20, 10)]
    shares: list[float] = []
    found = replay(rules, calls, progress=shares.append)
    assert {name: (one.refused, len(one.idents)) for name, one in found.items()} == {
        "each60": (87, 2),
        "each20": (931, 50),
        "each10": (1729, 79),
    }
    assert shares == sorted(shares) and shares[0] == 0 < shares[-1] < 1
    for limit in (60, 20, 10):
        admitted: dict[str, list[float]] = {}
        again = 0
        for call in calls:
            mine = admitted.setdefault(call.address, [])
            if sum(at > call.at - 60 for at in mine[-limit:]) < limit:
                mine.append(call.at)
            else:
                again += 1
        assert found[f"each{limit}"].refused == again


def test_each_rule_by_itself_or_all_together() -> None:
    one, two = {"rate": "2/min", "key": "ip"}, {"rate": "3/min", "key": "ip"}
    calls = [CALL._replace(at=1e9 + number) for number in range(5)]
    ident = "ip:192.0.2.7"
    assert refused(*calls, one=one, two=two) == {"one": {ident: 3}, "two": {ident: 2}}
    assert refused(*calls, together=True, one=one, two=two) == {"one": {ident: 3}, "two": {}}
    shadow = {**one, "action": "shadow"}  # it records, and stands in nobody's way
    assert refused(*calls, together=True, one=shadow, two=two) == {"one": {ident: 3}, "two": {ident: 2}}


def test_who_is_counted_and_where() -> None:
    anna, search = CALL._replace(user="anna"), CALL._replace(scope="search", method="POST")
    once = {"rate": "1/min"}
    assert refused(anna, anna, CALL, one={**once, "key": "user"}) == {"one": {"user:anna": 1}}
    assert refused(anna, anna, CALL, CALL, one={**once, "key": "user_or_ip"}) == {
        "one": {"user:anna": 1, "ip:192.0.2.7": 1}
    }
    assert refused(anna, anna, CALL, one={**once, "key": "user+ip"}) == {"one": {"user+ip:user:anna+ip:192.0.2.7": 1}}
    assert refused(anna, CALL, one={**once, "key": "everyone"}) == {"one": {"everyone": 1}}
    assert refused(anna, anna, CALL, CALL, one={**once, "key": "ip", "audience": ["anonymous"]}) == {
        "one": {"ip:192.0.2.7": 1}
    }
    assert refused(search, search, CALL, CALL, one={**once, "key": "ip", "scopes": ["search"]}) == {
        "one": {"ip:192.0.2.7": 1}
    }
    assert refused(search, search, CALL, CALL, one={**once, "key": "ip", "methods": ["POST"]}) == {
        "one": {"ip:192.0.2.7": 1}
    }
    v6 = [CALL._replace(address=f"2001:db8::{number}") for number in (1, 2)]
    assert refused(*v6, one={**once, "key": "ip"}) == {"one": {"ip:2001:db8::/64": 1}}
    assert refused(*[CALL._replace(address="host.example")] * 2, one={**once, "key": "ip"}) == {
        "one": {"ip:host.example": 1}
    }


def test_the_scope_of_a_path_is_that_of_its_view(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    calls = [CALL, CALL._replace(path="/b/1"), CALL._replace(path="/b/2"), CALL._replace(path="/c")]
    all_of = {"rate": "1/min", "key": "ip"}
    assert refused(
        *calls, one=all_of, one_route={**all_of, "scopes": ["things"]}, nowhere={**all_of, "scopes": ["404"]}
    ) == {
        "one": {"ip:192.0.2.7": 3},
        "one_route": {"ip:192.0.2.7": 1},
        "nowhere": {"ip:192.0.2.7": 1},
    }


def test_what_an_answer_gives_back() -> None:
    calls = [CALL._replace(at=1e9 + number, status=status) for number, status in enumerate((304, 304, 200, 200))]
    rule = {"rate": "1/min", "key": "ip", "refund_on": ["304"]}
    assert refused(*calls, one=rule) == {"one": {"ip:192.0.2.7": 1}}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rate": "1/s", "events": ["message"]}, "its events"),
        ({"limit": 5, "algorithm": "concurrency", "events": ["connection"]}, "its events"),
        ({"rate": "1/s", "algorithm": "damper"}, "by chance"),
        ({"rate": "1/s", "unit": "bytes"}, "cost"),
        ({"rate": "1/s", "key": "session"}, "the session"),
        ({"rate": "1/s", "key": "tests.callers.key"}, "functions"),
        ({"rate": "1/s", "audience": ["group:vip"]}, "group:vip"),
    ],
)
def test_what_cannot_be_replayed(options: dict[str, Any], why: str) -> None:
    assert why in (why_not(Rule.from_options("one", options)) or "")
    assert why_not(Rule("one", "1/s", key="user_or_ip", audience=("anonymous",))) is None
