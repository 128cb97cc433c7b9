"""Lua scripts: read from ``lua``, and assembled of the sections of the algorithms that a call needs.

A frame, such as ``decide.lua``, says where the sections go, and what is repeated for each charge; see there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from django_throttle.core.algorithms.base import Plan

LUA: Final = Path(__file__).with_name("lua")
# Begins a section of an algorithm's file, and stands in a frame where that section goes.
_SECTION: Final = re.compile(r"^ *--- (\w+)\n", re.MULTILINE)
_USE: Final = re.compile(r"^ *--- use (\w+)\n", re.MULTILINE)
_EACH: Final = re.compile(r"^ *--- each (\w+)\n(.*?)^ *--- end\n", re.MULTILINE | re.DOTALL)
_NUMBERED: Final = re.compile(r"\b(\w+)_(?:\d+)\b")
# Of a state: a number, and a text of any length. Both are formats of Lua's struct library.
DOUBLE, TEXT = "d", "s"
ANY_LENGTH: Final = 65_535  # in a head: that of a text
OWN_KEY: Final = 10  # from this number on an algorithm has a key of its own, below it a record
HEAD_BYTES: Final = 15  # of a record, without its state
REQUEST_BYTES: Final = 17  # of a charge in a call, without the numbers of its plan
MOST_CHARGES: Final = 32  # of one call: more travel as several, as if they were of several slots of a Cluster
# Lua takes 200 local variables. Of more than so many numbered ones all are kept in a table, which takes longer.
MOST_IN_LOCALS: Final = 140
TOGETHER: Final = 6  # charges that are read, or written, at once: Lua has 250 registers


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA-1 by which Redis knows it."""

    text: str
    sha: str


class Part(NamedTuple):
    """One charge of a call as its script knows it: the class of its plan, and which of the call's keys is its."""

    plan: type[Plan]
    key: int


@cache
def script(name: str, plans: frozenset[type[Plan]] = frozenset()) -> Script:
    """The script in ``lua/name.lua``, with a branch for each of these algorithms: the others' would only cost time.

    Sections are branches of one loop rather than functions, because a script makes its functions anew on every call.
    """
    kinds = sorted(plans, key=lambda plan: plan.code)
    return _script(_EACH.sub(lambda each: "".join(_branch(each[2], kind) for kind in kinds), _frame(name)))


@cache
def decide_script(parts: tuple[Part, ...]) -> Script:
    """The script that decides calls with these charges."""
    charges = [_Charge(number, *part) for number, part in enumerate(parts, 1)]
    records = [charge for charge in charges if not charge.has_own_key]
    values = [_Value(key, [one for one in records if one.key == key]) for key in sorted({one.key for one in records})]
    repeated: dict[str, Sequence[_Charge | _Value]] = {
        "record": records,
        "own": [charge for charge in charges if charge.has_own_key],
        "value": values,
    }
    text = _EACH.sub(lambda each: "".join(one.filled(each[2]) for one in repeated[each[1]]), _frame("decide"))
    paths = dict.fromkeys(path for part in parts for path in paths_of(part.plan))
    text = _SECTION.sub(lambda place: "".join(_sections(path).get(place[1], "") for path in paths), text)
    answers = [f"retry_{one.number}, remaining_{one.number}, reset_{one.number}" for one in charges]
    text = _with(
        text,
        REQUEST=_request(charges),
        CALL_BYTES=str(1 + sum(one.request_bytes for one in charges)),
        CALENDARS=", ".join(map(str, _calendars(charges))),
        ANSWERS=", ".join(answers),
        ANSWER_FORMAT=f"'<{'ddd' * len(charges)}'",
        WHOLE_FORMAT=f"'<dd{'ddd' * len(charges)}'",
        KEYS_OF_CALL=str(max(part.key for part in parts)),
    )
    names = {match[0] for match in _NUMBERED.finditer(text)}
    if len(names) <= MOST_IN_LOCALS:
        return _script(_with(text, DECLARED=f"local {', '.join(sorted(names))}"))
    in_table = _NUMBERED.sub(lambda name: f"each.{name[0]}", text)
    return _script(_with(in_table, DECLARED="local each = {}"))


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _with(text: str, **words: str) -> str:
    """The text with what stands for words in capitals."""
    for word, meaning in words.items():
        text = re.sub(rf"\b{word}\b", lambda _, meaning=meaning: meaning, text)  # type: ignore[misc]
    return text


