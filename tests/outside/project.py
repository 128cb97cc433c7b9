"""A project that django-admin makes, in which only what the docs show is written, and its servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from testproject.services import end, free_port, is_listening
from tests.outside.environments import environ, run
from tests.outside.pages import Block
from tests.servers import slack, wait_until

# How each server is started, as its own documentation says; PORT stands for the port.
Result = TypeVar("Result")
ASGI = "mysite.asgi:application"
GUNICORN = "gunicorn mysite.wsgi:application --bind 127.0.0.1:PORT --workers 2 --worker-class"
SERVERS = {
    "uvicorn": f"uvicorn {ASGI} --port PORT", "daphne": f"daphne --port PORT {ASGI}",
    "gunicorn sync": f"{GUNICORN} sync", "gunicorn gthread": f"{GUNICORN} gthread --threads 4",
    "gunicorn gevent": f"{GUNICORN} gevent",
}  # fmt: skip
SOCKETS = ("uvicorn", "daphne")  # those that serve WebSockets
DEADLINE = 'DJANGO_THROTTLE["DEADLINE"] = 5.0\n'  # this machine is busy; nothing here is about deadlines
REDIS = re.compile(r"redis://[\w.-]+:6379")  # the one thing that a test changes in what the docs show
OTHER_IMPORT = re.compile(r"^from django\.tasks import .*?  # before 6\.0: (.*)$", re.MULTILINE)


class Project:
    """``mysite``, in a folder of its own, run by the interpreter of the site's environment."""

    def __init__(self, python: Path, folder: Path, redis: str) -> None:
        self.python, self.folder, self.redis = python, folder, redis

    def start(self) -> Project:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.shell("django-admin startproject mysite", self.folder.parent)
        (self.folder / ".curlrc").write_text("silent\nshow-error\n", encoding="utf-8")
        return self

    def copy(self, folder: Path, redis: str = "") -> Project:
        """The same project once more, which counts in another Redis if one is given."""
        shutil.copytree(self.folder, folder)
        settings = folder / "mysite" / "settings.py"
        text = settings.read_text(encoding="utf-8")
        settings.write_text(text.replace(authority(self.redis), authority(redis or self.redis)), encoding="utf-8")
        return Project(self.python, folder, redis or self.redis)

    def write(self, *blocks: Block) -> Project:
        written: set[str] = set()
        for block in blocks:
            assert block.file, f"{block} names no file"
            self.append(block.file, block.code, anew=not block.is_appended and block.file not in written)
            written.add(block.file)
        return self

    def append(self, file: str, code: str, *, anew: bool = False) -> None:
        """Write code at the end of a file, or in its place; addresses of Redis are those of the test's own."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != self.folder:
            (path.parent / "__init__.py").touch()
        if not self.has_tasks:  # as the comment says
            code = OTHER_IMPORT.sub(r"\1", code)
        before = "" if anew or not path.exists() else path.read_text(encoding="utf-8").rstrip("\n") + "\n\n\n"
        path.write_text(before + REDIS.sub(authority(self.redis), code), encoding="utf-8")

    @cached_property
    def has_tasks(self) -> bool:
        asked = "from importlib.util import find_spec; print(bool(find_spec('django.tasks')))"
        return "True" in run(str(self.python), "-c", asked, cwd=self.folder, env=self.environ())

    def environ(self, **changes: str) -> dict[str, str]:
        # What servers and curl keep in the user's home stays here.
        return environ(self.python, HOME=str(self.folder), **changes)

    def shell(self, line: str, folder: Path | None = None, **changes: str) -> str:
        """What a line prints in a shell in which the environment is active; fails unless it ends well."""
        return run("bash", "-c", line, cwd=folder or self.folder, env=self.environ(**changes))

    def python_code(self, code: str, **changes: str) -> str:
        setup = "import os, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'; django.setup()\n"
        return run(str(self.python), "-c", setup + code, cwd=self.folder, env=self.environ(**changes))

    def manage(self, arguments: str) -> str:
        return self.shell(f"python manage.py {arguments}")

    @contextmanager
    def process(self, line: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
        with self.log(name).open("wb") as log:
            command = ["bash", "-c", f"exec {line}"]
            options: Any = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            options |= {"cwd": self.folder, "env": self.environ(), "start_new_session": True}
            process = subprocess.Popen(command, **options)
        try:
            yield process
        finally:
            end(process)

    def log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    @contextmanager
    def served(self, servers: Iterable[str] = ("gunicorn sync",)) -> Iterator[dict[str, int]]:
        with ExitStack() as stack:
            ports = {}
            for server in servers:
                ports[server] = free_port()
                line = SERVERS[server].replace("PORT", str(ports[server]))
                stack.enter_context(self.process(line, server))
            for server, port in ports.items():
                try:
                    wait_until(lambda port=port: is_served(port), timeout=slack(60), every=0.05)  # type: ignore[misc]
                except AssertionError as error:
                    raise AssertionError(f"{server} did not start:\n{self.log(server).read_text()}") from error
            yield ports


def is_served(port: int) -> bool:
    """Whether a server listens there, rather than a process that tries the port for a moment to choose its own."""
    if not is_listening(port):
        return False
    time.sleep(0.1)
    return is_listening(port)


def authority(url: str) -> str:
    return url.rpartition("/")[0]


def at_once(jobs: Mapping[str, Callable[[], Result]]) -> dict[str, Future[Result]]:
    """Start these jobs, as many at a time as there are processors; each result is asked of its future."""
    pool = ThreadPoolExecutor(max(2, os.cpu_count() or 2))
    futures = {name: pool.submit(job) for name, job in jobs.items()}
    pool.shutdown(wait=False)
    return futures
