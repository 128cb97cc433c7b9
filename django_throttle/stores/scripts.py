"""The Lua scripts: files read once, called by their SHA."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

# The numbers by which a decision script knows the algorithms; texts are stored below 10.
CODES: Final = {
    "fixed_window": 1,
    "calendar_window": 2,
    "sliding_window": 3,
    "gcra": 4,
    "interval_bucket": 5,
    "sliding_log": 10,
    "concurrency": 11,
}
# A calendar's window is a branch of the fixed one.
_BRANCHES: Final = {"calendar_window": "fixed_window"}
_BEFORE: Final = frozenset(("calendar_window", "sliding_log", "concurrency"))
_WRITE: Final = frozenset(("sliding_log", "concurrency"))


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
    """The script that decides rules of these algorithms: the others' fragments would only cost time.

    Fragments are branches of one loop rather than functions, because a script makes its functions anew
    on every call.
    """
    names = sorted(algorithms)
    branches = sorted({_BRANCHES.get(name, name) for name in names})
    before = [f"{name}.before" for name in names if name in _BEFORE]
    write = [f"{name}.write" for name in names if name in _WRITE]
    return _script("".join(map(_text, ("prelude", *before, "loop", *branches, "decide", *write, "end"))))


def _text(name: str) -> str:
    return files("django_throttle.stores").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
