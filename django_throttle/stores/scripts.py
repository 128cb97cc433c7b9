"""Lua scripts: read from ``lua``, and assembled of the sections of the algorithms that a call needs.

A frame, such as ``decide.lua``, says where the sections go, and what is repeated for each charge; see there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
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
OWN_KEY: Final = 10  # from this number on an algorithm has a key of its own, below it a record
REST: Final = "*"  # after a name of a state: the text of all numbers that are left
# The kinds of records without numbers, see seek.lua; a kind is the first byte of a record.
SMALL, LARGE = 128, 192
TURN: Final = 2**48  # of the time of a small record
REQUEST_BYTES: Final = 17  # of a charge in a call, without the numbers of its plan
MOST_CHARGES: Final = 32  # of one call: more travel as several, as if they were of several slots of a Cluster
# Lua takes 200 local variables, and the sections of the algorithms have up to 70 at once. Of more than so many numbered
# ones all are kept in a table, which takes longer.
MOST_IN_LOCALS: Final = 116
TOGETHER: Final = 6  # charges that are read, or written, at once: Lua has 250 registers


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA-1 by which Redis knows it."""

    text: str
    sha: str


class Form(NamedTuple):
    """How plans of a class are kept: numbers of a record, whether it is a large one, and the most that is counted."""

    plan: type[Plan]
    kept: int
    is_large: bool
    most: int

    @classmethod
    def of(cls, plan: Plan) -> Form:
        kept = len(state_of(type(plan))) if plan.kept is None else plan.kept
        return cls(type(plan), kept, plan.is_large, plan.most)

    @property
    def kind(self) -> int:
        """The first byte of a record."""
        return (LARGE if self.is_large else SMALL) + self.kept

    @property
    def head(self) -> str:
        """The format of what begins a record, for Lua's struct library: its head, and when it runs out."""
        return "I6I7" if self.is_large else "I6I6"

    @property
    def head_bytes(self) -> int:
        return 13 if self.is_large else 12

    @property
    def number(self) -> str:
        return "d" if self.is_large else "I4"

    @property
    def bytes(self) -> int:
        return self.head_bytes + self.kept * (8 if self.is_large else 4)

    def state(self) -> Iterator[tuple[str, str, str]]:
        """Name, format and value at first of each number that a record has; without a format it keeps none."""
        left = self.kept
        for name, is_rest in state_of(self.plan):
            if is_rest:
                length = left * (8 if self.is_large else 4)
                yield name, f"c{length}" if left else "", f"string.rep('\\0', {length})" if left else "''"
            else:
                yield name, self.number if left else "", "0"
                left -= 1

    def filled(self, body: str) -> str:
        """A body with the sections of the algorithm, and what is different in a large record."""
        body = _SECTION.sub(
            lambda place: "".join(_sections(path).get(place[1], "") for path in paths_of(self.plan)), body
        )
        return _with(body, IS_LARGE=str(self.is_large).lower(), MAX_COUNT=str(self.most), NUMBER=self.number)


class Part(NamedTuple):
    """One charge of a call as its script knows it: its form, and which of the call's keys is its."""

    form: Form
    key: int


@cache
def script(name: str, forms: frozenset[Form] = frozenset()) -> Script:
    """The script in ``lua/name.lua``, with a branch for each of these forms: the others' would only cost time.

    Sections are branches of one loop rather than functions, because a script makes its functions anew on every call.
    """
    kinds = sorted(forms, key=lambda form: (form.plan.code, form.kind))
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
    paths = dict.fromkeys(path for part in parts for path in paths_of(part.form.plan))
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
def state_of(plan: type[Plan]) -> tuple[tuple[str, bool], ...]:
    """The names of what an algorithm keeps in a record, and of each whether it is the rest of the numbers."""
    lines = [line for path in paths_of(plan) for line in _sections(path).get("state", "").splitlines()]
    return tuple((words[1], REST in words) for words in map(str.split, lines))


def paths_of(plan: type[Plan]) -> tuple[str, ...]:
    return plan.lua or (f"{plan.name}.lua",)


