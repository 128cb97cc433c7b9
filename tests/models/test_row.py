"""What is wrong with a row is said once for each field."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from django_throttle.core.rate import MAX_LIMIT
from tests.models.test_rule import SOCKETS, row


@pytest.mark.parametrize("limit", [10**15, 10**18, 2**63, 10**40])
def test_a_limit_that_is_too_large_is_refused_by_one_message(limit: int) -> None:
    with pytest.raises(ValidationError) as caught:
        row(**{**SOCKETS, "limit": limit}).full_clean(validate_unique=False, validate_constraints=False)
    assert caught.value.message_dict == {"limit": [f"limit is a whole number from 1 to {MAX_LIMIT:,}, not {limit}"]}
