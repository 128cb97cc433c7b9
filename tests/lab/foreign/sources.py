"""Source distributions: got by pip once, kept in a folder that no commit holds."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from tests.lab.foreign.suites import SUITES, Suite
from tests.outside.environments import PIP, ROOT, run

KEPT = ROOT / ".outside"
INSIDE = Path(__file__).parent / "inside"


def archive(name: str, version: str) -> Path:
    """The file of a source distribution, which is got where it is not there yet."""
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
