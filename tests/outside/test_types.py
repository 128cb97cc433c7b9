"""Type checkers at their strictest have nothing to say of a site's code, and find what is wrong in it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.outside.environments import ROOT, MakeEnvironment, environ

CHECKERS = (
    "basedpyright>=1.29",
    "django-stubs>=5.2",
    "djangorestframework-stubs>=3.16",
    "mypy>=1.15",
    "types-channels>=4.2",
)
LINES = {
    "mypy": ["mypy", "--strict", "--config-file", "", "typed_site.py"],
    "pyright": ["basedpyright", "typed_site.py"],
}
WRONG = """

def wrong() -> str:
    return limiter.acquire(1).allowed
"""


@pytest.fixture(scope="module")
def checkers(make_environment: MakeEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, the type checkers and the stubs of Django."""
    return make_environment(tmp_path_factory.mktemp("checkers"), *CHECKERS)


@pytest.mark.parametrize("name", LINES)
def test_a_strict_one_takes_what_a_site_writes(name: str, checkers: Path, tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "tests" / "outside" / "typed_site.py", tmp_path / "typed_site.py")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}), encoding="utf-8")

    def checked() -> subprocess.CompletedProcess[str]:
        line = [str(checkers.parent / LINES[name][0]), *LINES[name][1:]]
        return subprocess.run(line, cwd=tmp_path, env=environ(checkers), capture_output=True, text=True, check=False)

    done = checked()
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "typed_site.py").open("a", encoding="utf-8") as site:
        site.write(WRONG)
    done = checked()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "acquire" in done.stdout
