"""The wheel as users get it: complete, and at work in an environment that holds nothing else."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.servers import RedisServer

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "django_throttle"
pytestmark = pytest.mark.usefixtures("servers")

DECIDE = """
import sys
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_throttle"],
    SECRET_KEY="a key",
    DJANGO_THROTTLE={"AGENT": False},
)
django.setup()

import django_throttle
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore

rules = [Rule("a", "2/min"), Rule("b", "5/min", algorithm="gcra")]
for store in (MemoryStore(), RedisStore(sys.argv[1], deadline=5)):
    decision = Limiter(rules, store).acquire("user:1")
    print(type(store).__name__, decision.allowed, decision.remaining, decision.degraded)
print(django_throttle.__file__)
"""


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


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """The interpreter of an environment that holds the wheel and what it declares to need, nothing else."""
    folder = tmp_path / "empty"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder), "install"]
    subprocess.run([*install, "--quiet", "--no-index", "--no-deps", str(wheel)], check=True, capture_output=True)
    needed = re.findall(r"^Requires-Dist: (.*)$", metadata_of(wheel), re.MULTILINE)
    linked = set()
    while needed:
        requirement = Requirement(needed.pop())
        name = canonicalize_name(requirement.name)
        if name not in linked and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            linked.add(name)
            installed = distribution(name)
            needed += installed.requires or []
            for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
                (packages / top).symlink_to(Path(str(installed.locate_file(top))))
    return folder / "bin" / "python"


def test_it_decides_in_an_empty_environment(python: Path, redis_server: RedisServer, tmp_path: Path) -> None:
    command = [str(python), "-I", "-W", "error", "-c", DECIDE, redis_server.url]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    *decisions, origin = ran.stdout.splitlines()
    assert decisions == ["MemoryStore True 1 False", "RedisStore True 1 False"]
    assert not Path(origin).is_relative_to(ROOT)


def test_a_release_can_be_built_again_byte_for_byte(builds: list[Path]) -> None:
    first, second = (
        {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()} for folder in builds
    )
    assert sorted(name.rsplit(".", 1)[-1] for name in first) == ["gz", "whl"]
    assert first == second


def test_a_package_index_would_take_it(builds: list[Path]) -> None:
    files = [str(each) for each in builds[0].iterdir()]
    wheels = [each for each in files if each.endswith(".whl")]
    for command in (["twine", "check", "--strict", *files], ["check_wheel_contents", *wheels]):
        ran = subprocess.run([sys.executable, "-m", *command], check=False, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
