"""``make demo-check``: what a person would do at the demo, with real clients over real sockets; prints a table.

Starts its own Redis, server and refresher on free ports, and ends them. Exits 1 when a step is off.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from testproject.check import steps
from testproject.check.replay import replay
from testproject.check.standstill import watch
from testproject.check.table import Row, Table
from testproject.check.visitor import Visitor
from testproject.services import NotRunning, Services, free_port, start_site, stop_on_signals

PARTS = (steps.log_in, steps.burst, steps.later, steps.shared_budget, steps.chat, steps.sockets, steps.edit)


def main() -> int:
    """Run every part; one that breaks is a row too, and the others still run."""
    stop_on_signals()
    watch.start()
    table, started = Table(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="demo-check-") as folder:
            _at_the_site(Path(folder), table)
    except NotRunning as reason:
        table.add([Row("start the demo", "it runs", str(reason).splitlines()[0], False)])
        print(reason, file=sys.stderr)
    table.add(_safely("replay", replay))
    print(f"\n{table}\n\n{'All is well' if table.passed else 'Something is off'}; {time.monotonic() - started:.0f} s.")
    return 0 if table.passed else 1


def _at_the_site(folder: Path, table: Table) -> None:
    port = free_port()
    with Services(folder) as services:
        services.environment["DEADLINE"] = "1"  # nothing here is about failures of the store
        start_site(services, port)
        visitor = Visitor(port)
        for part in PARTS:
            table.add(_safely(part.__name__, partial(part, visitor)))
        visitor.close()
        if not table.passed:
            print(services.last_words("server"), file=sys.stderr)


def _safely(name: str, part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    try:
        yield from part()
    except Exception as error:  # noqa: BLE001 (whatever breaks a part must be shown, not end the others)
        yield Row(name.replace("_", " "), "no error", f"{type(error).__name__}: {error}"[:100], False)


if __name__ == "__main__":
    sys.exit(main())
