"""Child processes, however they were started and however they end: what they held comes back, what they did is told."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings

from django_throttle import agent
from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter, decide
from django_throttle.stores import get_store
from tests.callers import SameByEveryKey
from tests.crew import SPAWN
from tests.servers import slack, wait_until

RULES: dict[str, Any] = {
    "bought": {"rate": "1000/h", "algorithm": "fixed_window", "prepaid": True, "events": ["task"], "key": "user"},
    "runs": {"rate": "1000/h", "algorithm": "fixed_window", "events": ["task"], "key": "user"},
}
BOUGHT = Rule.from_options("bought", RULES["bought"])
CALLS = 40


def settings_of(url: str) -> dict[str, Any]:
    return {"REDIS": url, "RULES": RULES, "DATABASE_RULES": False, "DEADLINE": 10.0}


def work(url: str) -> int:
    django.setup()
    settings.DJANGO_THROTTLE = settings_of(url)
    conf.cache_clear()
    call = Call("job", ("task",), SameByEveryKey())  # type: ignore[arg-type]
    return sum(decide(call).allowed for _ in range(CALLS))


def work_and_end(url: str) -> int:
    """A job that tells what it did, as its worker ends without what a process does at its end."""
    passed = work(url)
    agent.stop()
    return passed


def run_children(method: str, url: str) -> None:
    """Run two, one after the other, from a process that has no other threads."""
    for _ in range(2):
        child = multiprocessing.get_context(method).Process(target=work, args=(url,))
        child.start()
        child.join()
        assert child.exitcode == 0


def run_pool(method: str, url: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(work_and_end, [url] * 2) == [CALLS] * 2


def check_nothing_is_lost(jobs: int = 2) -> None:
    store = get_store()
    assert Limiter([BOUGHT], store).peek("user:1", cost=0).remaining == 1000 - jobs * CALLS
    assert store.transport.client.zcard("dt:{p}:live") == 0, "no ended child counts as living"
    from tests.console.conftest import recorded  # not in a child: it needs apps that are loaded

    assert recorded(store, "runs").allowed == recorded(store, "bought").allowed == jobs * CALLS


@pytest.fixture
def url(servers: None, redis_url: str, settings: Any) -> str:
    settings.DJANGO_THROTTLE = {**settings_of(redis_url)}
    return redis_url


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("jobs", [run_children, run_pool])
def test_by_itself_or_terminated(jobs: Callable[[str, str], None], method: str, url: str) -> None:
    parent = SPAWN.Process(target=jobs, args=(method, url))
    parent.start()
    parent.join(slack(60))
    assert parent.exitcode == 0
    check_nothing_is_lost()


CELERY = """
import os
from celery import Celery
from tests.test_children import work

app = Celery("jobs", broker=os.environ["JOBS"], set_as_current=False)
app.conf.broker_connection_retry_on_startup = True

@app.task(name="job")
def job():
    assert work(os.environ["COUNTS"]) == 40
    with open(os.environ["RAN"], "a") as file:
        file.write("x")
"""


def test_children_of_celery_that_are_replaced(url: str, tmp_path: Path) -> None:
    """By ``--max-tasks-per-child``: they end by os._exit."""
    (tmp_path / "jobs.py").write_text(CELERY)
    ran = tmp_path / "ran"
    ran.touch()
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    jobs = url.rpartition("/")[0] + "/1"
    env = {**os.environ, "PYTHONPATH": paths, "JOBS": jobs, "COUNTS": url, "RAN": str(ran)}
    send = "from jobs import job; [job.delay() for _ in range(6)]"
    subprocess.run([sys.executable, "-c", send], env=env, check=True, timeout=slack(60))
    arguments = "celery -A jobs worker -c 1 --max-tasks-per-child 2 --without-mingle --without-gossip -l warning"
    worker = subprocess.Popen([sys.executable, "-m", *arguments.split()], env=env)
    try:
        wait_until(lambda: ran.read_text() == "x" * 6, timeout=slack(60))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(slack(60))
    check_nothing_is_lost(jobs=6)
