"""The sixty seconds of the README, word for word, with Redis and without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testproject.services import free_port
from tests.outside.answers import assert_shown
from tests.outside.pages import commands, page
from tests.outside.project import Project, is_served
from tests.servers import RedisServer, need_binary, slack, wait_until

PAGE = page("README.md")
SETTINGS, URLS, *_ = (block.code for block in PAGE if block.language == "python")
MIGRATE, SERVE, CURL = (one for one in commands(PAGE) if one.line.startswith(("python", "curl")))


@pytest.mark.parametrize("has_redis", [True, False])
@pytest.mark.row("R17")
def test_sixty_seconds(site_python: Path, tmp_path: Path, has_redis: bool) -> None:
    need_binary("curl")
    redis = RedisServer()
    url = redis.url
    try:
        if not has_redis:
            redis.stop()
        play(Project(site_python, tmp_path / "mysite", url).start(), has_redis)
    finally:
        redis.stop()


def play(project: Project, has_redis: bool) -> None:
    # This machine is busy with other servers; nothing here is about deadlines.
    project.append("mysite/settings.py", SETTINGS + 'DJANGO_THROTTLE["DEADLINE"] = 5.0\n')
    project.append("mysite/urls.py", URLS, anew=True)
    (project.folder / ".curlrc").write_text("silent\nshow-error\n", encoding="utf-8")
    project.shell(MIGRATE.line)
    port = free_port()
    with project.process(f"{SERVE.line} --noreload {port}", "runserver"):
        wait_until(lambda: is_served(port), timeout=slack(60), every=0.1)
        curl = CURL.line.replace("8000", str(port))
        answer = project.shell(curl)
        shown = CURL.answer if has_redis else [line for line in CURL.answer if not line.startswith("RateLimit")]
        assert_shown(shown, answer)
        assert ("ratelimit" in answer.lower()) == has_redis
        more = f'curl -o /dev/null -w "%{{http_code}}\\n" "http://127.0.0.1:{port}/search?q=[1-110]"'
        statuses = project.shell(more).split()
        assert set(statuses[:99]) == {"200"} and "429" in statuses[99:]  # a new minute in between lets some more pass
        wait_until(lambda: re.search("(?i)^Retry-After: [0-9]+", project.shell(curl), re.MULTILINE))
        assert ("Redis does not answer" in project.log("runserver").read_text()) == (not has_redis)
