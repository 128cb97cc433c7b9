"""What tests of records share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_throttle.recording import own_records


@pytest.fixture(autouse=True)
def _nothing_recorded() -> Iterator[None]:
    own_records.forget()
    yield
    own_records.forget()
