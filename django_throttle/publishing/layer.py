"""The channel layer as a consumer sees it: its own, and what joins and leaves groups through it is counted."""

from __future__ import annotations

from typing import Any

from django_throttle.publishing.members import Members, members


def name_of(alias: str, group: str) -> str:
    """The ident of a group: layers have groups of their own."""
    return f"group:{alias}:{group}"


class CountingLayer:
    """Stands before a channel layer for one consumer, whose channel is the first that it makes; all else passes."""

    def __init__(self, layer: Any, alias: str, counts: Members = members) -> None:
        self._layer, self.alias, self._counts = layer, alias, counts
        self._channel: str | None = None
        self._groups: set[str] | None = set()  # None when the socket is over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    async def new_channel(self, *args: Any, **kwargs: Any) -> Any:
        """A name for a channel; the consumer's own, the first time."""
        channel = await self._layer.new_channel(*args, **kwargs)
        self._channel = self._channel or channel
        return channel

    async def group_add(self, group: str, channel: str) -> None:
        """Have a channel join; the consumer's own is counted."""
        await self._layer.group_add(group, channel)
        if channel == self._channel and self._groups is not None:
            self._groups.add(name_of(self.alias, group))
            self._counts.add(name_of(self.alias, group), channel)

    async def group_discard(self, group: str, channel: str) -> None:
        """Have a channel leave."""
        try:
            await self._layer.group_discard(group, channel)
        finally:
            if channel == self._channel and self._groups is not None:
                self._groups.discard(name_of(self.alias, group))
                self._counts.discard(name_of(self.alias, group), channel)

    def end(self) -> None:
        """The socket is over: whatever the consumer has forgotten to leave, it is in no group."""
        groups, self._groups = self._groups, None
        for group in groups or ():
            self._counts.discard(group, self._channel or "")


class Counted:
    """The attribute ``channel_layer`` of a consumer: what Channels puts there is put behind a CountingLayer."""

    def __get__(self, consumer: Any, owner: type | None = None) -> Any:
        if consumer is None:
            return self
        try:
            return vars(consumer)["channel_layer"]
        except KeyError:
            raise AttributeError("channel_layer: the consumer has not been called yet") from None

    def __set__(self, consumer: Any, layer: Any) -> None:
        if layer is not None and not isinstance(layer, CountingLayer):
            layer = CountingLayer(layer, getattr(consumer, "channel_layer_alias", "default"))
        vars(consumer)["channel_layer"] = layer

    @staticmethod
    def end(consumer: Any) -> None:
        """The consumer's socket is over."""
        layer = vars(consumer).get("channel_layer")
        if layer is not None:
            layer.end()
