"""Sends to the groups of a channel layer: each publication is charged for the members whom it reaches."""

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
    """Who publishes; under the key of groups, the group."""

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


def _known_refusal(snapshot: Snapshot, least: Call, store: Store) -> Decision | None:
    """The refusal of a publication that costs no less than ``least``; None where the store is to be asked."""
    try:
        blocks = snapshot.blocks(least)
        if any(not block.shadow for block in blocks):
            return combine_outcomes(blocks)
        if not store.refusal_cache.has_publications:
            return None
        charges = snapshot.match(least)
    except SynchronousOnlyOperation:  # nobody knows yet who publishes
        return None
    refusals = store.refusal_cache.refused(charges)
    if not refusals:
        return None
    store.local_limits.decide_all(
        [charge for charge in charges if charge.rule.decided_locally]
    )  # dampers count attempts
    return combine_outcomes((*refusals, *blocks))


async def throttled_group_send(
    group: str, message: dict[str, Any], *, publisher: object, scope: str | None = None, layer: object = None
) -> None:
    """Send to a group of a channel layer under rules of event ``publish``, or raise PublishRefused and send nothing.

    ``publisher`` is a consumer, its scope, a request, a Who or an ident such as "user:42". The scope of the rules is
    the name of the group unless another is given; ``layer`` is a channel layer or its alias, the default one when
    None. What the layer fails to send, or drops as its capacity is reached, stays charged.
    """
    send = await _charged(LoopIo(get_store()), group, message, publisher, scope, layer)
    await send()


def throttled_group_send_sync(
    group: str, message: dict[str, Any], *, publisher: object, scope: str | None = None, layer: object = None
) -> None:
    """The same for synchronous code: views, tasks and synchronous consumers."""
    async_to_sync(run(_charged(BlockingIo(get_store()), group, message, publisher, scope, layer)))()


async def _charged(
    io: StoreIo, group: str, message: dict[str, Any], publisher: object, scope: str | None, layer: object
) -> Callable[[], Awaitable[None]]:
    """What sends the message, once it is charged; raises PublishRefused."""
    channel_layer, alias = _layer(layer)
    if (check := getattr(channel_layer, "require_valid_group_name", None)) is not None:
        check(group)  # raises TypeError, before anything is charged
    found = await io.call(partial(caller_of, publisher), partial(_awho_of, publisher))
    caller, store, members = Publisher(found, group_ident(alias, group)), io.store, 0
    snapshot = await io.call(rulebook.current, rulebook.acurrent)
    if counts_publications(snapshot):
        least = _call(caller, scope or group, member_counts.at_least(caller.group, store))
        if decision := _known_refusal(snapshot, least, store):
            await limiter.report(io, least, decision)
            raise limiter.prepare_refusal(PublishRefused(decision, group, least.cost - 1))
        members = await member_counts.of(io, caller.group)
    call = _call(caller, scope or group, members)
    decision = await io.call(partial(limiter.decide, call), partial(limiter.adecide, call))
    if not decision.allowed:
        raise limiter.prepare_refusal(PublishRefused(decision, group, members))
    return partial(channel_layer.group_send, group, message)


async def _awho_of(publisher: object) -> Caller:
    caller = caller_of(publisher)
    if isinstance(caller, RequestCaller) and caller is not publisher:
        await caller.aload()
    return caller


def _call(caller: Caller, scope: str, members: int) -> Call:
    return Call(scope, ("publish",), caller, min(1 + members, MAX_LIMIT))


def _layer(given: object) -> tuple[Any, str]:
    """The layer and its alias; one that has none counts its groups as the default one's."""
    if isinstance(given, CountingLayer):
        return given, given.alias
    # The middleware, which is exported beside this, does not need Channels.
    with needs_extra("channels", "channels"):
        from channels import DEFAULT_CHANNEL_LAYER
        from channels.exceptions import InvalidChannelLayerError
        from channels.layers import channel_layers, get_channel_layer

    alias = DEFAULT_CHANNEL_LAYER if given is None else given
    if not isinstance(alias, str):
        named = (alias for alias, known in channel_layers.backends.items() if known is given)
        return given, next(named, DEFAULT_CHANNEL_LAYER)
    channel_layer = get_channel_layer(alias)
    if channel_layer is None:
        raise InvalidChannelLayerError(f"there is no channel layer {alias!r} in CHANNEL_LAYERS")
    return channel_layer, alias
