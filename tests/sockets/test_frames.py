"""Frames that a site makes: text, bytes, or anything that JSON can say."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from django.utils.translation import gettext_lazy

from django_throttle.sockets.frames import encoded


class TestWhatIsSent:
    def test_text_and_bytes_as_they_are_and_the_rest_as_json(self) -> None:
        assert (encoded("as it is"), encoded(b"\x00"), encoded(gettext_lazy("later"))) == ("as it is", b"\x00", "later")
        number, moment = UUID(int=7), datetime(2026, 11, 20, 12, tzinfo=UTC)
        payload = {"text": gettext_lazy("later"), "id": number, "price": Decimal("1.50"), "at": moment}
        assert json.loads(encoded(payload)) == {
            "text": "later", "id": str(number), "price": "1.50", "at": "2026-11-20T12:00:00Z",
        }  # fmt: skip
