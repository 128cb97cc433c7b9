"""Run test suites of other projects with this package installed in them, and write docs/suites.inc.

``python -m tests.lab.foreign [NAME…] [--check]``. The exit status is 1 if a result differs from the run without this
package, if fewer tests passed than the suite has, or if the suite made fewer decisions than it should. ``--check``
writes nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lab.foreign import page, sources
from tests.lab.foreign.runs import Comparison, comparing
from tests.lab.foreign.suites import EXTRAS, REQUIREMENTS, SUITES
from tests.outside import environments


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


def main(*names: str, check: bool) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources.fetch()
        wheel = environments.build_wheel(folder)
        # Each suite is that of one version, so the gate's pair of versions is not for them.
        python = environments.make_environment(
            folder / "venv", f"{wheel}[{EXTRAS}]", *REQUIREMENTS, base=sys.executable
        )
        with comparing(names or SUITES, python, folder) as under_way:
            comparisons = [comparison.result() for comparison in under_way.values()]
    failed = False
    for comparison in comparisons:
        print(*page.row(comparison), dict(comparison.counts()), dict(comparison.throttled.decisions), sep="; ")
        for fault in faults(comparison):
            failed = True
            print(f"{comparison.suite.title}: {fault}")
    if not check:
        page.write(comparison for comparison in comparisons if not comparison.changed)
    return int(failed)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(*(name for name in arguments if name != "--check"), check="--check" in arguments))
