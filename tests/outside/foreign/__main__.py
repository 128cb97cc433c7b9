"""Runs all suites, or those that are named, and writes their rows of the table in docs/reference/compatibility.rst."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.outside import environments
from tests.outside.foreign import page, sources
from tests.outside.foreign.runs import comparing
from tests.outside.foreign.suites import EXTRAS, REQUIREMENTS, SUITES


def main(*names: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources.fetch()
        wheel = environments.build_wheel(folder)
        python = environments.make_environment(folder / "venv", f"{wheel}[{EXTRAS}]", *REQUIREMENTS)
        with comparing(names or SUITES, python, folder) as under_way:
            found = [one.result() for one in under_way.values()]
    for one in found:
        print(*page.row(one), dict(one.counts()), dict(one.throttled.decisions), sep="; ")
        if one.changed:
            print(one.differences())
    page.write(one for one in found if not one.changed)


if __name__ == "__main__":
    main(*sys.argv[1:])
