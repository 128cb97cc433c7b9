"""Rules in words, what is wrong with one, and what commands print are said in the language that is in force."""

from __future__ import annotations

import json
import logging
from io import StringIO
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.template.loader import render_to_string
from django.test import override_settings
from django.utils import translation

from django_throttle.core import Override, Rule
from django_throttle.core.descriptions import describe, who
from django_throttle.core.overrides import describe_effect
from django_throttle.core.texts import gettext_lazy, in_sentence, sentences
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.explain import Explanation, in_short
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleCandidate, ThrottleChange, ThrottleRule
from django_throttle.recording import own_records
from django_throttle.recording.overview import overview
from django_throttle.rulebook import sources
from django_throttle.rulebook.coverage import Call
from django_throttle.stores import MemoryStore
from django_throttle.translated import capitalised, gettext, joined, ngettext, translated, written
from tests.recording.calls import call

LANGUAGES = ("en", "de", "es", "fr", "ja")
PLANNED = Rule("api", "100/min", key="user", plans={"group:premium": "1000/min"})
SAID = {
    "en": "each user: 100 requests per minute, group premium 1,000",
    "de": "jeder Benutzer: 100 Anfragen je Minute, Gruppe premium 1.000",
    "es": "cada usuario: 100 solicitudes cada minuto, grupo premium 1\xa0000",
    "fr": "chaque utilisateur : 100 requêtes par minute, groupe premium 1\xa0000",
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


@pytest.mark.parametrize("key", ["user", "ip", "tenant", "user+ip", "shop.limits.region"])
def test_whom_a_rule_counts_is_the_subject_of_its_sentence_in_german(key: str) -> None:
    with translation.override("de"):
        said = translated(KnownCaller("session:1").why_not(key))
        assert said.startswith(f"bei ihr hat {translated(who(key))} ein eigenes Budget, session:1 aber nicht:")


def test_a_call_of_any_gender_is_said_in_german() -> None:
    rule = Rule("a", "5/min", cost=2, enforce_at=2.5, scopes=["a", "b"])
    with translation.override("de"):
        assert "jeder Aufruf zählt 2, geduldet bis zum 2,5-Fachen" in translated(describe(rule))
        for event, asked in (("message", "Eine Nachricht"), ("request", "Eine Anfrage"), ("task", "Eine Aufgabe")):
            told = Explanation(Call("", "", event), KnownCaller("ip:192.0.2.1"))
            said = f"{asked} von ip:192.0.2.1 würde zugelassen, da keine Regel gilt, die ablehnt."
            assert translated(told.sentence) == said


def test_no_space_stands_between_japanese_sentences() -> None:
    with translation.override("ja"):
        page = render_to_string("django_throttle/429.html", {"status": 429, "code": "blocked", "seconds": None})
    assert "。誤り" in page and "。 " not in page


def test_all_parts_of_a_description_are_translated() -> None:
    options: dict[str, Any] = {"key": "tenant+user", "algorithm": "leaky_bucket", "burst": 20, "scopes": ["a", "b"]}
    words = describe(Rule("q", "5/10m", action="delay", max_delay=1.5, audience=["staff", "group:editors"], **options))
    found = in_every_language(words)
    assert found["en"] == words
    assert found["de"] == (
        "jede Kombination aus Mandant und Benutzer: 5 Anfragen je 10 Minuten, gleichmäßig verteilt, bis zu 20 warten "
        "höchstens 1,5 Sekunden, bis sie an der Reihe sind, in a und b zusammen, nur für Mitarbeiter und Gruppe editors"
    )
    assert found["ja"].startswith("テナント、ユーザーの組み合わせごと: 10 分あたり 5 リクエスト、等間隔")
    sockets = {"limit": 1, "algorithm": "concurrency", "events": ["connection"], "at_limit": "evict_oldest"}
    assert in_every_language(describe(Rule("s", **sockets)))["fr"] == (
        "chaque utilisateur ou adresse : 1 WebSocket ouvert à la fois, un nouveau WebSocket ferme le plus ancien"
    )


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, ("1 Anfrage je Minute", "1 solicitud cada minuto", "1 requête par minute", "1 分あたり 1 リクエスト")),
        (2, ("2 Anfragen je Minute", "2 solicitudes cada minuto", "2 requêtes par minute", "1 分あたり 2 リクエスト")),
    ],
)
def test_plurals(count: int, said: tuple[str, ...]) -> None:
    found = in_every_language(describe(Rule("api", f"{count}/min", key="everyone")))
    assert tuple(found[language].partition(": ")[2] for language in LANGUAGES[1:]) == said


