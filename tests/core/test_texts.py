"""Texts are English values that keep their pattern and what was put into it."""

from __future__ import annotations

import json
import pickle

from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.texts import gettext_lazy, ngettext_lazy, text_of


def test_a_text_is_english_and_keeps_what_another_language_needs() -> None:
    text = gettext_lazy("each counting {cost:,}", cost=1000)
    assert text == "each counting 1,000" and type(str(text)) is str
    assert (text.pattern, text.plural, text.values) == ("each counting {cost:,}", "", ((), {"cost": 1000}))
    assert json.dumps(text) == '"each counting 1,000"'
    placed = gettext_lazy("tolerated up to {:,g} times as much", 2.5)
    assert placed == "tolerated up to 2.5 times as much" and placed.values == ((2.5,), {})


def test_a_plural_goes_by_the_number() -> None:
    one, many = (ngettext_lazy("{count:,} request", "{count:,} requests", count) for count in (1, 1000))
    assert (one, many) == ("1 request", "1,000 requests")
    assert (one.number, many.number) == (1, 1000) and many.plural == "{count:,} requests"
    assert ngettext_lazy("{seconds} second", "{seconds} seconds", 2, seconds=0.5) == "0.5 seconds"


def test_an_error_has_its_text() -> None:
    fault = gettext_lazy("there is no option {option!r}", option="rat")
    plain, named = InvalidRule(fault, "rate"), InvalidRule(fault, rule="api")
    assert text_of(plain) is fault and str(plain) == "there is no option 'rat'"
    assert str(named) == "rule 'api': there is no option 'rat'" and named.fault is fault
    assert text_of(ValueError("no text")) == "no text" and text_of(ValueError()) == ""
    copy = pickle.loads(pickle.dumps(named))
    assert str(copy) == str(named) and text_of(copy).pattern == "rule {rule!r}: {fault}"  # type: ignore[attr-defined]
