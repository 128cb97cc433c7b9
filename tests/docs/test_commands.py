"""The page of commands has each of them, with all of its options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest
from django.core.management import BaseCommand, get_commands, load_command_class

from tests.pages import DOCS

PAGE = (DOCS / "reference" / "commands.rst").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^``(\w+(?: [a-z]+)?)\b(.*(?:\n {3,}.*)*)", PAGE, re.MULTILINE))
OURS = [name for name, app in get_commands().items() if app == "django_throttle"]


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings if text.startswith("--")}


DJANGOS = options(BaseCommand().create_parser("manage.py", "any"))


def typed(name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A command, or each of what it can do, and the parser of its options."""
    parser = load_command_class("django_throttle", name).create_parser("manage.py", name)
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if below:
        yield from ((f"{name} {word}", each) for word, each in below[0].choices.items())
    else:
        yield name, parser


@pytest.mark.parametrize("name", OURS)
def test_a_command_is_there_with_its_options(name: str) -> None:
    for line, parser in typed(name):
        assert options(parser) - DJANGOS - {*re.findall(r"--[a-z-]+", ROWS[line])} == set(), line


@pytest.mark.parametrize("name", OURS)
def test_a_command_says_what_it_and_each_of_its_options_is_for(name: str) -> None:
    for line, parser in typed(name):
        assert parser.description, line
        assert [action.dest for action in parser._actions if not action.help] == [], line


def test_nothing_else_is_there() -> None:
    assert {line.partition(" ")[0] for line in ROWS} == {*OURS, "check"}
