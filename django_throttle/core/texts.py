"""Texts of the core that people read: English values that keep what another language needs.

``make messages`` collects the texts by the names of these functions, and ``django_throttle.translated`` translates them
when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

Values = tuple[Sequence[object], Mapping[str, object]]  # by their places, and by name


class Text(str):
    """A text in English, with its pattern and the values in it, which may be texts too.

    ``plural`` is the pattern for another ``number`` than 1; empty for a text without a number.
    """

    __slots__ = ("number", "pattern", "plural", "values")
    pattern: str
    plural: str
    number: int
    values: Values


def gettext_noop(text: str) -> str:
    """The text as it is."""
    return text


def gettext_lazy(pattern: str, /, *places: object, **values: object) -> Text:
    """The text that the pattern makes of these values, as ``format`` does."""
    return _text(pattern, (places, values))


def ngettext_lazy(one: str, many: str, number: int, /, **values: object) -> Text:
    """The same, by the number, which is the value ``count`` unless another is given."""
    return _text(one, ((), {"count": number, **values}), many, number)


def _text(pattern: str, values: Values, plural: str = "", number: int = 0) -> Text:
    english = plural if plural and number != 1 else pattern
    text = Text(english.format(*values[0], **values[1]))
    text.pattern, text.plural, text.number, text.values = pattern, plural, number, values
    return text


def in_sentence(label: str) -> Text:
    """A label as it stands in a sentence, which in English begins it in lower case."""
    lowered = Text(label if label.isupper() else label.lower())
    lowered.pattern, lowered.plural, lowered.number, lowered.values = label, "", 0, ((), {})
    return lowered


def relabelled(text: str, name: str, label: str) -> str:
    """The text with a label in place of an option's name, which may be in brackets behind a label."""
    if not isinstance(text, Text):
        return text
    places, values = text.values
    told = {key: label if str(one) == name or str(one).endswith(f" ({name})") else one for key, one in values.items()}
    return _text(text.pattern, (places, told), text.plural, text.number)


def text_of(error: Exception) -> str:
    """What an error says: a Text where it was raised with one."""
    return error.args[0] if error.args and isinstance(error.args[0], Text) else str(error)


def with_commas(parts: Sequence[str]) -> str:
    """The parts with commas in between, in one text; those that are empty are left out."""
    return _joined(gettext_noop("{before}, {after}"), parts)


def listed(words: Sequence[str]) -> str:
    """Words in a sentence: "a, b and c"."""
    return _joined(gettext_noop("{before} and {after}"), [with_commas(words[:-1]), *words[-1:]])


def alternatives(words: Sequence[str]) -> str:
    """Words of which one is meant: "a or b or c"."""
    return _joined(gettext_noop("{before} or {after}"), words)


def sentences(parts: Sequence[str]) -> str:
    """Sentences in one text; those that are empty are left out."""
    return _joined(gettext_noop("{before} {after}"), parts)


def _joined(pattern: str, parts: Sequence[str]) -> str:
    given = [part for part in parts if part]
    return reduce(lambda before, after: gettext_lazy(pattern, before=before, after=after), given) if given else ""
