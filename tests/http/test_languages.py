"""What clients and operators read is translated, and catalogs are whole."""

from __future__ import annotations

import re
from gettext import GNUTranslations

import pytest

from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.key import AUDIENCE_KINDS, KEY_KINDS
from django_throttle.core.options import GROUPS, table
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
