"""The environment of the sites holds the wheel as pip installs it, and nothing of this tree."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.outside.environments import PIP, ROOT, environ, run
from tests.outside.pairs import PAIRS


def test_the_package_comes_from_the_wheel(site_python: Path, tmp_path: Path) -> None:
    show = "import django_throttle, sys; print(django_throttle.__file__, *sys.path, sep='\\n')"
    paths = run(str(site_python), "-c", show, cwd=tmp_path, env=environ(site_python)).splitlines()
    assert Path(paths[0]).is_relative_to(site_python.parents[1])
    assert not [path for path in paths if path and Path(path).is_relative_to(ROOT)]


def test_it_runs_on_the_versions_that_were_asked_for(site_python: Path, tmp_path: Path) -> None:
    """``make outside-versions`` names both."""
    show = "import django, platform; print('.'.join(platform.python_version_tuple()[:2]), django.__version__)"
    python, django = run(str(site_python), "-c", show, cwd=tmp_path, env=environ(site_python)).split()
    assert python == os.environ.get("OUTSIDE_PYTHON", f"python{python}").removeprefix("python")
    assert f"{django}.".startswith(f"{os.environ.get('OUTSIDE_DJANGO', django)}.")


def test_pairs_are_those_of_the_version_matrix() -> None:
    rows = re.findall(r"^    py3(\d+)-dj(\d)(\d)-", (ROOT / "setup.cfg").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*PAIRS} == {f"3.{python}/{major}.{minor}" for python, major, minor in rows}


def test_what_is_installed_fits_together(site_python: Path, tmp_path: Path) -> None:
    run(*PIP, "--python", str(site_python), "check", cwd=tmp_path)
