"""The plan of a caller decides its limit, at every door and in every store, and what was already used still counts."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.db.models import IntegerChoices

from django_throttle import call_facts
from django_throttle.call_facts import Facts
from django_throttle.core import Override, Rule
from django_throttle.rulebook import Snapshot
from tests import doors
from tests.callers import SameByEveryKey
from tests.inside import unsaid

enforce = pytest.fixture(doors.enforcer)
HERE = "tests.rulebook.test_plans."
SAYS: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(call_facts, monkeypatch)


def tier(subject: Any) -> Any:
    SAYS.append(subject)
    if isinstance(subject, Exception):
        raise subject
    return subject


async def later(subject: Any) -> str:
    return "pro"


def limit(rule: Rule, *traits: str, subject: Any = None, overrides: tuple[Override, ...] = ()) -> int | None:
    facts = Facts("search", rule.events, SameByEveryKey(*traits, subject=subject))
    (charge,) = Snapshot([rule], overrides).match(facts)
    return charge.rule.limit


API = Rule("api", "10/min", plans={"group:premium": "100/min", "staff": "50/min", "tenant:acme": {"rate": "70/min"}})


def test_the_first_that_matches_holds() -> None:
    assert [limit(API, *traits) for traits in ((), ("staff",), ("tenant:acme",), ("staff", "group:premium"))] == [
        *(10, 50, 70, 100)
    ]
    assert limit(Rule("open", limit=3, algorithm="concurrency", plans={"staff": 20}), "staff") == 20
    assert limit(API, "staff", overrides=(Override(subject="user:1", effect="multiply", factor=3),)) == 150
    assert limit(API.as_shadow(), "staff") == 50


BY_FUNCTION = Rule("api", "10/min", plans=[f"{HERE}tier{one}/min" for one in (":pro = 100", ":7 = 70", " = 20")])


@pytest.mark.parametrize(("said", "found"), [("pro", 100), (7, 70), ("basic", 20), ("", 10), (None, 10), (False, 10)])
def test_a_function_names_the_plan_and_is_called_once(said: Any, found: int) -> None:
    SAYS.clear()
    assert limit(BY_FUNCTION, subject=said) == found
    assert len(SAYS) == (said is not None)


NAMED = Rule("api", "10/min", plans={f"{HERE}tier:pro": "100/min"})
IS_PRO = Rule("api", "10/min", plans={f"{HERE}tier": "100/min"})
ASYNC = Rule("api", "10/min", plans={f"{HERE}later": "100/min"})


class Level(Enum):
    PRO, NONE, LIST = "pro", None, ["pro"]


class Trap(str):  # noqa: SLOT000
    """It fails however it is looked at."""

    def __str__(self) -> str:
        raise RuntimeError("oh")

    __bool__ = __repr__ = __str__  # type: ignore[assignment]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("rule", "said", "logged"),
    [
        (
            NAMED,
            True,
            "tier returns True: callers have no plan by it under rule 'api'; it has to return a text such as",
        ),
        (BY_FUNCTION, ["pro"], "it has to return a text such as 'pro', or None"),
        (IS_PRO, str, "it has to return True or False"),
        (ASYNC, "x", "it has to return True or False, and must not be async"),
        (NAMED, ValueError("oh"), "tier raised this exception"),
        *((rule, Trap("pro"), "callers have no plan by it under rule 'api'") for rule in (NAMED, IS_PRO, BY_FUNCTION)),
        *((NAMED, said, "under rule 'api'") for said in (Level.LIST, User.objects.extra(where=["no_such_column = 1"]))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_that_is_none_or_fails_is_logged_once_and_lifts_no_limit(
    rule: Rule, said: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        assert [limit(rule, subject=said), limit(rule, subject=said)] == [10, 10]
    (line,) = caplog.messages
    assert logged in f"{line}{caplog.text}"
    with pytest.raises(SynchronousOnlyOperation):  # the door asks again in a thread
        limit(BY_FUNCTION, subject=SynchronousOnlyOperation())


@pytest.mark.parametrize(
    ("said", "named", "is_pro"),
    [(Level.PRO, 100, 100), (IntegerChoices("Size", "L")(1), 10, 100), (Level.NONE, 10, 10)],
)
def test_a_member_of_an_enum_is_its_value(said: Any, named: int, is_pro: int, caplog: pytest.LogCaptureFixture) -> None:
    assert (limit(NAMED, subject=said), limit(IS_PRO, subject=said)) == (named, is_pro)
    assert caplog.messages == []
