"""The wheel and the environment of a site, made once for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside import environments
from tests.outside.environments import EXTRAS, MakeEnvironment

# What a site is served and tested with. Pinned from below where an older one is known not to do.
SITE = (
    "daphne>=4.2.2",
    "django-ninja>=1.4",
    "drf-spectacular>=0.28",
    "gevent>=24",
    "gunicorn>=22",
    "pytest>=8.3",
    "pytest-asyncio>=1.0",
    "pytest-django>=4.9",
    "uvicorn>=0.35",
    "websockets>=13",
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    return environments.build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def make_environment(wheel: Path) -> MakeEnvironment:
    """``make_environment(folder, "django==5.2.*", …)``: an environment with the wheel, its extras, and these."""

    def make(folder: Path, *requirements: str, extras: str = EXTRAS) -> Path:
        return environments.make_environment(folder, f"{wheel}[{extras}]" if extras else str(wheel), *requirements)

    return make


@pytest.fixture(scope="session")
def site_python(make_environment: MakeEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the environment in which sites run: the wheel with all its extras, and servers."""
    return make_environment(tmp_path_factory.mktemp("site") / "venv", *SITE)
