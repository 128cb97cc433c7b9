"""What clients and operators read is translated, and catalogs are whole."""

from __future__ import annotations

import io
import re
from gettext import GNUTranslations
from pathlib import Path
from typing import Any

import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from django.test import RequestFactory, override_settings
from django.utils import translation

from django_throttle.core import Decision, Outcome, Reason, Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.decision import conclude
from django_throttle.core.key import AUDIENCE_KINDS, KEY_KINDS
from django_throttle.core.options import GROUPS, table
from django_throttle.http.refusal import refusal
from tests.lab.languages import LANGUAGES, PACKAGE, PLACE, messages, po_file, read_catalog


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalog_compiles_and_has_nothing_obsolete_or_fuzzy(language: str) -> None:
    """Texts that are not translated yet are English; ``make languages`` lists them."""
    found = read_catalog(language)
    assert [entry.id for entry in found if entry.fuzzy and entry.id] == []
    assert [*found.obsolete] == []
    with po_file(language).with_suffix(".mo").open("rb") as file:
        compiled = GNUTranslations(file)
    for context, text, plural, translations in messages(language):
        if not all(translations):
            continue
        key = f"{context}\x04{text}" if context else text
        numbers = (compiled.ngettext(key, plural, count) for count in range(1, 9))
        assert ({*numbers} if plural else {compiled.gettext(key)}) == {*translations}, f"make messages: {text}"
        assert sorted(PLACE.findall(translations[-1])) == sorted(PLACE.findall(plural or text)), text
        for said in translations:  # a minute needs no number
            assert {*PLACE.findall(said)} in ({*PLACE.findall(plural or text)}, {*PLACE.findall(text)}), text
            assert re.findall(r"<[^>]*>", said) == re.findall(r"<[^>]*>", plural or text), text


def test_every_text_of_the_options_is_in_the_catalogs() -> None:
    """The core knows no gettext, so that its texts are listed for ``make messages``."""
    rows = [*table(Rule).values(), *ALGORITHMS.values(), *KEY_KINDS.values()]
    choices = [choice for row in table(Rule).values() for choice in row.choices.values()]
    named = ("label", "help", "override", "wanted", "words")
    texts = {getattr(one, name, "") for one in [*rows, *choices] for name in named} | {*GROUPS, *AUDIENCE_KINDS}
    texts = {text for text in texts if isinstance(text, str)}
    texts |= {row.label or row.name.replace("_", " ") for row in table(Rule).values()}
    texts |= {kind.words.removeprefix("each ") for kind in KEY_KINDS.values()}
    listed = (PACKAGE / "templates" / "django_throttle" / "options.txt").read_text(encoding="utf-8")
    assert {*re.findall(r'{{ _\("(.*)"\) }}', listed)} == texts - {""}


def refused(**options: Any) -> Decision:
    given = {"reason": Reason.EXCEEDED, "window": 60.0} | options
    return conclude((Outcome("api", "ip:192.0.2.1", False, 10, 0, 5.0, 30.0, **given),))


ARABIC = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgctxt "language of these texts"
msgid "en"
msgstr "ar"

msgid "Too many requests"
msgstr "طلبات كثيرة جدا"
"""


@pytest.mark.row("R05")
def test_a_page_says_the_language_that_it_is_in(tmp_path: Path) -> None:
    """Which is English where nobody has translated it; a site's own words may be written from right to left."""
    ours = {"Accept": "text/html"}, refused()._replace(retry_after=7777.0)
    with translation.override("ar"):
        page = refusal(RequestFactory().get("/", headers=ours[0]), refused())
        assert b'<html lang="en">' in page.content and b"Too many requests" in page.content
        folder = tmp_path / "ar" / "LC_MESSAGES"
        folder.mkdir(parents=True)
        with (folder / "django.mo").open("wb") as file:
            write_mo(file, read_po(io.StringIO(ARABIC)))
        with override_settings(LOCALE_PATHS=[tmp_path]), translation.override("ar"):
            page = refusal(RequestFactory().get("/", headers=ours[0]), ours[1])
    assert '<html lang="ar" dir="rtl">' in page.content.decode() and "طلبات كثيرة جدا" in page.content.decode()
