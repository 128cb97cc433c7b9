"""Write ``scripts.inc``, the table of scripts that ``store.rst`` shows: ``python -m docs.scripts``."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("scripts.inc")
PACKAGE: Final = Path(__file__).parents[1] / "django_throttle"
FOLDERS: Final = (PACKAGE / "stores" / "lua", PACKAGE / "console" / "lua")
FRAGMENT: Final = "Included in "  # begins the header of a part of other scripts
HEAD: Final = """\
.. written by python -m docs.scripts

.. list-table::
   :header-rows: 1
   :widths: 20 80

   * - Script
     - What it does
"""


def script_table() -> str:
    """Return the table of scripts, each with the first sentence of its header, without parts of other scripts."""
    paths = sorted([path for folder in FOLDERS for path in folder.glob("*.lua")], key=attrgetter("stem"))
    sentences = {path.stem: _sentence(path.read_text(encoding="utf-8")) for path in paths}
    rows = [f"   * - ``{name}``\n     - {text}\n" for name, text in sentences.items() if not text.startswith(FRAGMENT)]
    return HEAD + "".join(rows)


def _sentence(code: str) -> str:
    comment = re.match(r"(?:--.*\n)+", code.lstrip())
    text = " ".join(line.removeprefix("--").strip() for line in comment[0].splitlines()) if comment else ""
    return re.sub(r"`([^`]+)`", r"``\1``", re.split(r"(?<=\.) |: |; ", text)[0].rstrip(".") + ".")


if __name__ == "__main__":
    FILE.write_text(script_table(), encoding="utf-8")
