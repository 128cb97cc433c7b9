"""An operator who edits the rule of the door, in a process of its own.

Started as ``python -m tests.lab.campaign.editor '{"url": …, "database": …, "limit": 30}'``. It makes the tables, writes
the first rule and says "ready". For each line with a limit that it is sent it writes that one, and answers once it is
committed; "end" ends it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from tests.lab.campaign.limits import configure

GIVEN: dict[str, Any] = json.loads(sys.argv[1])
configure(GIVEN)

from django.core.management import call_command  # noqa: E402 - the settings come first
from django.db import InterfaceError, OperationalError, connection  # noqa: E402

from django_throttle import agent  # noqa: E402
from django_throttle.models import ThrottleRule  # noqa: E402
from django_throttle.stores import get_store  # noqa: E402
from tests.lab.campaign.limits import LIMITS, rate_of  # noqa: E402


def change(limit: int) -> None:
    given = {**LIMITS["door"].rule.as_options(), "rate": rate_of(limit)}
    while True:
        try:
            ThrottleRule.objects.update_or_create(name="door", defaults=given)
        except (InterfaceError, OperationalError):  # locked; or lost, and what is open is another one
            connection.close()
            time.sleep(0.1)
        else:
            return


def main() -> None:
    logging.disable()  # the faults of a round are no news
    call_command("migrate", verbosity=0)
    agent.ensure(get_store(), rules=True)  # tells what could not be told while Redis was away
    change(int(GIVEN["limit"]))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        change(int(line))
        print("written", flush=True)
    agent.stop()


if __name__ == "__main__":
    main()
