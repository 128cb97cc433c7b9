"""What rules mean and what is wrong with them is said in the language in force, and catalogs are whole."""

import re
from gettext import GNUTranslations
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import translation

from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.models import ThrottleRule
from django_throttle.rulebook import sources
from django_throttle.translated import translated
from tests.lab.languages import APPS, PACKAGE, PLACE, messages, po_file, read_catalog
from tests.lab.languages import LANGUAGES as CATALOGS

LANGUAGES = ("en", "de", "es", "fr", "ja")
PLANNED = Rule("api", "100/min", key="user", plans={"group:premium": "1000/min"})
SAID = {
    "en": "each user: 100 requests per minute, group premium 1,000",
    "de": "jeder Benutzer: 100 Anfragen je Minute, Gruppe premium 1.000",
    "es": "cada usuario: 100 solicitudes cada minuto, grupo premium 1\xa0000",
    "fr": "chaque utilisateur\xa0: 100 requêtes par minute, groupe premium 1\xa0000",
    "ja": "ユーザーごと: 1 分あたり 100 リクエスト、グループ premium: 1,000",
}


def in_every_language(text: object) -> dict[str, str]:
    found = {}
    for language in LANGUAGES:
        with translation.override(language):
            found[language] = translated(text)
    return found


def test_one_description_is_said_in_the_language_of_each_reader() -> None:
    assert in_every_language(describe(PLANNED)) == SAID


def test_what_is_wrong_is_translated_and_the_exception_is_not() -> None:
    with translation.override("de"):
        with pytest.raises(InvalidRule) as wrong:
            Rule("api", "5/min", cost=9)
        with pytest.raises(InvalidRate) as typed:
            sources.Rule("api", "5/mi")
    assert str(wrong.value) == "rule 'api': one call costs 9, more than the 5 that the rule allows at once"
    found = in_every_language(wrong.value)
    assert found["en"] == str(wrong.value)
    assert found["de"] == "Regel 'api': ein Aufruf kostet 9, mehr als die 5, die die Regel auf einmal erlaubt"
    assert in_every_language(typed.value)["es"] == (
        "'mi' no es una unidad de tiempo: escriba una tasa como 100/min, 5/10m, 10/s o 1000/day"
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "values", "said"),
    [
        ("fr", {"cost": 200}, "Un appel coûte 200, plus que les 5 que la règle permet à la fois"),
        ("de", {"max_queue": 3}, "„Längste Warteschlange“ gehört nur zu Leaky-Bucket und Gleichzeitigkeit"),
        ("de", {"enforce_at": 0.5}, "„Ablehnen ab“ muss eine Zahl von 1 bis 100 sein, nicht 0.5"),
    ],
)
def test_the_form_says_what_is_wrong_in_the_language_of_its_reader(language: str, values: Any, said: str) -> None:
    with translation.override(language), pytest.raises(ValidationError) as wrong:
        ThrottleRule(name="api", rate="5/min", options=values).full_clean()
    assert wrong.value.messages == [said]


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("language", CATALOGS)
def test_a_catalog_compiles_and_has_nothing_obsolete_or_fuzzy(language: str, app: str) -> None:
    """Texts that are not translated yet are English; ``make languages`` lists them."""
    found = read_catalog(language, PACKAGE / app)
    assert [entry.id for entry in found if entry.fuzzy and entry.id] == []
    assert [*found.obsolete] == []
    with po_file(language, PACKAGE / app).with_suffix(".mo").open("rb") as file:
        compiled = GNUTranslations(file)
    for context, text, plural, translations in messages(language, PACKAGE / app):
        if not all(translations):
            continue
        key = f"{context}\x04{text}" if context else text
        numbers = (compiled.ngettext(key, plural, count) for count in range(1, 9))
        assert ({*numbers} if plural else {compiled.gettext(key)}) == {*translations}, f"make messages: {text}"
        assert sorted(PLACE.findall(translations[-1])) == sorted(PLACE.findall(plural or text)), text
        for said in translations:  # a minute needs no number
            assert {*PLACE.findall(said)} in ({*PLACE.findall(plural or text)}, {*PLACE.findall(text)}), text
            assert re.findall(r"<[^>]*>", said) == re.findall(r"<[^>]*>", plural or text), text
