"""A plugin of pytest: in every layer of channels_redis, memberships are counted and publications charged by us."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import django
import presence
from channels_redis.core import RedisChannelLayer
from channels_redis.pubsub import RedisPubSubLoopLayer
from django.conf import settings

settings.configure(
    SECRET_KEY="not secret",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_throttle"],
    DJANGO_THROTTLE=presence.THROTTLE | {"DATABASE_RULES": False},
)
django.setup()

from django_throttle.channels import throttled_group_send  # noqa: E402
from django_throttle.websockets.groups import CountingLayer  # noqa: E402

COUNTED = ("new_channel", "group_add", "group_discard")


def stand_in_the_way(kind: type[Any]) -> None:
    theirs = {name: getattr(kind, name) for name in (*COUNTED, "group_send")}

    def ours(layer: Any) -> CountingLayer:
        if "_ours" not in vars(layer):
            plain = SimpleNamespace(**{name: partial(method, layer) for name, method in theirs.items()})
            layer._ours = CountingLayer(plain, "default")
        return layer._ours

    def counted(name: str) -> Any:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await getattr(ours(self), name)(*args, **kwargs)

        return method

    async def group_send(self: Any, group: str, message: dict[str, Any]) -> None:
        await throttled_group_send(group, message, publisher="ip:127.0.0.1", layer=ours(self))

    for name in COUNTED:
        setattr(kind, name, counted(name))
    kind.group_send = group_send


stand_in_the_way(RedisChannelLayer)
stand_in_the_way(RedisPubSubLoopLayer)