def test_one_call_of_a_rule_is_one_call() -> None:
    own_records.forget()  # what other tests of this process have recorded
    store = MemoryStore()
    call(store, [Rule("api", "3/hour", algorithm="sliding_log")], "user:1", 1)
    found = overview(store, ["api"])
    said = in_every_language(found.rules[0].in_words)
    assert said["en"].startswith("'api': 1 call, 0.0") and said["de"].startswith("'api': 1 Aufruf, ")
    assert said["fr"].startswith("'api' : 1 appel, ") and said["fr"].endswith(" au cours des dernières 24 heures.")
    assert " 1 Entscheidung in " in in_every_language(found.store_in_words)["de"]


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


def test_numbers_have_the_separators_of_the_language_and_what_is_typed_has_not() -> None:
    with translation.override("de"):
        assert gettext("{number:,}", number=1234567) == "1.234.567"
        assert gettext("{share:.1%} {half:g} {plain}", share=0.125, half=0.5, plain=0.5) == "12,5\xa0% 0.5 0.5"
        assert (written(1234.5, ",.1f"), written(0.5, ".0%")) == ("1.234,5", "50\xa0%")
    with translation.override("it"):  # all of it is English, though Django itself has a word for "group"
        assert translated(describe(PLANNED)) == SAID["en"]


def test_labels_sentences_and_overrides() -> None:
    label = gettext_lazy("{title} belongs to {owners} only", title="strict", owners=in_sentence("Sliding window"))
    assert in_every_language(label)["en"] == "strict belongs to sliding window only"
    assert in_every_language(label)["de"] == "strict gehört nur zu Gleitendes Fenster"
    both = sentences([gettext_lazy("What was already used still counts."), gettext_lazy("This names nobody.")])
    assert in_every_language(both)["ja"] == "使用量は引き継がれます。該当する対象がありません。"
    effect = describe_effect(Override(subject="user:1", effect="multiply", factor=2.5, rules=("api", "chat")))
    assert in_every_language(effect)["de"] == "2,5 × das Limit von api und chat"
    assert in_every_language(in_short(7000.0))["fr"] == "2 h"
    with translation.override("de"):
        assert joined(["Eins.", "", "Zwei."]) == "Eins. Zwei." and capitalised("jeder API-Schlüssel")[0] == "J"
        assert ngettext("{count} day", "{count} days", 2) == "2 Tagen" and translated(7) == "7"


@pytest.mark.django_db
def test_what_machines_read_is_english_in_every_language(caplog: pytest.LogCaptureFixture) -> None:
    with translation.override("de"), caplog.at_level(logging.DEBUG):
        row = ThrottleRule.of(PLANNED)
        row.save()
        candidate = ThrottleCandidate.of(row, "api", "ada")
        assert candidate.as_json()["candidate"] == SAID["en"] and json.dumps(row.meaning) == json.dumps(SAID["en"])
        assert translated(row.meaning) == SAID["de"]
    told = ThrottleChange.objects.get(kind="rule", name="api")
    assert told.words == SAID["en"] and type(told.words) is str
    assert not [record for record in caplog.records if "Anfragen" in record.getMessage()]


@pytest.mark.django_db
def test_the_form_says_what_is_wrong_in_the_language_of_its_reader() -> None:
    row = ThrottleRule.of(PLANNED)
    row.cost = 200
    with translation.override("fr"), pytest.raises(ValidationError) as wrong:
        row.full_clean()
    assert wrong.value.message_dict["cost"] == ["Un appel coûte 200, plus que les 100 que la règle permet à la fois"]
    assert row.fault == "one call costs 200, more than the 100 that the rule allows at once"
    for values, said in (
        ({"max_queue": 3}, "„Längste Warteschlange“ gehört nur zu Leaky-Bucket"),
        ({"enforce_at": 0.5}, "„Ablehnen ab“ muss eine Zahl von 1 bis 100 sein, nicht 0.5"),
        ({"algorithm": "fixed_window", "burst": 3}, "„Burst“ gehört nur zu Token-Bucket, Leaky-Bucket und GCRA"),
    ):
        with translation.override("de"), pytest.raises(ValidationError) as wrong:
            ThrottleRule(name="api", rate="5/min", **values).full_clean()
        assert wrong.value.messages == [said]


@pytest.mark.django_db
def test_commands_speak_the_language_of_the_site() -> None:
    ThrottleRule.of(PLANNED).save()
    with override_settings(LANGUAGE_CODE="de", DJANGO_THROTTLE={}), translation.override("de"):
        out = StringIO()
        call_command("throttle_rules", "list", stdout=out)
        assert SAID["de"] in out.getvalue() and "Datenbank" in out.getvalue()
        with pytest.raises(CommandError, match="nichts wurde beendet, da nicht in Kraft: 99"):
            call_command("throttle_override", "end", "99")
        out = StringIO()
        call_command("throttle_rules", "log", "--json", stdout=out)
        assert json.loads(out.getvalue())[0]["words"] == SAID["en"]