class _Charge:
    """One charge in the text of a script."""

    def __init__(self, number: int, form: Form, key: int) -> None:
        self.number, self.form, self.key = number, form, key
        self.has_own_key = form.plan.code >= OWN_KEY
        self.state = [] if self.has_own_key else list(form.state())
        self.names = ["expires", *[name for name, kind, _ in self.state if kind]]
        self.numbers = ["limit", "a", "b", "c"][: len(form.plan.__match_args__)]

    def numbered(self, *names: str) -> list[str]:
        return [f"{name}_{self.number}" for name in names]

    def filled(self, body: str) -> str:
        """What is repeated for each charge, as it is for this one."""
        constant = [(name, first) for name, kind, first in self.state if not kind]
        body = _with(
            body,
            STATE=", ".join([*self.names, *[name for name, _ in constant]]),
            STATE_i=", ".join([*self.numbered(*self.names), *[first for _, first in constant]]),
            STORE_i="\n".join(f"{name}_{self.number} = {name}" for name in self.names),
            NUMBERS=", ".join(self.numbers),
            NUMBERS_i=", ".join(self.numbered(*self.numbers)),
            KEY_i=str(self.key),
            ALGORITHM_i=str(self.form.plan.code),
        )
        body = re.sub(r"_i\b", f"_{self.number}", re.sub(r"_v\b", f"_{self.key}", body))
        return self.form.filled(body)

    @property
    def request(self) -> str:
        """The format of a charge in the request."""
        return f"dBd{'d' * len(self.numbers)}"

    @property
    def request_bytes(self) -> int:
        return REQUEST_BYTES + 8 * len(self.numbers)

    @property
    def format(self) -> str:
        """A record's, for Lua's struct library."""
        return "".join([self.form.head, *[kind for _, kind, _ in self.state]])

    def in_record(self, head: str) -> list[str]:
        """What a record holds, with this for its head."""
        return [head, *self.numbered(*self.names)]


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
            AFTER_v=str(self._bytes() + 1),
            LONGEST_v="\n".join(longest),
            KEY_v=str(self.key),
            COSTS_v=" or ".join(f"cost_{one.number} > 0" for one in self.charges),
        )
        return re.sub(r"_v\b", f"_{self.key}", body)

    def _bytes(self) -> int:
        return sum(one.form.bytes for one in self.charges)

    def _read(self) -> str:
        """Reads the records, and leaves the loop around it if they are those asked for."""
        lines, at = [f"if #value_v >= {self._bytes()} then", "local is_ours"], 1
        lines[1] += "".join(f", found{one.number}" for one in self.charges)
        for some in _together(self.charges):
            names = _joined(one.in_record(f"found{one.number}") for one in some)
            same = [f"found{one.number} == head_{one.number}" for one in some]
            lines += [
                f"{', '.join(names)} = decode('<{''.join(one.format for one in some)}', value_v, {at})",
                f"is_ours = {'is_ours and ' if at > 1 else ''}{' and '.join(same)}",
            ]
            at += sum(one.form.bytes for one in some)
        small = [f"expires_{one.number}" for one in self.charges if not one.form.is_large]
        times = [f"{one} = ({one} - earliest) % {TURN} + earliest" for one in small]
        return "\n".join([*lines, "if is_ours then", *times, "break", "end", "end"])

    def _written(self) -> str:
        """The text of the records."""
        parts = []
        for some in _together(self.charges):
            names = _joined(one.in_record(f"head_{one.number}") for one in some)
            parts.append(f"encode('<{''.join(one.format for one in some)}', {', '.join(names)})")
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
        if one.form.plan.needs_calendar:
            yield at + REQUEST_BYTES + 8
        at += one.request_bytes


def _branch(body: str, form: Form) -> str:
    """A form's branch in a loop over charges."""
    decoded, encoded, condition = "", "", f"algorithm == {form.plan.code}"
    if form.plan.code < OWN_KEY:
        condition += f" and head % 256 == {form.kind}"
        state = list(form.state())
        kept = ", ".join(name for name, kind, _ in state if kind)
        formats = "".join(["'<", *[kind for _, kind, _ in state], "'"])
        decoded = "\n".join(f"local {name} = {first}" for name, _, first in state)
        encoded = "state = ''"
        if kept:
            decoded += f"\nif fits then {kept} = decode({formats}, value, from + {form.head_bytes}) end"
            encoded = f"state = encode({formats}, {kept})"
    return form.filled(_with(body, IS_ALGORITHM=condition, DECODED=decoded, ENCODED=encoded))


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
