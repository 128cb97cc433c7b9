"""Run test suites of other projects with this package installed in them, and write docs/suites.inc.

``python -m tests.lab.foreign [NAME…] [--check]``. The exit status is 1 if a result differs from the run without this
package, if fewer tests passed than the suite has, or if the suite made fewer decisions than it should. ``--check``
writes nothing, and neither does a run of some of the suites.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lab.foreign.runs import Comparison, compare_all, fetch
from tests.lab.foreign.suites import EXTRAS, REQUIREMENTS, SUITES
from tests.outside import environments

PAGE = environments.ROOT / "docs" / "suites.inc"
BEGIN = ".. written by python -m tests.lab.foreign\n\n.. list-table::\n   :header-rows: 1\n   :widths: 26 9 33 8 8 8 8"
HEAD = ("Suite", "Version", "How its tests are limited", "Tests", "Decisions", "Scripts", "Changed")


def faults(comparison: Comparison) -> Iterator[str]:
    """Yield what is wrong with the runs of one suite, without this package and with it."""
    suite, plain, throttled = comparison.suite, comparison.plain, comparison.throttled
    if comparison.changed:
        yield comparison.differences()
    if comparison.counts()["passed"] < suite.least:
        yield f"fewer than {suite.least} tests passed: {throttled.printed}"
    if plain.decisions or plain.scripts:
        yield "the run without this package made decisions"
    if sum(throttled.decisions.values()) < suite.decisions or not throttled.scripts:
        yield f"fewer than {suite.decisions} decisions: {throttled.printed}"
    if throttled.decisions["degraded"]:
        yield f"Redis did not decide all of them: {throttled.decisions}"


def row(found: Comparison) -> tuple[str, ...]:
    suite, decisions = found.suite, sum(found.throttled.decisions.values())
    numbers = (len(found.throttled.outcomes), decisions, found.throttled.scripts, len(found.changed))
    return (suite.title, suite.version, suite.way, *(f"{number:,}" for number in numbers))


def page(comparisons: list[Comparison]) -> str:
    lines = [
        f"   {' ' if number else '*'} - {cell}"
        for cells in (HEAD, *map(row, comparisons))
        for number, cell in enumerate(cells)
    ]
    apart = [f"* {suite.title}, ``{name}``: {why}." for suite in SUITES.values() for name, why in suite.apart.items()]
    return "\n".join([BEGIN, "", *lines, "", "Left out, because they cannot apply:", "", *apart, ""])


def main(*names: str, check: bool) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fetch()
        wheel = environments.build_wheel(folder)
        # Each suite is that of one version, so the gate's pair of versions is not for them.
        python = environments.make_environment(
            folder / "venv", f"{wheel}[{EXTRAS}]", *REQUIREMENTS, base=sys.executable
        )
        comparisons = compare_all(names or SUITES, python, folder)
    found = [(comparison, fault) for comparison in comparisons for fault in faults(comparison)]
    for comparison in comparisons:
        print(*row(comparison), dict(comparison.counts()), dict(comparison.throttled.decisions), sep="; ")
    for comparison, fault in found:
        print(f"{comparison.suite.title}: {fault}")
    if not (check or names or found):
        PAGE.write_text(page(comparisons), encoding="utf-8")
    return int(bool(found))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(*(name for name in arguments if name != "--check"), check="--check" in arguments))
