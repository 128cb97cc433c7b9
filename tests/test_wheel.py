"""The wheel as users get it: complete, and at work in an environment that holds nothing else."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "django_throttle"
pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What is released, built from two copies of this tree, whose files have other times and other rights."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    found = []
    for name, rights in (("first", 0o644), ("second", 0o600)):
        copy = tmp_path_factory.mktemp(name)
        for each in filter(None, listed.stdout.split("\0")):
            if (ROOT / each).is_file():
                (copy / each).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / each, copy / each)
                (copy / each).chmod(rights)
        subprocess.run([sys.executable, "-m", "hatchling", "build"], cwd=copy, check=True, capture_output=True)
        found.append(copy / "dist")
    return found


@pytest.fixture(scope="module")
def wheel(builds: list[Path]) -> Path:
    (wheel,) = builds[0].glob("*.whl")
    return wheel


def metadata_of(wheel: Path) -> str:
    with ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(metadata).decode()


def test_the_page_on_a_package_index_has_no_links_to_files(wheel: Path) -> None:
    _, _, page = metadata_of(wheel).partition("\n\n")
    links = r"\]\((?!https?:)[^)]*\)"
    assert re.findall(links, (ROOT / "README.md").read_text(encoding="utf-8"))
    assert page.startswith("# django_throttle\n") and "`CHANGELOG.md`" in page
    assert not re.findall(links, page)


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {".lua", ".html", ".mo"} <= {path.suffix for path in files} and PACKAGE / "py.typed" in files
    assert inside == {str(path.relative_to(ROOT)) for path in files}


def test_a_release_can_be_built_again_byte_for_byte(builds: list[Path]) -> None:
    first, second = (
        {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()} for folder in builds
    )
    assert sorted(name.rsplit(".", 1)[-1] for name in first) == ["gz", "whl"]
    assert first == second
