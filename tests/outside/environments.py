"""The wheel, and environments that hold it as a user has them: installed by pip, with none of this tree in reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
# On which the wheel is tried, by ``make outside-versions`` and the gate; else on what runs the tests,
# and the newest Django.
BASE = os.environ.get("OUTSIDE_PYTHON") or sys.executable
DJANGO = tuple(f"django=={one}.*" for one in os.environ.get("OUTSIDE_DJANGO", "").split())
EXTRAS = "celery,channels,drf,graphql,httpx,opentelemetry,prometheus,tasks"
# What a process of a site must not take over from the one that runs these tests.
OURS = ("DJANGO_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "COV_", "COVERAGE")


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    run(*command, cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


def make_environment(folder: Path, *requirements: str, base: str = BASE) -> Path:
    """A new environment in ``folder`` with these requirements, installed by one run of pip; returns its interpreter."""
    run(base, "-m", "venv", "--without-pip", "--symlinks", str(folder), cwd=folder.parent)
    python = folder / "bin" / "python"
    if requirements:
        # A site imports a third of it, and keeps the bytecode of that.
        install = ("install", "--quiet", "--no-compile", "--only-binary", ":all:")
        run(*PIP, "--python", str(python), *install, *requirements, cwd=folder)
    return python


def environ(python: Path | None = None, **changes: str) -> dict[str, str]:
    """The environment of a process of a site: as in a shell in which that interpreter's environment is active."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    if python is not None:
        kept |= {"PATH": f"{python.parent}{os.pathsep}{kept['PATH']}", "VIRTUAL_ENV": str(python.parents[1])}
    return {**kept, "PYTHONUNBUFFERED": "1", **changes}


def run(*command: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 300) -> str:
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": timeout}
    done = subprocess.run(command, cwd=cwd, env=environ() if env is None else env, check=False, **options)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout
