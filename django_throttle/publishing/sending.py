"""Sends to a group what its publisher may send: a publication costs one, and one more for each member of the group."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync

from django_throttle import limiter, observe, rulebook
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import PublishRefused
from django_throttle.facts import Facts, Who
from django_throttle.publishing.layer import CountingLayer, name_of
from django_throttle.publishing.publisher import Publisher, awho_of, who_of
from django_throttle.publishing.refusals import refusals
from django_throttle.publishing.sizes import sizes, wanted
from django_throttle.stores import get_store
from django_throttle.stores.base import Store
from django_throttle.stores.drive import run


async def throttled_group_send(
    group: str, message: dict[str, Any], *, publisher: Any, scope: str | None = None, layer: Any = None
) -> None:
    """Send to a group of a channel layer under rules of event ``publish``, or raise PublishRefused and send nothing.

    ``publisher`` is a consumer, its scope, a request, a Who or an ident such as "user:42". The scope of the rules is
    the name of the group unless another is given; ``layer`` is a channel layer or its alias, the default one when
    None. What the layer fails to send, or drops without a word as its capacity is reached, stays charged.
    """
    found, alias = _layer(layer)
    _check(found, group)
    who, store = Publisher(await awho_of(publisher), name_of(alias, group)), get_store()
    snapshot, many, epoch = await rulebook.acurrent(), 0, _epoch(store)
    if wanted(snapshot):
        least = _facts(who, scope or group, sizes.at_least(who.group, store))
        if decision := refusals.find(snapshot, least, store):
            await observe.atell(least, decision)
            raise PublishRefused(decision, group, least.cost - 1)
        many = await sizes.aof(who.group, store)
    facts = _facts(who, scope or group, many)
    decision = await limiter.adecide(facts)
    if not decision.allowed:
        refusals.note(snapshot, facts, decision, store, epoch)
        raise PublishRefused(decision, group, many)
    await found.group_send(group, message)


def throttled_group_send_sync(
    group: str, message: dict[str, Any], *, publisher: Any, scope: str | None = None, layer: Any = None
) -> None:
    """Do the same where nothing is awaited: in views, tasks and synchronous consumers."""
    found, alias = _layer(layer)
    _check(found, group)
    who, store, snapshot = Publisher(who_of(publisher), name_of(alias, group)), get_store(), rulebook.current()
    many, epoch = 0, _epoch(store)
    if wanted(snapshot):
        least = _facts(who, scope or group, sizes.at_least(who.group, store))
        if decision := refusals.find(snapshot, least, store):
            observe.tell(least, decision)
            raise PublishRefused(decision, group, least.cost - 1)
        many = run(sizes.of(who.group, store), store)
    facts = _facts(who, scope or group, many)
    decision = limiter.decide(facts)
    if not decision.allowed:
        refusals.note(snapshot, facts, decision, store, epoch)
        raise PublishRefused(decision, group, many)
    async_to_sync(found.group_send)(group, message)


def _facts(who: Who, scope: str, many: int) -> Facts:
    return Facts(scope, ("publish",), who, min(1 + many, MAX_LIMIT))


def _epoch(store: Store) -> int:
    return 0 if store.denials is None else store.denials.epoch


def _check(layer: Any, group: str) -> None:
    """Raise TypeError for a name that the layer would not send to, before anything is charged for it."""
    check = getattr(layer, "require_valid_group_name", None)
    if check is not None:  # else it takes any, or says so itself
        check(group)


def _layer(given: Any) -> tuple[Any, str]:
    """The layer and its alias; one that has none counts its groups as the default one's."""
    if isinstance(given, CountingLayer):
        return given, given.alias
    # The middleware, which is exported beside this, does not need Channels.
    from channels import DEFAULT_CHANNEL_LAYER
    from channels.exceptions import InvalidChannelLayerError
    from channels.layers import channel_layers, get_channel_layer

    alias = DEFAULT_CHANNEL_LAYER if given is None else given
    if not isinstance(alias, str):
        named = (alias for alias, known in channel_layers.backends.items() if known is given)
        return given, next(named, DEFAULT_CHANNEL_LAYER)
    found = get_channel_layer(alias)
    if found is None:
        raise InvalidChannelLayerError(f"there is no channel layer {alias!r} in CHANNEL_LAYERS")
    return found, alias
