"""Lua scripts, assembled from the files in ``stores/lua`` and the sections of the algorithms.

The Lua file of an algorithm is beside its Python module in ``core/algorithms``.

These lines of a script are replaced::

    --- use clock       by the lines of clock.lua
    --- each record     by the lines up to "--- end", once for each algorithm of this kind (``_KINDS``)
    elseif ALGORITHM then
    --- decide          by this section of the algorithm's file, which ends at the next such line
    --- end

Each script has one text for all rules. It has branches in one loop instead of functions, which Lua would create anew in
every call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django_throttle.core import algorithms
from django_throttle.core.algorithms.base import CounterParams

LUA: Final = Path(__file__).parents[1] / "lua"
#: Folders of scripts, searched in this order.
_folders: Final = [LUA]
ALGORITHMS: Final = Path(algorithms.__file__).parent
OWN_KEY: Final = 10  # algorithms with this number and above have their own key, the others a record
_USE: Final = re.compile(r"^ *--- use (\w+)\n", re.MULTILINE)
_EACH: Final = re.compile(r"^ *--- each ?(\w*)\n(.*?)^ *--- end\n", re.MULTILINE | re.DOTALL)
_SECTION: Final = re.compile(r"^ *--- (\w+)\n", re.MULTILINE)
_KINDS: Final[dict[str, Callable[[int], bool]]] = {
    "": lambda code: True,
    "record": lambda code: code < OWN_KEY,
    "own": lambda code: code >= OWN_KEY,
}


@dataclass(frozen=True, slots=True)
class Script:
    """Text of a script, and its SHA-1 for EVALSHA."""

    text: str
    sha: str


def add_folder(folder: Path) -> None:
    """Look for scripts in this folder too."""
    if folder not in _folders:
        _folders.append(folder)


def script(name: str) -> Script:
    """Return the script of ``name.lua`` in one of the folders, for all registered algorithms."""
    return _script(name, len(CounterParams.by_wire_id))


@cache
def _script(name: str, number_of_algorithms: int) -> Script:
    text = _EACH.sub(lambda block: _repeated(block[2], _KINDS[block[1]]), _text(_path(f"{name}.lua")))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _path(name: str) -> Path:
    return next((path for folder in _folders if (path := folder / name).exists()), LUA / name)


def _repeated(block: str, is_of_kind: Callable[[int], bool]) -> str:
    """Repeat a block for the algorithms of a kind, once for algorithms that share a file."""
    codes: dict[str, list[int]] = {}
    for code, params in sorted(CounterParams.by_wire_id.items()):
        if is_of_kind(code):
            codes.setdefault(params.lua or f"{params.name}.lua", []).append(code)
    return "".join(_branch(block, ALGORITHMS / path, own_codes) for path, own_codes in codes.items())


def _branch(block: str, path: Path, codes: list[int]) -> str:
    sections = _sections(path)
    condition = " or ".join(f"algorithm == {code}" for code in codes)
    return _SECTION.sub(lambda line: sections.get(line[1], ""), block).replace("ALGORITHM", condition)


def _sections(path: Path) -> dict[str, str]:
    _, *parts = _SECTION.split(_text(path))
    return dict(zip(parts[::2], parts[1::2], strict=True))


@cache
def _text(path: Path) -> str:
    """Read a file with the files that it includes, from the same folder or from the scripts."""
    # Not importlib.resources, which imports at its first use: a fork meanwhile would leave the import lock held.
    text = path.read_text(encoding="utf-8")
    return _USE.sub(lambda line: _text(_included(path, f"{line[1]}.lua")), text)


def _included(path: Path, name: str) -> Path:
    beside = path.with_name(name)
    return beside if beside.exists() else LUA / name