@cache
def state_of(plan: type[Plan]) -> tuple[tuple[str, str], ...]:
    """The names and formats of what an algorithm keeps in a record."""
    lines = [line for path in paths_of(plan) for line in _sections(path).get("state", "").splitlines()]
    return tuple((name, kind) for _, name, kind in (line.split() for line in lines))


def is_text(plan: type[Plan]) -> bool:
    return any(kind == TEXT for _, kind in state_of(plan))


@cache
def state_length(plan: type[Plan]) -> int:
    """The bytes that an algorithm keeps in a record; ANY_LENGTH for a text."""
    return ANY_LENGTH if is_text(plan) else 8 * len(state_of(plan))


def paths_of(plan: type[Plan]) -> tuple[str, ...]:
    return plan.lua or (f"{plan.name}.lua",)


class _Charge:
    """One charge in the text of a script."""

    def __init__(self, number: int, plan: type[Plan], key: int) -> None:
        self.number, self.plan, self.key = number, plan, key
        self.has_own_key = plan.code >= OWN_KEY
        self.names = ["expires", *[name for name, _ in state_of(plan)]]
        self.numbers = ["limit", "a", "b", "c"][: len(plan.__match_args__)]

    def numbered(self, *names: str) -> list[str]:
        return [f"{name}_{self.number}" for name in names]

    def filled(self, body: str) -> str:
        """What is repeated for each charge, as it is for this one."""
        body = _with(
            body,
            STATE=", ".join(self.names),
            STATE_i=", ".join(self.numbered(*self.names)),
            STORE_i="\n".join(f"{name}_{self.number} = {name}" for name in self.names),
            NUMBERS=", ".join(self.numbers),
            NUMBERS_i=", ".join(self.numbered(*self.numbers)),
            KEY_i=str(self.key),
            ALGORITHM_i=str(self.plan.code),
        )
        body = re.sub(r"_i\b", f"_{self.number}", re.sub(r"_v\b", f"_{self.key}", body))
        paths = paths_of(self.plan)
        return _SECTION.sub(lambda place: "".join(_sections(path).get(place[1], "") for path in paths), body)

    @property
    def request(self) -> str:
        """The format of a charge in the request."""
        return f"c8Bd{'d' * len(self.numbers)}"

    @property
    def request_bytes(self) -> int:
        return REQUEST_BYTES + 8 * len(self.numbers)

    @property
    def format(self) -> str:
        """A record's, for Lua's struct library."""
        return "I7c6Hc0" if is_text(self.plan) else f"I7c8{'d' * len(state_of(self.plan))}"

    @property
    def id(self) -> str:
        return f"sub(head_{self.number}, 1, 6)" if is_text(self.plan) else f"head_{self.number}"

    def in_record(self, head: str) -> list[str]:
        """What a record holds, with this for its head."""
        expires, *state = self.numbered(*self.names)
        return [expires, head, *state]

    def written(self) -> list[str]:
        expires, head, *state = self.in_record(self.id)
        return [expires, head, *(f"#{one}" for one in state if is_text(self.plan)), *state]


