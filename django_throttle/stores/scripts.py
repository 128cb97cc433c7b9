"""The Lua scripts: files read once, called by their SHA."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_NEEDS: Final = {"calendar_window": ("fixed_window", "calendar_window")}


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA-1 by which Redis knows it."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script in ``lua/name.lua``."""
    return _script(_text(name))


@cache
def decision_script(algorithms: frozenset[str]) -> Script:
    """The script that decides rules of these algorithms: the others' fragments would only cost time."""
    fragments = {fragment for name in algorithms for fragment in _NEEDS.get(name, (name,))}
    # calendar_window sorts first but builds on fixed_window.
    order = sorted(fragments, key=lambda name: (name == "calendar_window", name))
    return _script("\n".join(_text(name) for name in ("prelude", *order, "decide")))


def _text(name: str) -> str:
    return files("django_throttle.stores").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
