"""Runs a suite with us in the way, and both ways what does not pass then; says what has become of each test."""

import json
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.foreign.suites import SUITES, Suite
from tests.outside.environments import PIP, ROOT, environ, run
from tests.servers import RedisServer

LONGEST = 900.0  # seconds; a machine that is busy with others takes many times as long as one that is not
AGAIN = 4
UNLOADED = "_FailedTest"  # what unittest makes of a module that it cannot import


class Sentinel(RedisServer):
    def __init__(self, master: int) -> None:
        self.master = master
        super().__init__()

    def client(self, **options: object) -> object:  # type: ignore[override]
        return super().client(password="channels_redis", **options)

    def command(self) -> list[str]:
        settings = self.folder / "sentinel.conf"
        lines = ["requirepass channels_redis", f"sentinel monitor sentinel 127.0.0.1 {self.master} 1"]
        settings.write_text("\n".join((f"port {self.port}", "bind 127.0.0.1", *lines, "")))
        return [self.binary, str(settings), "--sentinel", "--dir", str(self.folder)]


@dataclass(frozen=True)
class Run:
    """One run: each test's outcome, our decisions by what they were, and what was printed."""

    outcomes: Mapping[str, str]
    decisions: Counter[str]
    scripts: int  # that Redis ran for us
    printed: str


@dataclass(frozen=True)
class Comparison:
    """A suite with us in the way; ``plain`` and ``again`` are the last runs of those tests that did not pass then."""

    suite: Suite
    throttled: Run
    plain: Run
    again: Run

    @property
    def changed(self) -> dict[str, tuple[str, str]]:
        """The tests that do not pass with us and end in another way without, every time."""
        return differing(self.plain, self.again)

    def counts(self) -> Counter[str]:
        return Counter(self.throttled.outcomes.values())

    def differences(self) -> str:
        lines = [f"{name}: {plain} -> {throttled}" for name, (plain, throttled) in sorted(self.changed.items())]
        return "\n".join([f"{len(lines)} results change:", *lines, "", self.again.printed])


def differing(plain: Run, throttled: Run) -> dict[str, tuple[str, str]]:
    first, second = plain.outcomes, throttled.outcomes
    pairs = {name: (first.get(name, "missing"), second.get(name, "missing")) for name in {**first, **second}}
    return {name: pair for name, pair in pairs.items() if pair[1] not in ("passed", pair[0])}


def compare_all(names: Iterable[str], python: Path, folder: Path) -> list[Comparison]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda name: compare(SUITES[name], python, folder / name), names))


def compare(suite: Suite, python: Path, folder: Path) -> Comparison:
    """Run it with us, and what does not pass then both ways: some tests depend on how busy the machine is."""
    throttled = again = _run(suite, python, folder / "all", suite.throttled, suite.tests)
    plain = Run({}, Counter(), 0, "")
    for number in range(AGAIN):
        names = list(differing(plain, again))
        if not names or any(UNLOADED in name for name in names):
            break
        plain = _run(suite, python, folder / f"plain-{number}", suite.plain, names)
        again = _run(suite, python, folder / f"throttled-{number}", suite.throttled, names)
    return Comparison(suite, throttled, plain, again)


def _run(suite: Suite, python: Path, folder: Path, options: tuple[str, ...], tests: Iterable[str]) -> Run:
    folder.mkdir(parents=True)
    where = unpack(suite, folder / "source")
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(RedisServer()), stack.enter_context(RedisServer())
        sentinel = stack.enter_context(Sentinel(theirs.port)) if suite.sentinel else None
        variables = environ(
            python,
            PYTHONPATH=str(INSIDE),
            FOREIGN_REDIS=ours.url,
            FOREIGN_THEIR_REDIS=theirs.url.removesuffix("/0"),
            FOREIGN_SENTINEL=str(sentinel.port if sentinel else 0),
            FOREIGN_DECISIONS=str(folder / "decisions"),
            FOREIGN_OUTCOMES=str(folder / "outcomes"),
            FOREIGN_KEY=suite.key,
            FOREIGN_HEADERS=suite.headers,
            **suite.environ,
        )
        apart = ("-k", " and ".join(f"not {name}" for name in suite.apart)) if suite.apart else ()
        command = [str(python), *suite.command, *options, *apart, *tests]
        outputs: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
        printed = subprocess.run(command, cwd=where, env=variables, timeout=LONGEST, check=False, **outputs).stdout
        with ours.client() as client:
            scripts = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    assert (folder / "outcomes").is_file(), printed
    lines = (folder / "decisions").read_text().split() if (folder / "decisions").is_file() else []
    return Run(json.loads((folder / "outcomes").read_text()), Counter(lines), scripts, printed)


KEPT = ROOT / ".outside"
INSIDE = Path(__file__).parent / "inside"


def archive(name: str, version: str) -> Path:
    folder = KEPT / f"{name}-{version}"
    if not folder.is_dir():
        KEPT.mkdir(exist_ok=True)
        made = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(made, ignore_errors=True)
        options = ("--quiet", "--no-deps", "--no-binary", name, "-d", str(made))
        run(*PIP, "download", *options, f"{name}=={version}", cwd=KEPT)
        made.rename(folder)
    (found,) = folder.glob("*.tar.gz")
    return found


def fetch() -> None:
    for name, version in sorted({(suite.distribution, suite.version) for suite in SUITES.values()}):
        archive(name, version)


def unpack(suite: Suite, folder: Path) -> Path:
    """A copy of the suite's own, with what its source distribution leaves out; returns where it is run."""
    with tarfile.open(archive(suite.distribution, suite.version)) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian's Python 3.11.2 has none
        packed.extractall(folder)
    (top,) = folder.iterdir()
    if suite.lacks:
        for path in (INSIDE / suite.lacks).iterdir():
            shutil.copy(path, top / ("tests" if path.suffix == ".py" else "."))
    return top / suite.folder
