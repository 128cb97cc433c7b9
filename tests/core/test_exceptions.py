"""Errors of the core: what a store says when it does not answer."""

from __future__ import annotations

import pytest

from django_throttle.core.exceptions import WHY, Cause, RepeatCommand, StoreError


@pytest.mark.parametrize("cause", Cause)
def test_a_store_says_why_and_when_to_ask_again(cause: Cause) -> None:
    error = StoreError(cause)
    assert (str(error), error.cause, error.retry_after) == (WHY[cause], cause, 1.0)
    assert str(StoreError(cause, "no route to host")) == "no route to host"
    assert RepeatCommand(cause).cause is cause
