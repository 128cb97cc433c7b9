"""Sends to groups of a channel layer. A publication is charged for itself and each member that it reaches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import limiter, rulebook
from django_throttle.core.decision import Decision, combine_outcomes
from django_throttle.core.io import run
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import PublishRefused, needs_extra
from django_throttle.identity import RequestCaller, caller_of, combined
from django_throttle.identity.call import Call, Caller
from django_throttle.identity.known_caller import GROUP
from django_throttle.rulebook import Snapshot
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, Store, StoreIo
from django_throttle.websockets.groups import CountingLayer, counts_publications, group_ident, member_counts


@dataclass(frozen=True, slots=True)
class Publisher:
    """The caller of a publication, with the group as the ident of the key of groups."""

    caller: Caller
    group: str

    @property
    def subject(self) -> object:
        return self.caller.subject

    def ident(self, key: str) -> str | None:
        if key == GROUP:
            return self.group
        return combined(key, map(self.ident, key.split("+"))) if "+" in key else self.caller.ident(key)

    def is_(self, trait: str) -> bool:
        return self.caller.is_(trait)

    def lacks_address(self, key: str) -> bool:
        return key != GROUP and self.caller.lacks_address(key)


def _cached_refusal(snapshot: Snapshot, min_call: Call, store: Store) -> Decision | None:
    """Return a refusal that needs no call of the store: by an override, or by the refusal cache. Else return None.

    ``min_call`` has the minimal cost of the publication.
    """
    try:
        blocks = snapshot.blocks(min_call)
        if any(not block.shadow for block in blocks):
            return combine_outcomes(blocks)
        if not store.refusal_cache.has_publications:
            return None
        charges = snapshot.match(min_call)
    except SynchronousOnlyOperation:  # the caller has to be read from a database or session first
        return None
    refusals = store.refusal_cache.refused(charges)
    if not refusals:
        return None
    store.local_limits.decide_all(
        [charge for charge in charges if charge.rule.decided_locally]
    )  # dampers count attempts
    return combine_outcomes((*refusals, *blocks))


async def throttled_group_send(
    group: str, message: dict[str, object], *, publisher: object, scope: str | None = None, layer: object = None
) -> None:
    """Send to a group of a channel layer under rules of event ``publish``, or raise PublishRefused and send nothing.

    ``publisher`` is a consumer, its scope, a request, a ``Caller`` or an ident such as "user:42". ``scope`` is the
    scope of the rules, the name of the group if None. ``layer`` is a channel layer or its alias, the default layer if
    None. Messages that the layer fails to send, or drops at its capacity, stay charged.
    """
    send = await _charge(LoopIo(get_store()), group, message, publisher, scope, layer)
    await send()


def throttled_group_send_sync(
    group: str, message: dict[str, object], *, publisher: object, scope: str | None = None, layer: object = None
) -> None:
    """Send to a group from synchronous code: views, tasks and synchronous consumers. See throttled_group_send."""
    async_to_sync(run(_charge(BlockingIo(get_store()), group, message, publisher, scope, layer)))()


async def _charge(
    io: StoreIo, group: str, message: dict[str, object], publisher: object, scope: str | None, layer: object
) -> Callable[[], Awaitable[None]]:
    """Charge a publication and return a function that sends it. Raise PublishRefused if it is refused."""
    channel_layer, alias = _resolve_layer(layer)
    if (check := getattr(channel_layer, "require_valid_group_name", None)) is not None:
        check(group)  # raises TypeError, before anything is charged
    caller = await io.call(partial(caller_of, publisher), partial(_acaller_of, publisher))
    publishing, store, members = Publisher(caller, group_ident(alias, group)), io.store, 0
    snapshot = await io.call(rulebook.current, rulebook.acurrent)
    if counts_publications(snapshot):
        min_call = _publish_call(publishing, scope or group, member_counts.at_least(publishing.group, store))
        if decision := _cached_refusal(snapshot, min_call, store):
            await limiter.report(io, min_call, decision)
            raise limiter.prepare_refusal(PublishRefused(decision, group, min_call.cost - 1))
        members = await member_counts.count(io, publishing.group)
    call = _publish_call(publishing, scope or group, members)
    decision = await io.call(partial(limiter.decide, call), partial(limiter.adecide, call))
    if not decision.allowed:
        raise limiter.prepare_refusal(PublishRefused(decision, group, members))
    return partial(channel_layer.group_send, group, message)


async def _acaller_of(publisher: object) -> Caller:
    caller = caller_of(publisher)
    if isinstance(caller, RequestCaller) and caller is not publisher:
        await caller.aload()
    return caller


def _publish_call(caller: Caller, scope: str, members: int) -> Call:
    return Call(scope, ("publish",), caller, min(1 + members, MAX_LIMIT))


def _resolve_layer(layer: object) -> tuple[Any, str]:
    """Return the channel layer and its alias. A layer without an alias has that of the default layer."""
    if isinstance(layer, CountingLayer):
        return layer, layer.alias
    # ``channels.py`` exports the middleware too, which does not need Channels.
    with needs_extra("channels", "channels"):
        from channels import DEFAULT_CHANNEL_LAYER
        from channels.exceptions import InvalidChannelLayerError
        from channels.layers import channel_layers, get_channel_layer

    alias = DEFAULT_CHANNEL_LAYER if layer is None else layer
    if not isinstance(alias, str):
        aliases = (alias for alias, backend in channel_layers.backends.items() if backend is layer)
        return layer, next(aliases, DEFAULT_CHANNEL_LAYER)
    channel_layer = get_channel_layer(alias)
    if channel_layer is None:
        raise InvalidChannelLayerError(f"there is no channel layer {alias!r} in CHANNEL_LAYERS")
    return channel_layer, alias
