"""The rules of the house: what every file, module and name keeps to, checked by reading them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

import django_throttle

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "django_throttle"
FOLDERS = ("django_throttle", "testproject", "tests", "docs", ".ci")
SOURCES = sorted(path for folder in ("django_throttle", "testproject") for path in (ROOT / folder).rglob("*.py"))
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(django_throttle.__path__, "django_throttle.", onerror=print)
)
BANNED = {"util", "utils", "helper", "manager", "handler", "processor", "data", "item", "info"}
# Names that Django, Channels and the standard library chose, and look up.
GIVEN = {
    "text_data", "bytes_data", "cleaned_data", "get_changeform_initial_data", "handle_data", "base_manager_name",
}  # fmt: skip
# Documentation may say /srv and /etc, and a first line which interpreter runs the file.
BINARY = {".gz", ".png", ".sqlite3"}
MACHINE_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|work|Users|opt|tmp|mnt|usr)/[\w.-]|[A-Z]:\\\w)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[str]:
    """The dotted names of the modules that a file imports, those for type checkers included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def definitions(path: Path) -> Iterator[str]:
    """The names that a file defines: modules, classes, functions, arguments, variables, attributes."""
    yield path.stem
    for node in ast.walk(tree(path)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def words(name: str) -> set[str]:
    """The words of a name in snake_case or CapWords, in lower case."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=named)
def test_core_is_pure(path: Path) -> None:
    awaiting = [node for node in ast.walk(tree(path)) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    assert not awaiting, "core has no async def and no await"
    for module in imports(path):
        top, *rest = module.split(".")
        assert top not in {"django", "redis", "django_redis", "asgiref", "channels", "rest_framework"}, module
        assert top not in {"time", "random", "secrets", "asyncio", "threading", "socket", "os"}, module
        assert top != "django_throttle" or rest[:1] in (["core"], ["exceptions"]), module


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_says_it_offers_is_sorted_and_there(name: str) -> None:
    module = importlib.import_module(name)
    offered = getattr(module, "__all__", None)
    if offered is not None:
        assert list(offered) == sorted(set(offered))
        assert [each for each in offered if not hasattr(module, each)] == []


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_names_say_what_they_mean(path: Path) -> None:
    vague = {name for name in definitions(path) if name not in GIVEN and words(name) & BANNED}
    assert vague == set()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=named)
def test_only_the_memory_store_reads_the_wall_clock(path: Path) -> None:
    if path == PACKAGE / "stores" / "memory.py":
        return
    for node in ast.walk(tree(path)):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns"):
                pytest.fail(f"line {node.lineno} reads the wall clock")
            case ast.ImportFrom(module="time", names=names):
                assert not {"time", "time_ns"} & {alias.name for alias in names}


@pytest.mark.parametrize(
    "path", [path for path in sorted(PACKAGE.rglob("*.py")) if PACKAGE / "stores" not in path.parents], ids=named
)
def test_only_stores_know_what_a_store_is(path: Path) -> None:
    """Others ask by what it offers, such as ``is_remote``: neither for its class nor whether it has ``denials``."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                asked = {one.id for one in ast.walk(classes) if isinstance(one, ast.Name)}
                assert not asked & {"RedisStore", "MemoryStore", "AnyStore", "RedisContext"}, node.lineno
            case ast.Compare() | ast.Call(func=ast.Name(id="bool" | "getattr" | "hasattr")):
                inside = list(ast.walk(node))
                assert not any(isinstance(one, ast.Attribute) and one.attr == "denials" for one in inside), node.lineno
                assert not any(isinstance(one, ast.Constant) and one.value == "denials" for one in inside), node.lineno


def test_the_map_for_contributors_is_that_of_the_tree() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Where things are")[2].partition("## ")[0]
    shown = set(re.findall(r"`(django_throttle/[\w/.]+|tests[\w/]*)`", table))
    assert [name for name in shown if not (ROOT / name).exists()] == []
    rooms = {f"django_throttle/{path.name}" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms - shown == {"django_throttle/migrations"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=named)
def test_every_module_opens_with_a_claim(path: Path) -> None:
    if path.parent.name != "migrations" and path.read_text(encoding="utf-8").strip():
        assert ast.get_docstring(tree(path))


@pytest.mark.row("A61")
def test_nothing_that_is_read_is_run() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not {"pickle", "marshal", "shelve", "yaml", "dill"} & {name.split(".")[0] for name in imports(path)}
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__" as name)):
                    pytest.fail(f"{named(path)}:{node.lineno} calls {name}")
    for path in PACKAGE.rglob("*.lua"):
        assert not re.search(r"\b(load|loadstring|dofile|setfenv)\b", path.read_text(encoding="utf-8")), named(path)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.lua")), ids=named)
def test_every_script_says_what_goes_in_and_out(path: Path) -> None:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    header = "\n".join(takewhile(lambda line: line.startswith("--"), lines))
    for word in ("KEYS", "ARGV", "eply"):  # Reply or reply
        assert word in header


def test_no_file_names_a_path_of_a_machine() -> None:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix not in BINARY]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in BINARY]
    for path in found:
        if {"__pycache__", "_build"} & set(path.parts) or path.name.startswith(".coverage"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
            assert line.startswith("#!") or not MACHINE_PATH.search(line), f"{named(path)}:{number}: {line.strip()}"


def test_nothing_odd_lies_at_the_top() -> None:
    """A test that writes where it stands leaves files here, and some systems cannot even check such names out."""
    expected = {
        *(".ci", ".editorconfig", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
        *("SECURITY.md", "django_throttle", "docs", "pyproject.toml", "setup.cfg", "testproject", "tests"),
    }
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone")
    assert {name.split("/")[0] for name in listed.stdout.split("\0") if name} == expected
