"""Tells once when the rules in settings are others than those that were told last, over all processes and restarts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from hashlib import blake2b
from threading import current_thread
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import Error, transaction

from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.rulebook import sources
from django_throttle.rulebook.current_rules import rules_read
from django_throttle.rulebook.history.lines import State, editing, keep, made, record

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange

logger = logging.getLogger("django_throttle")

_told: object = None  # the rules that this process has seen in the history


def connect() -> None:
    """Tell them once this process has read its rules, in the thread that reads them and over its connection."""
    rules_read.connect(_look, dispatch_uid="django_throttle.rulebook.history")


def tell_settings(rules: Mapping[str, Rule], using: str) -> bool:
    """Write what differs from the last line of settings, a line for each rule; False where nothing does."""
    lines = apps.get_model("django_throttle", "ThrottleChange")._base_manager.using(using)
    now: dict[str, State] = json.loads(json.dumps({name: rule.as_options() for name, rule in rules.items()}))
    last = lines.filter(kind="settings").order_by("-pk").first()
    then: dict[str, State] = (last.after if last else None) or {}
    names = [name for name in dict.fromkeys((*then, *now)) if then.get(name) != now.get(name)]
    if not names:
        return False
    version = blake2b(json.dumps(now, sort_keys=True).encode(), digest_size=8).hexdigest()
    once = f"settings:{last.pk if last else 0}:{version}"
    added, removed = sum(name not in then for name in names), sum(name not in now for name in names)
    words = f"RULES: {added} added, {len(names) - added - removed} changed, {removed} removed"
    with editing("settings", "settings"), transaction.atomic(using=using):
        if not record("settings", "", "changed", words, after=now, once=once, using=using):
            return False
        keep([_line(name, then.get(name), rules.get(name), now.get(name)) for name in names], using)
    return True


def _line(name: str, before: State | None, rule: Rule | None, after: State | None) -> ThrottleChange:
    action = "added" if before is None else "removed" if after is None else "changed"
    words = describe(rule) if rule is not None and before is None else "no longer in settings" if after is None else ""
    return made("rule", name, action, words, before=before, after=after)


def _look(**_: object) -> None:
    global _told
    rules = sources.from_settings().rules
    if rules is _told or current_thread().name != sources.READER_THREAD_NAME:
        return
    try:
        tell_settings(rules, sources.alias())
        _told = rules
    except Error as error:
        logger.info("the rules of settings could not be told to the history, the next reading tries again: %s", error)
