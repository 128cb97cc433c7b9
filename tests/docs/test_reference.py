"""The reference pages have all that the code has, their tables are current, and their examples run."""

import argparse
import re
from importlib import import_module
from inspect import getdoc, isfunction

import pytest
from django.core.management import BaseCommand, get_commands, load_command_class
from django.dispatch import Signal

from django_throttle import conf
from django_throttle.core import Rule, options
from django_throttle.core.key import AUDIENCES, KEY_KINDS
from django_throttle.core.rule import OPTIONS
from docs import algorithms, scale, scripts
from docs import options as docs_options
from tests.lab.benchmarks.__main__ import GROWTH
from tests.pages import DOCS, block, run, shown

REFERENCE = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.rst")}
PARTS = re.split(r"^\.\. (?:auto|current)module:: (\S+)", REFERENCE["api"], flags=re.MULTILINE)[1:]
NAMES = re.compile(r"^\.\. auto(?:class|function|exception|data):: (\w+)", re.MULTILINE)
LISTED = {module: NAMES.findall(part) for module, part in zip(PARTS[::2], PARTS[1::2], strict=True)}
# These list names for the package itself too; of them only what pages use is for sites.
OWN = {f"django_throttle.{name}" for name in ("agent", "identity", "models", "observe", "rulebook", "rulebook.history")}
# Public by the design, whether a module lists its names or not.
PUBLIC = {
    "django_throttle.core": {"Rate", "Rule", "Decision"}, "django_throttle.limiter": {"Limiter"},
    "django_throttle.stores": {"MemoryStore", "RedisStore", "get_store"},
    "django_throttle.drf": {"RuleThrottle", "AnonRateThrottle", "UserRateThrottle", "ScopedRateThrottle"},
    "django_throttle.channels": {"ThrottledConsumerMixin", "ThrottleMiddleware"},
    "django_throttle.middleware": {"ThrottleMiddleware"}, "django_throttle.decorators": {"throttle"},
    "django_throttle.tasks": {"throttled_task"},
}  # fmt: skip
COMMANDS = [name for name, app in get_commands().items() if app.startswith("django_throttle")]


@pytest.mark.parametrize("module", LISTED)
def test_every_public_name_is_there_and_documented(module: str) -> None:
    found = import_module(module)
    offered = () if module in OWN else getattr(found, "__all__", ())
    signals = [name for name, value in vars(found).items() if isinstance(value, Signal) and module.endswith("signals")]
    assert {*offered, *signals, *PUBLIC.get(module, ())} <= {*LISTED[module]}
    for name in LISTED[module]:
        value = getattr(found, name)
        assert getdoc(value) or not callable(value), name


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("code", shown("api"), ids=lambda code: code.split("\n")[0])
def test_the_examples_run(code: str) -> None:
    names = run(code)
    for signal in vars(import_module("django_throttle.signals")).values():
        if isinstance(signal, Signal):
            for receiver in filter(isfunction, names.values()):
                signal.disconnect(receiver)


def test_the_rule_reference_has_every_name_and_its_example_is_a_rule() -> None:
    choices = [choice for row in options.table(Rule).values() for choice in row.choices]
    names = {*OPTIONS, *options.EVENTS, *KEY_KINDS, *options.ALGORITHMS, *AUDIENCES, *choices}
    assert {name for name in names if f"``{name}``" not in REFERENCE["rules"]} == set()
    ((name, example),) = run(block("rules", '"search": {'))["DJANGO_THROTTLE"]["RULES"].items()
    assert Rule.from_options(name, example).burst == 20


def test_tables_and_pictures_are_current() -> None:
    assert docs_options.FILE.read_text("utf-8") == docs_options.option_table(Rule), "run python -m docs.options"
    assert docs_options.TEXTS.read_text("utf-8") == docs_options.option_texts(), "run python -m docs.options"
    assert scripts.FILE.read_text("utf-8") == scripts.script_table(), "run python -m docs.scripts"
    kept = scale.figures()
    assert set(kept) == set(scale.GROUPS) == set(GROWTH)
    assert scale.TABLE.read_text("utf-8") == scale.table(kept), "run python -m docs.scale"
    assert scale.digest(kept) in scale.PICTURE.read_text("utf-8"), "run python -m docs.scale"
    played = algorithms.play()
    assert algorithms.TABLE.read_text("utf-8") == algorithms.table(played), "run python -m docs.algorithms"
    for name, history in played.items():
        picture = (algorithms.PICTURES / f"{name}.svg").read_text("utf-8")
        assert algorithms.digest(history) in picture, "run python -m docs.algorithms"


def test_every_setting_is_there_with_its_default() -> None:
    listed = re.findall(r"^``([A-Z_0-9]+)`` \(``(.*)``\)$", REFERENCE["settings"], re.MULTILINE)
    assert sorted(listed) == sorted((name, repr(getattr(conf.Conf(), name))) for name in conf.NAMES)


def test_every_number_of_a_check_is_in_one_row() -> None:
    number = r"\b[EWI][01]\d\d\b"
    code = "".join(path.read_text("utf-8") for path in (DOCS.parent / "django_throttle" / "checks").glob("*.py"))
    rows = re.findall(r"^   \* - (``[EWI]\d.*)", REFERENCE["checks"], re.MULTILINE)
    assert sorted(re.findall(number, " ".join(rows))) == sorted(set(re.findall(number, code)))
    pages = "".join(path.read_text("utf-8") for path in DOCS.rglob("*.rst"))
    assert set(re.findall(f"``({number})``", pages)) <= set(re.findall(number, code))


def flags(parser: argparse.ArgumentParser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings if text.startswith("--")}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_there_with_its_options_and_each_has_help(name: str) -> None:
    rows = dict(re.findall(r"^``(\w+(?: [a-z]+)?)\b(.*(?:\n {3,}.*)*)", REFERENCE["commands"], re.MULTILINE))
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    lines = {f"{name} {word}": each for word, each in below[0].choices.items()} if below else {name: parser}
    djangos = flags(BaseCommand().create_parser("manage.py", "any"))
    for line, each in lines.items():
        assert flags(each) - djangos - {*re.findall(r"--[a-z-]+", rows[line])} == set(), line
        assert each.description, line
        assert [action.dest for action in each._actions if not action.help] == [], line
