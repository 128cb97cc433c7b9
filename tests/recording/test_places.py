"""Names and tags under which records are kept."""

from __future__ import annotations

from typing import Any

from django_throttle.observe.reports import ident_for_logs
from django_throttle.recording.places import HOURS, MINUTES, ranking_name, rule_tag, tag_of


def test_names_hold_no_character_of_a_rule() -> None:
    hostile = ["", "a{b}:c*", "\x00\n", "\ud800", "x" * 10_000, "<script>"]
    names = {make(rule, 7200) for rule in hostile for make in (MINUTES.name, HOURS.name, ranking_name)}
    assert len(names) == 3 * len(hostile)
    assert all(name.startswith("rec:") and name.replace(":", "").isalnum() for name in names)
    assert len(rule_tag("a")) == 12


def test_a_tag_begins_as_in_the_log_and_is_the_ident_where_a_setting_says_so(settings: Any) -> None:
    assert tag_of("user:1")[:8] == ident_for_logs("user:1")
    assert len(tag_of("user:1")) == 16
    settings.DJANGO_THROTTLE = {"RECORD_IDENTS": True}
    assert tag_of("user:1") == "user:1"
