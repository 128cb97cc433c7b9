"""Which rules count a call, why the others do not, and which rule refuses before another one does."""

from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.coverage import stricter

NAMED, LOGIN = f"{__name__}.named", "django_throttle.contrib.logins.login_name"


RATES = (
    (
        "sliding_window",
        [("4/min", "5/min"), ("5/h", "5/min"), ("1/2s", "31/min")],
        [("5/min", "4/min"), ("1/2s", "30/min")],
    ),
    ("sliding_log", [("1/s", "60/min")], [("1/s", "59/min"), ("7/7s", "60/min")]),
    ("fixed_window", [("1/s", "60/min"), ("5/h", "5/min")], [("3/7s", "26/min")]),
    ("gcra", [("10/min", "700/h")], [("10/min", "500/h")]),
    ("token_bucket", [("10/min", "10/min")], []),
    ("damper", [("10/s", "700/min"), ("15/min", "1/s")], [("10/s", "500/min"), ("1/s", "15/min")]),
)


@pytest.mark.parametrize(("algorithm", "stricter_pairs", "others"), RATES)
def test_by_rate(algorithm: str, stricter_pairs: list[tuple[str, str]], others: list[tuple[str, str]]) -> None:
    for one, other in stricter_pairs + others:
        strict, loose = Rule("a", one, algorithm=algorithm), Rule("b", other, algorithm=algorithm)
        is_found = stricter(Snapshot([strict, loose]), loose) is not None
        assert is_found == ((one, other) in stricter_pairs), (one, other)


@pytest.mark.parametrize("algorithm", [name for name, row in ALGORITHMS.items() if row.is_bucket])
def test_a_bucket_is_compared_by_its_speed_and_its_size(algorithm: str) -> None:
    small, large, slow = (
        Rule(name, rate, algorithm=algorithm, burst=burst)
        for name, rate, burst in (("small", "10/min", 5), ("large", "10/min", 50), ("slow", "100/h", 5))
    )
    assert stricter(Snapshot([small, large]), large) == small
    assert stricter(Snapshot([small, large]), small) is None
    assert stricter(Snapshot([small, slow]), small) == slow


@pytest.mark.parametrize(
    ("options", "is_stricter"),
    [
        *(
            (options, True)
            for options in ({}, {"scopes": ["*"]}, {"scopes": ["se*"]}, {"events": ["request", "message"]})
        ),
        ({"rate": None, "rates": ["4/min", "1000/h"]}, True),
        *(({"scopes": [scope]}, False) for scope in ("search", "chat")),
        *(
            ({name: [value]}, False)
            for name, value in (("events", "message"), ("methods", "POST"), ("audience", "staff"))
        ),
        *((options, False) for options in ({"key": "ip"}, {"cost": 2}, {"action": "shadow"}, {"enabled": False})),
        ({"enforce_at": 2}, False),
    ],
    ids=str,
)
def test_by_what_they_count(options: dict[str, Any], is_stricter: bool) -> None:
    rule = Rule("b", "5/min", scopes=["search", "se*"])
    other = Rule("z", **{"rate": "4/min", "scopes": ["search", "se*"], **options})
    assert stricter(Snapshot([rule, other]), rule) == (other if is_stricter else None)


def test_slots_are_compared_by_their_number_and_neither_what_counts_refusals_nor_finer_windows() -> None:
    fine, finer = (Rule(rate, rate, resolution=2) for rate in ("1/2s", "90/min"))
    assert stricter(Snapshot([fine, finer]), finer) is None
    few, many = (Rule(f"{limit}", limit=limit, algorithm="concurrency") for limit in (2, 3))
    assert (stricter(Snapshot([few, many]), many), stricter(Snapshot([few, many]), few)) == (few, None)
    loose, strict = (Rule(f"{rate}/h", f"{rate}/h", count_denied=True) for rate in (9, 2))
    assert stricter(Snapshot([loose, strict]), loose) is None
