"""Members of groups: which channels of this process are in which, what others have, and how Redis is told."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_throttle import observe, rulebook
from django_throttle.agent import StoreJob
from django_throttle.conf import conf
from django_throttle.core.commands import CountMembers
from django_throttle.core.io import run
from django_throttle.exceptions import StoreError
from django_throttle.runtime import in_child, spawn
from django_throttle.stores.base import Store, StoreIo
from django_throttle.stores.redis.commands import store_members_calls
from django_throttle.stores.redis.failures import errors_of, raise_first
from django_throttle.stores.redis.store import RedisStore
from django_throttle.stores.redis.transport import batches

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer


class LocalMembers:
    """Channels by group, from any thread; none in a forked child, which is a process of its own."""

    def __init__(self) -> None:
        self.renew()
        in_child(self, type(self).renew)

    def renew(self) -> None:
        """Start anew: nobody is in any group, under another name of the process."""
        self.process = secrets.token_urlsafe(9)
        self._lock = Lock()
        self._groups: dict[str, set[str]] = {}
        self._changed: set[str] = set()

    def add(self, group: str, channel: str) -> None:
        with self._lock:
            self._groups.setdefault(group, set()).add(channel)
            self._changed.add(group)

    def discard(self, group: str, channel: str) -> None:
        with self._lock:
            channels = self._groups.get(group)
            if channels is None or channel not in channels:
                return
            channels.remove(channel)
            if not channels:
                del self._groups[group]
            self._changed.add(group)

    def count(self, group: str) -> int:
        return len(self._groups.get(group, ()))

    def take_changed(self, *, whole: bool = False) -> dict[str, int]:
        """How many are in each group that has changed since the last call, or in every one."""
        with self._lock:
            named = self._changed.union(self._groups) if whole else self._changed
            self._changed = set()
            return {group: self.count(group) for group in named}

    def tell_again(self, groups: Iterable[str]) -> None:
        """Others may not know of these groups: tell them again."""
        with self._lock:
            self._changed.update(groups)


members = LocalMembers()


REMEMBERED_SECONDS: Final = 1.0
MAX_GROUPS: Final = 4096


class RemoteMembers(NamedTuple):
    """What other processes had in a group, by this store, until when it is good."""

    store: Store
    members: int
    until: float


class MemberCounts:
    """Asks the store at most once a second for each group; what it said last holds while it is away."""

    def __init__(self, own: LocalMembers = members) -> None:
        self.own = own
        self._remote: dict[str, RemoteMembers] = {}
        self._asking: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[RemoteMembers]] = {}

    async def of(self, io: StoreIo, group: str) -> int:
        """Return the number of members; on an event loop those who ask at the same time ask once. Raises nothing."""
        remote = self._fresh(group, io.store)
        if remote is None:
            remote = await io.call(lambda: run(self._ask(io, group)), lambda: self._ask_together(io, group))
        return self.own.count(group) + remote.members

    async def _ask_together(self, io: StoreIo, group: str) -> RemoteMembers:
        here = (asyncio.get_running_loop(), group)
        asking = self._asking.get(here)
        if asking is None:
            asking = self._asking[here] = spawn(self._ask(io, group))
            asking.add_done_callback(lambda _: self._asking.pop(here, None))
        return await asyncio.shield(asking)  # whoever stops waiting leaves it to the others

    async def _ask(self, io: StoreIo, group: str) -> RemoteMembers:
        now, store = time.monotonic(), io.store
        try:
            count = (await io.execute(CountMembers(group, self.own.process, conf().PROCESS_TTL))) or 0
        except StoreError:
            before = self._remote.get(group)
            count = before.members if before is not None and before.store is store else 0
        if len(self._remote) >= MAX_GROUPS:
            self._remote.clear()
        remote = self._remote[group] = RemoteMembers(store, count, now + REMEMBERED_SECONDS)
        return remote

    def at_least(self, group: str, store: Store) -> int:
        """The number of members as far as it is known here, without asking."""
        remote = self._fresh(group, store)
        return self.own.count(group) + (0 if remote is None else remote.members)

    def _fresh(self, group: str, store: Store) -> RemoteMembers | None:
        remote = self._remote.get(group)
        is_fresh = remote is not None and remote.store is store and time.monotonic() < remote.until
        return remote if is_fresh else None

    def forget(self) -> None:
        self._remote.clear()


def counts_publications(snapshot: rulebook.Snapshot) -> bool:
    """Whether any rule counts publications: without one nobody is told, and nobody asks, how large groups are."""
    return any(rule.enabled and "publish" in rule.events for rule in snapshot.rules)


member_counts = MemberCounts()


REPORT_SECONDS: Final = 0.5
TIMES: Final = 3  # in the time after which a silent process is dead


class MemberReporter:
    """Reports how many members each group has in this process; used by one thread."""

    def __init__(self, store: RedisStore, own: LocalMembers = members) -> None:
        self.store, self.own = store, own
        self.whole_at = 0.0  # when all is told again, on the monotonic clock; 0.0 before the first time

    def __call__(self) -> None:
        """Report what changed, or all of it when its time has come. Raises StoreError, and it is reported later."""
        if not counts_publications(rulebook.current()):
            self.whole_at = 0.0
            self.own.take_changed()
            return
        now = time.monotonic()
        whole = now >= self.whole_at
        self._report(self.own.take_changed(whole=whole).items())
        if whole:
            self.whole_at = now + conf().PROCESS_TTL / TIMES

    def report_none(self) -> None:
        """This process ends: it has nobody in any group."""
        if self.whole_at:
            self._report((group, 0) for group in self.own.take_changed(whole=True))

    def _report(self, counts: Iterable[tuple[str, int]]) -> None:
        """A batch that fails, as a node of a Cluster is away, keeps none of the others."""
        groups, reported, failed = dict(counts), set[str](), list[Exception]()
        try:
            for batch in batches(groups.items()):
                calls = store_members_calls(self.store, self.own.process, dict(batch), conf().PROCESS_TTL)
                errors = errors_of(self.store.send(calls))
                failed += errors
                reported.update(group for group, _ in batch if not errors)
        finally:
            self.own.tell_again(groups.keys() - reported)
        raise_first(failed)


def member_reports(store: RedisStore) -> StoreJob:
    """Return the background job that reports the members of groups to this Redis."""
    reporter = MemberReporter(store)
    return StoreJob("reporting the members of groups", REPORT_SECONDS, reporter, reporter.report_none)


def group_ident(alias: str, group: str) -> str:
    """The ident of a group: layers have groups of their own."""
    return f"group:{alias}:{group}"


class DropFilter(logging.Filter):
    """Tells of messages to groups that channels_redis drops. Only its log says so, at level INFO: to that it is opened.

    It writes no more than it did.
    """

    LEVEL: Final = logging.INFO - 1  # one that nobody else sets

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self.log, self.level = log, log.level
        if not log.isEnabledFor(logging.INFO):
            log.setLevel(self.LEVEL)
        log.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if "channels over capacity" in str(record.msg) and isinstance(record.args, tuple):
            observe.report_dropped("group_send", int(str(record.args[0])))
        usual = max(self.level, self.log.parent.getEffectiveLevel() if self.log.parent else 0)
        return self.log.level != self.LEVEL or record.levelno >= usual


DropFilter(logging.getLogger("channels_redis.core"))


class TellingQueue(asyncio.Queue[Any]):
    """What channels_redis has for each channel in its process: when full it drops its oldest message, and tells."""

    def put_nowait(self, message: object) -> None:
        if self.full():
            self.get_nowait()
            observe.report_dropped("receive", 1)
        super().put_nowait(message)


class CountingLayer:
    """Stands before a channel layer for one consumer, whose channel is the first that it makes; all else passes."""

    def __init__(self, layer: BaseChannelLayer, alias: str, counts: LocalMembers = members) -> None:
        self._layer, self.alias, self._counts = layer, alias, counts
        if (queues := getattr(layer, "__dict__", {}).get("receive_buffer")) is not None:
            queues.default_factory = partial(TellingQueue, layer.capacity)
        self._channel: str | None = None
        self._groups: set[str] | None = set()  # None when the socket is over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    async def new_channel(self, *args: Any, **kwargs: Any) -> str:
        """A name for a channel; the consumer's own, the first time."""
        channel: str = await self._layer.new_channel(*args, **kwargs)
        self._channel = self._channel or channel
        return channel

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        """Send to one channel; raises ChannelFull if that is dropped."""
        from channels.exceptions import ChannelFull

        try:
            await self._layer.send(channel, message)
        except ChannelFull:
            observe.report_dropped("send", 1)
            raise

    async def group_add(self, group: str, channel: str) -> None:
        """Have a channel join; the consumer's own is counted."""
        await self._layer.group_add(group, channel)
        if channel == self._channel and self._groups is not None:
            ident = group_ident(self.alias, group)
            self._groups.add(ident)
            self._counts.add(ident, channel)

    async def group_discard(self, group: str, channel: str) -> None:
        try:
            await self._layer.group_discard(group, channel)
        finally:
            if channel == self._channel and self._groups is not None:
                self._groups.discard(group_ident(self.alias, group))
                self._counts.discard(group_ident(self.alias, group), channel)

    def end(self) -> None:
        """The socket is over: whatever the consumer has forgotten to leave, it is in no group."""
        groups, self._groups = self._groups, None
        for group in groups or ():
            self._counts.discard(group, self._channel or "")


class ChannelLayerAttribute:
    """The attribute ``channel_layer`` of a consumer: what Channels puts there is put behind a CountingLayer."""

    def __get__(self, consumer: object, owner: type | None = None) -> object:
        if consumer is None:
            return self
        try:
            return vars(consumer)["channel_layer"]
        except KeyError:
            raise AttributeError("channel_layer: the consumer has not been called yet") from None

    def __set__(self, consumer: object, layer: BaseChannelLayer | CountingLayer | None) -> None:
        if layer is not None and not isinstance(layer, CountingLayer):
            layer = CountingLayer(layer, getattr(consumer, "channel_layer_alias", "default"))
        vars(consumer)["channel_layer"] = layer

    @staticmethod
    def end(consumer: object) -> None:
        layer = vars(consumer).get("channel_layer")
        if layer is not None:
            layer.end()