class _Value:
    """One ident's value in the text of a script: the records that a call asks for are its first."""

    def __init__(self, key: int, charges: Sequence[_Charge]) -> None:
        self.key, self.charges = key, charges

    def filled(self, body: str) -> str:
        """What is repeated for each value, as it is for this one."""
        first, *others = [f"expires_{one.number}" for one in self.charges]
        longest = [f"longest = {first}", *(f"if {one} > longest then longest = {one} end" for one in others)]
        body = _with(
            body,
            READ_v=self._read(),
            HEADS_v=", ".join(f"head_{one.number}" for one in self.charges),
            RECORDS_v=self._written(),
            LONGEST_v="\n".join(longest),
            KEY_v=str(self.key),
            COSTS_v=" or ".join(f"cost_{one.number} > 0" for one in self.charges),
        )
        return re.sub(r"_v\b", f"_{self.key}", body)

    def _read(self) -> str:
        """Reads the records; is_ours says whether they are those asked for."""
        least = 1 + sum(HEAD_BYTES + (0 if is_text(one.plan) else state_length(one.plan)) for one in self.charges)
        lines = [f"if #value_v >= {least} then", "local version", "after_v, is_ours = 1, true"]
        lines[1] += "".join(f", found{one.number}" for one in self.charges)
        for some in _together(self.charges):
            opening = [("version", "B")] if some[0] is self.charges[0] else []
            names = [*[name for name, _ in opening], *_joined(one.in_record(f"found{one.number}") for one in some)]
            form = "".join([*[kind for _, kind in opening], *[one.format for one in some]])
            reading = f"decode('<{form}', value_v, after_v)"
            if any(is_text(one.plan) for one in some):  # its length may be wrong
                reading, names = f"pcall(decode, '<{form}', value_v, after_v)", ["is_ours", *names]
            same = [*[f"{name} == 1" for name, _ in opening], *[f"found{one.number} == {one.id}" for one in some]]
            lines += [
                "if is_ours then",
                f"{', '.join(names)}, after_v = {reading}",
                f"is_ours = is_ours and {' and '.join(same)}",
                "end",
            ]
        return "\n".join([*lines, "end"])

    def _written(self) -> str:
        """The text of the records."""
        parts = []
        for some in _together(self.charges):
            opening = "B" if some[0] is self.charges[0] else ""
            names = [*("1" for _ in opening), *_joined(one.written() for one in some)]
            parts.append(f"encode('<{opening}{''.join(one.format for one in some)}', {', '.join(names)})")
        return " .. ".join(parts)


_joined = chain.from_iterable


def _together(charges: Sequence[_Charge]) -> Iterable[Sequence[_Charge]]:
    return [charges[at : at + TOGETHER] for at in range(0, len(charges), TOGETHER)]


def _request(charges: Sequence[_Charge]) -> str:
    """Reads a call."""
    lines = []
    for some in _together(charges):
        opening = ["flags_of_call"] if some[0] is charges[0] else []
        names = [*opening, *_joined(one.numbered("head", "flags", "cost", *one.numbers) for one in some)]
        form = "B" * len(opening) + "".join(one.request for one in some)
        lines.append(f"{', '.join(names)}, place = decode('<{form}', blob, place)")
    return "\n".join(lines)


def _calendars(charges: Sequence[_Charge]) -> Iterable[int]:
    """Where in a call charges have the bounds of a calendar, after the limit."""
    at = 1
    for one in charges:
        if one.plan.needs_calendar:
            yield at + REQUEST_BYTES + 8
        at += one.request_bytes


def _branch(body: str, plan: type[Plan]) -> str:
    """An algorithm's branch in a loop over charges."""
    names, decoded, encoded = [name for name, _ in state_of(plan)], "", ""
    if plan.code < OWN_KEY:
        encoded = "state = ''"
    if is_text(plan):
        decoded = f"local {names[0]} = fits and sub(value, from + {HEAD_BYTES}, after - 1) or ''"
        encoded = f"state = {names[0]}"
    elif names:
        form = f"'<{'d' * len(names)}'"
        decoded = f"local {', '.join(names)} = {', '.join('0' for _ in names)}\n"
        decoded += f"if fits then {', '.join(names)} = decode({form}, value, from + {HEAD_BYTES}) end"
        encoded = f"state = encode({form}, {', '.join(names)})"
    body = _with(body, IS_ALGORITHM=f"algorithm == {plan.code}", DECODED=decoded, ENCODED=encoded)
    return _SECTION.sub(lambda place: "".join(_sections(path).get(place[1], "") for path in paths_of(plan)), body)


def _frame(name: str) -> str:
    return _text(f"{name}.lua")


@cache
def _sections(path: str) -> dict[str, str]:
    _, *parts = _SECTION.split(_text(path))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _text(path: str) -> str:
    """A file, with those that it uses."""
    # importlib.resources imports at its first use, and a fork meanwhile would leave that lock taken in the child.
    text = (LUA / path).read_text(encoding="utf-8")
    return _USE.sub(lambda used: _text(f"{used[1]}.lua"), text)
