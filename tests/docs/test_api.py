"""The reference of the Python API has every public name, and its examples run."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import getdoc

import pytest
from django.dispatch import Signal

from tests.pages import DOCS, shown

PAGE = (DOCS / "reference" / "api.rst").read_text(encoding="utf-8")
MODULES = dict.fromkeys(re.findall(r"^\.\. (?:auto|current)module:: (\S+)", PAGE, re.MULTILINE))
LISTED = {
    name: re.findall(r"^\.\. auto(?:class|function|exception|data):: (\w+)", part, re.MULTILINE)
    for name, part in zip(
        MODULES, re.split(r"^\.\. (?:auto|current)module::", PAGE, flags=re.MULTILINE)[1:], strict=True
    )
}
# By the design these are kept, whether a module lists its names or not.
KEPT = {
    "django_throttle.core": {"Rate", "Rule", "Decision"},
    "django_throttle.limiter": {"Limiter"},
    "django_throttle.tasks": {"throttled_task"},
}


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there_and_documented(module: str) -> None:
    found = import_module(module)
    assert {*getattr(found, "__all__", ()), *KEPT.get(module, ())} <= {*LISTED[module]}
    for name in LISTED[module]:
        value = getattr(found, name)
        assert getdoc(value) or not callable(value), name


def test_every_signal_is_there() -> None:
    signals = import_module("django_throttle.signals")
    assert LISTED[signals.__name__] == [name for name, value in vars(signals).items() if isinstance(value, Signal)]


@pytest.mark.django_db
@pytest.mark.parametrize("code", shown("api"), ids=lambda code: code.split("\n")[-2].strip())
def test_the_examples_run(code: str) -> None:
    exec(code, {"__name__": "shown"})
