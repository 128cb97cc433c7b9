"""The key that a caller has proved to hold: what authentication accepted, never what a header says."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Model

from django_throttle.conf import conf
from django_throttle.core.key import ident_tag, secret_bytes
from django_throttle.identity.idents import tagged, text_of


def api_key(accepted: Any) -> str | None:
    """The ident of what authentication put in ``auth``: the row of a model, a text, a number; None for anything else.

    A session, a token that is made anew every few minutes, or True, says only that there is a user. The key itself is
    a secret, and idents are told to receivers of signals: so the ident has a keyed hash of it.
    """
    found = tagged("api_key", _name(accepted))
    return found and f"api_key:{ident_tag(found, secret_bytes(conf().KEY_SECRET))}"


def _name(accepted: Any) -> str | None:
    if isinstance(accepted, Model):
        row = accepted.pk
        # A text is the key itself; the number of a row is one in every table.
        return row if row is None or isinstance(row, str) else f"{accepted._meta.label_lower}:{row}"
    if isinstance(accepted, (str, int, UUID)) and not isinstance(accepted, bool):
        return text_of(accepted)
    return None
