"""The page of tasks, word for word: three are enqueued, and a worker runs each at the moment that was printed."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from tests.outside.pages import commands, page
from tests.outside.project import Project
from tests.servers import RedisServer, slack, wait_until

PAGE = page("tasks.rst")
COMMANDS = {command.line: command for command in commands(PAGE)}
_, MIGRATE, ENQUEUE, WORKER = COMMANDS
TIME = re.compile(r"\d\d:\d\d:\d\d")


def times(printed: str) -> list[datetime]:
    return [datetime.strptime(f"{found}+0000", "%H:%M:%S%z") for found in TIME.findall(printed)]


def test_each_mail_waits_for_its_turn(site_python: Path, tmp_path: Path) -> None:
    with RedisServer() as redis:
        project = Project(site_python, tmp_path / "mysite", redis.url).start()
        project.write(*(block for block in page("quickstart.rst") if block.sets and block.file))
        project.write(*(block for block in PAGE if block.file))
        project.append("mysite/settings.py", 'DJANGO_THROTTLE["DEADLINE"] = 5.0\n')
        project.shell(MIGRATE)
        told = project.shell(ENQUEUE)
        for shown, printed in zip(COMMANDS[ENQUEUE].answer, told.splitlines(), strict=True):
            assert TIME.sub("N", shown) == TIME.sub("N", printed)
        second, third = times(told)
        assert (third - second).seconds == 6
        with project.process(WORKER, "worker"):
            log = project.log("worker")
            wait_until(lambda: log.read_text().count("an invoice for user 1") == 3, timeout=slack(30), every=0.2)
        sent = [line for line in log.read_text().splitlines() if "an invoice" in line]
        assert [TIME.sub("N", line) for line in sent] == [TIME.sub("N", line) for line in COMMANDS[WORKER].answer]
        _, *moments = times("\n".join(sent))
        late = [(sent - told).seconds for sent, told in zip(moments, (second, third), strict=True)]  # past midnight too
        assert max(late) < slack(5), late
