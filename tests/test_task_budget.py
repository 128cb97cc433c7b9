"""What the runs of a task are charged to."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.exceptions import InvalidCost
from django_throttle.tasks import throttled_task


async def awaited() -> None: ...


@pytest.mark.parametrize(
    "wrong", [{"rule": ""}, {"rule": 1}, {"ident": 1}, {"ident": awaited}, {"cost": awaited}, {"max_put_off": -1}]
)
def test_what_it_is_told_makes_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        throttled_task(**({"rule": "reports"} | wrong))
    with pytest.raises(InvalidCost):
        throttled_task("reports", cost=-1)
