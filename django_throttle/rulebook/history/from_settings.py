"""Recording of new rules in settings. Among all processes and restarts, each version is recorded once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from hashlib import blake2b
from threading import current_thread
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import Error, transaction
from django.dispatch import receiver

from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.rulebook import sources
from django_throttle.rulebook.current_rules import rules_read
from django_throttle.rulebook.history.lines import State, editing, new_line, record, save_lines

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange

logger = logging.getLogger("django_throttle")

_recorded: object = None  # rules that this process has found in the history


def record_settings(rules: Mapping[str, Rule], using: str) -> bool:
    """Write a line for each rule that differs from the last line of settings. Return False if none differs."""
    lines = apps.get_model("django_throttle", "ThrottleChange")._base_manager.using(using)
    current: dict[str, State] = json.loads(json.dumps({name: rule.as_options() for name, rule in rules.items()}))
    last = lines.filter(kind="settings").order_by("-pk").first()
    former: dict[str, State] = (last.after if last else None) or {}
    names = [name for name in dict.fromkeys((*former, *current)) if former.get(name) != current.get(name)]
    if not names:
        return False
    version = blake2b(json.dumps(current, sort_keys=True).encode(), digest_size=8).hexdigest()
    once = f"settings:{last.pk if last else 0}:{version}"
    added, removed = sum(name not in former for name in names), sum(name not in current for name in names)
    words = f"RULES: {added} added, {len(names) - added - removed} changed, {removed} removed"
    with editing("settings", "settings"), transaction.atomic(using=using):
        if not record("settings", "", "changed", words, after=current, once=once, using=using):
            return False
        save_lines([_line(name, former.get(name), rules.get(name), current.get(name)) for name in names], using)
    return True


def _line(name: str, before: State | None, rule: Rule | None, after: State | None) -> ThrottleChange:
    action = "added" if before is None else "removed" if after is None else "changed"
    words = describe(rule) if rule is not None and before is None else "no longer in settings" if after is None else ""
    return new_line("rule", name, action, words, before=before, after=after)


@receiver(rules_read, dispatch_uid="django_throttle.rulebook.history")
def _record_settings(**_: object) -> None:
    """Record rules of settings after the first reading, in the reader's thread and over its connection."""
    global _recorded
    rules = sources.from_settings().rules
    if rules is _recorded or current_thread().name != sources.READER_THREAD_NAME:
        return
    try:
        record_settings(rules, sources.alias())
        _recorded = rules
    except Error as error:
        logger.info("the history may lack new rules of settings, the next reading tries again: %s", error)
