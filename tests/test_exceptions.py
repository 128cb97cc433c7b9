"""Errors: what each is besides, what it says, and that it comes out of a worker's process as it went in."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from django_throttle import exceptions
from django_throttle.core import Decision
from django_throttle.exceptions import PublishRefused, Refused, ThrottleError

OURS = [one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, Exception)]


@pytest.mark.parametrize("error", OURS)
def test_one_clause_catches_all(error: type[Exception]) -> None:
    assert issubclass(error, ThrottleError)
    assert issubclass(error, ValueError) is error.__name__.startswith("Invalid")


@pytest.mark.parametrize(
    "error",
    [
        Refused(Decision(allowed=False, retry_after=2.5)),
        PublishRefused(Decision(allowed=False, retry_after=None), "room", 7),
    ],
)
def test_a_refusal_comes_back_from_another_process(error: Any) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (vars(copy), str(copy)) == (vars(error), str(error))
