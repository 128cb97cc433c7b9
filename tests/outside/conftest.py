"""The wheel and the environment of a site, made once for the whole run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.outside import environments
from tests.outside.environments import EXTRAS
from tests.servers import RedisServer

# What a site is served and tested with. Pinned from below where an older one is known not to do.
SITE = "daphne>=4.2.2 django-ninja>=1.4 drf-spectacular>=0.28 gevent>=24 gunicorn>=22 uvicorn>=0.35 websockets>=13"
SUITES = "pytest>=8.3 pytest-asyncio>=1.0 pytest-django>=4.9"


@pytest.fixture(autouse=True)
def starts_processes(servers: None) -> None:
    """Every test here may build, install and serve."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


# made_once(name, make) -> a folder that ``make`` has filled
MadeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """A folder for all processes of this run: the first one that asks makes it, the others wait for it."""
    ours = tmp_path_factory.getbasetemp()
    shared = ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours

    def made_once(name: str, make: Callable[[Path], object]) -> Path:
        folder, made = shared / name, shared / f"{name}.made"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                make(folder)
                made.touch()
        return folder

    return made_once


@pytest.fixture(scope="session")
def wheel(made_once: MadeOnce) -> Path:
    (path,) = made_once("dist", environments.build_wheel).glob("*.whl")
    return path


@pytest.fixture(scope="session")
def site_python(wheel: Path, made_once: MadeOnce) -> Path:
    """The interpreter of the environment in which sites run: the wheel with all its extras, and servers."""

    def make(folder: Path) -> None:
        whole = (f"{wheel}[{EXTRAS}]", *SITE.split(), *SUITES.split(), *environments.DJANGO)
        environments.make_environment(folder, *whole)

    return made_once("site", make) / "bin" / "python"
