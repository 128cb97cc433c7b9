"""Members of groups: the channels of this process, the counts of other processes, and reports to Redis."""

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
    """The channels of this process by group. It is thread-safe, and empty in a forked child."""

    def __init__(self) -> None:
        self.renew()
        in_child(self, type(self).renew)

    def renew(self) -> None:
        """Remove all members, and choose a new name for the process."""
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
        """Return the number of members by group, for groups changed since the last call, or for all if ``whole``."""
        with self._lock:
            groups = self._changed.union(self._groups) if whole else self._changed
            self._changed = set()
            return {group: self.count(group) for group in groups}

    def mark_changed(self, groups: Iterable[str]) -> None:
        """Report these groups again, as their last report failed."""
        with self._lock:
            self._changed.update(groups)


members = LocalMembers()


COUNT_LIFETIME_SECONDS: Final = 1.0
MAX_GROUPS: Final = 4096  # whose counts are cached


class RemoteMembers(NamedTuple):
    """The members of a group in other processes."""

    store: Store
    members: int
    expires_at: float  #: time on the monotonic clock when the store has to be asked again


class MemberCounts:
    """The members of groups in all processes.

    The store is asked at most once a second for each group. While it is unavailable, its last count is used.
    """

    def __init__(self, own: LocalMembers = members) -> None:
        self.own = own
        self._remote: dict[str, RemoteMembers] = {}
        self._queries: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[RemoteMembers]] = {}

    async def count(self, io: StoreIo, group: str) -> int:
        """Return the number of members. Concurrent calls on an event loop share a query. Raises nothing."""
        remote = self._cached(group, io.store)
        if remote is None:
            remote = await io.call(lambda: run(self._query(io, group)), lambda: self._shared_query(io, group))
        return self.own.count(group) + remote.members

    async def _shared_query(self, io: StoreIo, group: str) -> RemoteMembers:
        key = (asyncio.get_running_loop(), group)
        query = self._queries.get(key)
        if query is None:
            query = self._queries[key] = spawn(self._query(io, group))
            query.add_done_callback(lambda _: self._queries.pop(key, None))
        return await asyncio.shield(query)  # a cancelled caller must not end it for the others

    async def _query(self, io: StoreIo, group: str) -> RemoteMembers:
        now, store = time.monotonic(), io.store
        try:
            count = (await io.execute(CountMembers(group, self.own.process, conf().PROCESS_TTL))) or 0
        except StoreError:
            former = self._remote.get(group)
            count = former.members if former is not None and former.store is store else 0
        if len(self._remote) >= MAX_GROUPS:
            self._remote.clear()
        remote = self._remote[group] = RemoteMembers(store, count, now + COUNT_LIFETIME_SECONDS)
        return remote

    def at_least(self, group: str, store: Store) -> int:
        """Return the cached number of members, without asking the store."""
        remote = self._cached(group, store)
        return self.own.count(group) + (0 if remote is None else remote.members)

    def _cached(self, group: str, store: Store) -> RemoteMembers | None:
        remote = self._remote.get(group)
        is_valid = remote is not None and remote.store is store and time.monotonic() < remote.expires_at
        return remote if is_valid else None

    def forget(self) -> None:
        self._remote.clear()


def counts_publications(snapshot: rulebook.Snapshot) -> bool:
    """Return True if a rule counts publications. Without such a rule, group sizes are neither reported nor queried."""
    return any(rule.enabled and "publish" in rule.events for rule in snapshot.rules)


member_counts = MemberCounts()


REPORT_SECONDS: Final = 0.5
REPORTS_PER_TTL: Final = 3  # whole reports in PROCESS_TTL, after which Redis forgets a silent process


