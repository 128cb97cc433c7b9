"""Write what follows the table of rule options: ``python -m docs.options``.

``options.inc`` is the table that ``rules.rst`` shows. ``options.txt`` lists the texts of options, algorithms and keys,
where ``make messages`` finds them, as the core knows no gettext.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import django_throttle
from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.key import AUDIENCE_KINDS, KEY_KINDS
from django_throttle.core.options import EVENTS, GROUPS, Option, Options, table

FILE: Final = Path(__file__).with_name("options.inc")
TEXTS: Final = Path(django_throttle.__file__).parent / "templates" / "django_throttle" / "options.txt"
HEAD: Final = """\
.. written by python -m docs.options

.. list-table::
   :header-rows: 1
   :widths: 18 22 30 12 18

   * - Option
     - In the admin
     - Values
     - Default
     - Algorithms
"""
VALUES: Final = {
    "switch": "true or false",
    "rate": "a rate, such as ``100/min``",
    "rates": "a list of rates",
    "zone": "a time zone, such as ``Europe/Berlin``",
    "cost": "a whole number, or the path of a function",
    "key": "see below",
    "names": "a list of names",
    "scopes": "a list of names, see below",
    "events": f"a list of {', '.join(f'``{event}``' for event in EVENTS)}",
    "methods": "a list of HTTP methods",
    "audience": "a list, see below",
    "plans": "a dictionary, see below",
    "shares": "a list of shares, such as 0.8",
    "statuses": "a list of HTTP statuses, and of classes such as ``5xx``",
    "reserve": "a whole number, ``mean``, or the path of a function",
    "path": "the path of a function",
    "results": "a list of HTTP statuses, of classes such as ``5xx``, and ``cancelled``",
}


def option_table(of: type[Options]) -> str:
    """The table as reStructuredText."""
    return HEAD + "".join(_row(row) for row in table(of).values() if row.kind != "name")


def _row(row: Option) -> str:
    title = row.label or (row.name if row.kind != "rates" else "rate").replace("_", " ").capitalize()
    cells = (f"``{row.name}``", title, _values(row), _default(row), _algorithms(row))
    return "   * - " + "\n     - ".join(cells) + "\n"


def _values(row: Option) -> str:
    if row.choices:
        return ", ".join(f"``{choice}``" for choice in row.choices)
    if row.kind in ("whole", "number"):
        return f"{'a whole number' if row.kind == 'whole' else 'a number'} from {row.min_value:,} to {row.max_value:,}"
    return VALUES[row.kind]


def _default(row: Option) -> str:
    default = row.default if row.initial is None else row.initial
    if default in (None, (), ""):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return ", ".join(f"``{one}``" for one in (default if isinstance(default, tuple) else (default,)))


def _algorithms(row: Option) -> str:
    if row.owners:
        return ", ".join(f"``{algorithm}``" for algorithm in row.owners)
    return f"all but {' and '.join(f'``{algorithm}``' for algorithm in row.never)}" if row.never else "all"


def option_texts() -> str:
    """The texts as a template of Django's, each once."""
    options = table(Rule).values()
    choices = [choice for option in options for choice in option.choices.values()]
    rows = [*options, *choices, *ALGORITHMS.values(), *KEY_KINDS.values()]
    texts = [getattr(row, name, "") for row in rows for name in ("label", "help", "override", "words")]
    texts += [*GROUPS, *AUDIENCE_KINDS, *(option.title for option in options)]
    texts += [kind.words.removeprefix("each ") for kind in KEY_KINDS.values()]
    lines = [f'{{{{ _("{text}") }}}}\n' for text in dict.fromkeys(texts) if text and isinstance(text, str)]
    return "{# written by python -m docs.options #}\n" + "".join(lines)


if __name__ == "__main__":
    FILE.write_text(option_table(Rule), encoding="utf-8")
    TEXTS.write_text(option_texts(), encoding="utf-8")
