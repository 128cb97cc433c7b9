"""The environment of the sites holds the wheel as pip installs it, and nothing of this tree."""

from __future__ import annotations

import os
from pathlib import Path

from tests.outside.environments import ROOT, environ, run

SHOW = """
import django, django_throttle, platform, sys
print(".".join(platform.python_version_tuple()[:2]), django.__version__, django_throttle.__file__, *sys.path, sep="\\n")
"""


def test_the_package_comes_from_the_wheel(site_python: Path, tmp_path: Path) -> None:
    """``make outside-versions`` names both versions."""
    told = run(str(site_python), "-c", SHOW, cwd=tmp_path, env=environ(site_python)).splitlines()
    python, django, package, *paths = told
    assert python == os.environ.get("OUTSIDE_PYTHON", f"python{python}").removeprefix("python")
    assert f"{django}.".startswith(f"{os.environ.get('OUTSIDE_DJANGO', django)}.")
    assert Path(package).is_relative_to(site_python.parents[1])
    assert not [path for path in paths if path and Path(path).is_relative_to(ROOT)]