class MemberReporter:
    """Reports the number of members of each group in this process. Use it in one thread only."""

    def __init__(self, store: RedisStore, own: LocalMembers = members) -> None:
        self.store, self.own = store, own
        self.whole_at = 0.0  #: time of the next whole report, on the monotonic clock; 0.0 before the first report

    def __call__(self) -> None:
        """Report changed groups, or all groups if a whole report is due.

        Raise StoreError if Redis fails. The next call reports these groups again.
        """
        if not counts_publications(rulebook.current()):
            self.whole_at = 0.0
            self.own.take_changed()
            return
        now = time.monotonic()
        whole = now >= self.whole_at
        self._report(self.own.take_changed(whole=whole).items())
        if whole:
            self.whole_at = now + conf().PROCESS_TTL / REPORTS_PER_TTL

    def report_none(self) -> None:
        """Report that this process has no members any more, as it ends."""
        if self.whole_at:
            self._report((group, 0) for group in self.own.take_changed(whole=True))

    def _report(self, counts: Iterable[tuple[str, int]]) -> None:
        """Send all batches, even if a node of a Cluster fails, and raise the first error at the end."""
        groups, reported, failed = dict(counts), set[str](), list[Exception]()
        try:
            for batch in batches(groups.items()):
                calls = store_members_calls(self.store, self.own.process, dict(batch), conf().PROCESS_TTL)
                errors = errors_of(self.store.send(calls))
                failed += errors
                reported.update(group for group, _ in batch if not errors)
        finally:
            self.own.mark_changed(groups.keys() - reported)
        raise_first(failed)


def member_reports(store: RedisStore) -> StoreJob:
    """Return the background job that reports the members of groups to this Redis."""
    reporter = MemberReporter(store)
    return StoreJob("reporting the members of groups", REPORT_SECONDS, reporter, reporter.report_none)


def group_ident(alias: str, group: str) -> str:
    """Return the ident of a group of the channel layer ``alias``."""
    return f"group:{alias}:{group}"


class DropFilter(logging.Filter):
    """Log filter that reports the group messages that channels_redis drops.

    Only a log line at level INFO mentions them, so the filter lowers the logger's level. It lets no more lines pass
    than before.
    """

    LEVEL: Final = logging.INFO - 1  # differs from all usual levels

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self.log, self.level = log, log.level
        if not log.isEnabledFor(logging.INFO):
            log.setLevel(self.LEVEL)
        log.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if "channels over capacity" in str(record.msg) and isinstance(record.args, tuple):
            observe.report_dropped("group_send", int(str(record.args[0])))
        former_level = max(self.level, self.log.parent.getEffectiveLevel() if self.log.parent else 0)
        return self.log.level != self.LEVEL or record.levelno >= former_level


DropFilter(logging.getLogger("channels_redis.core"))


class ReportingQueue(asyncio.Queue[Any]):
    """Queue of a channel in channels_redis. It drops its oldest message when it is full, and reports that."""

    def put_nowait(self, message: object) -> None:
        if self.full():
            self.get_nowait()
            observe.report_dropped("receive", 1)
        super().put_nowait(message)


class CountingLayer:
    """Proxy of a channel layer that counts the groups of one consumer.

    The consumer's channel is the first that it creates.
    """

    def __init__(self, layer: BaseChannelLayer, alias: str) -> None:
        self._layer, self.alias = layer, alias
        if (queues := getattr(layer, "__dict__", {}).get("receive_buffer")) is not None:
            queues.default_factory = partial(ReportingQueue, layer.capacity)
        self._channel: str | None = None
        self._groups: set[str] | None = set()  #: idents of the consumer's groups; None after its socket has ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    async def new_channel(self, *args: object, **kwargs: object) -> str:
        """Return the name of a new channel. The first becomes the consumer's channel."""
        channel: str = await self._layer.new_channel(*args, **kwargs)
        self._channel = self._channel or channel
        return channel

    async def send(self, channel: str, message: dict[str, object]) -> None:
        """Send to a channel. Raise ChannelFull if its queue is full."""
        from channels.exceptions import ChannelFull

        try:
            await self._layer.send(channel, message)
        except ChannelFull:
            observe.report_dropped("send", 1)
            raise

    async def group_add(self, group: str, channel: str) -> None:
        """Add a channel to a group. Only the consumer's channel is counted."""
        await self._layer.group_add(group, channel)
        if channel == self._channel and self._groups is not None:
            ident = group_ident(self.alias, group)
            self._groups.add(ident)
            members.add(ident, channel)

    async def group_discard(self, group: str, channel: str) -> None:
        try:
            await self._layer.group_discard(group, channel)
        finally:
            if channel == self._channel and self._groups is not None:
                self._groups.discard(group_ident(self.alias, group))
                members.discard(group_ident(self.alias, group), channel)

    def end(self) -> None:
        """Remove the consumer from all groups that it has not left, as its socket has ended."""
        groups, self._groups = self._groups, None
        for group in groups or ():
            members.discard(group, self._channel or "")


class ChannelLayerAttribute:
    """Descriptor of a consumer's ``channel_layer``. It wraps the layer that Channels sets into a CountingLayer."""

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
