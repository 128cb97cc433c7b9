"""A process with members in a group, that it joined as consumers do; told over a pipe to have more or fewer.

Started as ``python -m tests.publishing.worker '{"REDIS": …}'``, the argument being DJANGO_THROTTLE. A line of its input
is a number of members to have in the group "news"; the answer is "ok".
"""

from __future__ import annotations

import asyncio
import json
import sys

import django
from django.conf import settings

SECRET = "the same in all tests of publishing"
GROUP = "news"


async def main() -> None:
    from channels.layers import InMemoryChannelLayer

    from django_throttle import agent
    from django_throttle.publishing.groups import CountingLayer
    from django_throttle.stores import get_store

    agent.ensure(get_store(), rules=True)
    layer = InMemoryChannelLayer()
    consumers: list[CountingLayer] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        for consumer in consumers[int(line) :]:
            consumer.end()
        del consumers[int(line) :]
        while len(consumers) < int(line):
            consumers.append(CountingLayer(layer, "default"))
            await consumers[-1].group_add(GROUP, await consumers[-1].new_channel())
        print("ok", flush=True)


if __name__ == "__main__":
    settings.configure(
        SECRET_KEY=SECRET,
        INSTALLED_APPS=["django_throttle"],
        DJANGO_THROTTLE=json.loads(sys.argv[1]),
        LOGGING_CONFIG=None,
    )
    django.setup()
    asyncio.run(main())
