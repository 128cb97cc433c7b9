"""Says texts in the language that is in force at this moment: numbers, plurals and the order of words are its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.utils import timezone, translation
from django.utils.formats import get_format

from django_throttle.core.texts import Text, sentences, text_of, translatable, translatable_plural


def translated(text: object) -> str:
    """The text, or what an error says, in the language in force; what is no Text of the package stays as it is."""
    if isinstance(text, Exception):
        text = text_of(text)
    if not isinstance(text, Text) or _is_foreign():
        return str(text)
    places, values = text.values
    if text.plural:
        pattern = translation.ngettext(text.pattern, text.plural, text.number)
    else:
        pattern = translation.gettext(text.pattern) if text.pattern else ""
        if pattern == text.pattern and not (places or values):
            return str(text)  # a label in a sentence is in lower case
    return pattern.format(*map(_shown, places), **{name: _shown(value) for name, value in values.items()})


def _is_foreign() -> bool:
    """Whether nobody has translated these texts to the language in force: other apps may have some of the words."""
    return said_language() == "en" and not (translation.get_language() or "en").startswith("en")


def joined(parts: Sequence[str]) -> str:
    """Sentences, each in the language in force, as one text of that language."""
    return translated(sentences(parts))


def gettext(pattern: str, /, **values: object) -> str:
    """The text that the pattern makes of these values, in the language in force."""
    return translated(translatable(pattern, **values))


def ngettext(one: str, many: str, number: int, /, **values: object) -> str:
    """The same, by the number, which is the value ``count`` unless another is given."""
    return translated(translatable_plural(one, many, number, **values))


def capitalised(text: str) -> str:
    """The text with its first letter in capitals, as a label has it."""
    return text[:1].upper() + text[1:]


SEPARATORS: Final = {",": "THOUSAND_SEPARATOR", ".": "DECIMAL_SEPARATOR"}


def with_label(label: object, text: str) -> str:
    """What is wrong with a field: behind its label, unless the text has that."""
    told = capitalised(str(label))
    return text if told.casefold() in text.casefold() else gettext("{name}: {figure}", name=told, figure=text)


def local(moment: datetime) -> datetime:
    """The moment in the time zone in force."""
    try:
        return timezone.localtime(moment) if timezone.is_aware(moment) else moment
    except OverflowError:  # the last date that Python has
        return moment


def to_the_second(moment: datetime) -> str:
    """The moment as a line has it, in the time zone in force."""
    return f"{local(moment):%Y-%m-%d %H:%M:%S %Z}".rstrip()


class _Number:
    """A number whose separators are the language's, where the pattern has some."""

    __slots__ = ("number",)

    def __init__(self, number: float) -> None:
        self.number = number

    def __format__(self, spec: str) -> str:
        said = format(self.number, spec)
        if spec in ("", "g"):  # to be written as it is
            return said
        language = said_language()
        separators = {sign: get_format(name, language) for sign, name in SEPARATORS.items()}
        separators["%"] = translation.pgettext("behind a number, with a no-break space where one is due", "%")
        return "".join(separators.get(sign, sign) for sign in said)

    def __repr__(self) -> str:
        return repr(self.number)


def written(number: float, spec: str = ",") -> str:
    """The number as this format has it, with the separators of the language in force."""
    return format(_Number(number), spec)


def said_language() -> str:
    """The language that these texts are in: the one in force where they are translated to it, else English."""
    return translation.pgettext("language of these texts", "en")


def _shown(value: object) -> object:
    if isinstance(value, (Text, Exception)):
        return translated(value)
    return _Number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
