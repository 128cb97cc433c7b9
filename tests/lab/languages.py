"""Check that every text of the package is translated: ``make languages``, which ``make release`` asks for.

With arguments, run Django's ``makemessages`` with them in the package: ``make messages``. Needs gettext, whose
``xgettext`` collects the texts of the source.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Final, NamedTuple

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from django.core.management import call_command
from django.core.management.commands import makemessages

PACKAGE = Path(__file__).parents[2] / "django_throttle"
#: The folders of the apps in the package, each of which has catalogs.
APPS: Final = ("", "console")
LANGUAGES = tuple(sorted(path.name for path in (PACKAGE / "locale").iterdir() if path.name != "en"))
PLACE = re.compile(r"%\(\w+\)[sd]|\{\w*[^{}]*\}")
#: Texts that a language has as English has them; a text without any word is left alone.
ALIKE: Final = {
    "de": (
        "GCRA", "Host", "Limit", "Name", "Status %(status)s", "WebSocket", "in {time}", "{count} h", "{count} min",
        "{count} s",
    ),
    "es": (
        "GCRA", "Host", "WebSocket", "factor", "no", "plan {who!r}: {fault}", "{count} h", "{count} min", "{count} s",
    ),
    "fr": (
        "%(count)d minute", "Candidate", "GCRA", "Notes", "Pages", "Session", "WebSocket", "action", "candidate",
        "candidates", "description", "minute", "options", "publications", "session", "strict", "{count:,} message",
        "{count:,} publication", "{count} h", "{count} min", "{count} s",
    ),
    "ja": ("GCRA", "WebSocket"),
}  # fmt: skip


class Message(NamedTuple):
    """An entry of a catalog; an empty translation is not there yet."""

    context: str
    text: str
    plural: str
    translations: tuple[str, ...]


def po_file(language: str, package: Path = PACKAGE) -> Path:
    return package / "locale" / language / "LC_MESSAGES" / "django.po"


def read_catalog(language: str, package: Path = PACKAGE) -> Catalog:
    with po_file(language, package).open("rb") as file:
        return read_po(file, locale=language, abort_invalid=True)


def messages(language: str, package: Path = PACKAGE) -> Iterator[Message]:
    for entry in read_catalog(language, package):
        if entry.id:
            text, plural = entry.id if isinstance(entry.id, tuple) else (entry.id, "")
            said = entry.string if isinstance(entry.string, tuple) else (entry.string,)
            yield Message(entry.context or "", text, plural, said)


def faults(language: str, collected: Path, app: str) -> Iterator[str]:
    """Yield what the catalog of an app lacks beside the one that was just collected from the source."""
    entries = list(messages(language, PACKAGE / app))
    if {entry[:3] for entry in entries} != {entry[:3] for entry in messages(language, collected / app)}:
        yield "it has not the texts of the source: run make messages"
    yield from (f"not translated: {entry.text!r}" for entry in entries if not all(entry.translations))
    english = {entry.text for entry in entries if {entry.text, entry.plural} & {*entry.translations}}
    english = {text for text in english if re.search(r"[^\W\d_]", PLACE.sub("", text))}
    yield from (f"left in English: {text!r}" for text in sorted(english - {*ALIKE[language]}))


class Collect(makemessages.Command):
    """Django's ``makemessages`` with the functions of ``django_throttle.core.texts``."""

    xgettext_options = [
        *makemessages.Command.xgettext_options, "--keyword=translatable", "--keyword=translatable_plural:1,2",
    ]  # fmt: skip


def collect(folder: Path) -> Path:
    """Copy the package, and collect its texts in the copy as ``make messages`` does."""
    copy = copytree(PACKAGE, folder / PACKAGE.name, ignore=ignore_patterns("__pycache__"))
    with chdir(copy):
        call_command(Collect(), locale=list(LANGUAGES), no_location=True, no_wrap=True, verbosity=0)
    return copy


def main() -> int:
    if sys.argv[1:]:
        os.chdir(PACKAGE)
        Collect().run_from_argv(["django", "makemessages", *sys.argv[1:]])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        copy = collect(Path(folder))
        found = [
            f"{language}: {fault}" for language in LANGUAGES for app in APPS for fault in faults(language, copy, app)
        ]
    print("\n".join(found) or f"complete: {', '.join(LANGUAGES)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
