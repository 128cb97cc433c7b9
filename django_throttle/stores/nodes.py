"""One server of a Cluster: its connections on both drivers, and its breaker. What fails is returned, not raised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ResponseError,
    TryAgainError,
)

from django_throttle.exceptions import Cause, StoreError
from django_throttle.stores.addresses import Host
from django_throttle.stores.breaker import Breaker
from django_throttle.stores.clients import LoopClients, async_client, sync_client
from django_throttle.stores.failures import COUNTED, cause_of, waited
from django_throttle.stores.patience import Patience, heed_cancellation
from django_throttle.stores.wire import Wire

logger = logging.getLogger("django_throttle")

Commands = Sequence[Sequence[Any]]
Outcome = list[Any] | Exception
# redis-py 5 gives these errors their class only in connections of its own cluster client.
_ERRORS: Final[dict[str, Callable[[str], ResponseError]]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "CROSSSLOT": ClusterCrossSlotError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "TRYAGAIN": TryAgainError,
}


class Node:
    """Every command's reply, errors in their places, or the one error that befell them all."""

    def __init__(self, host: Host, settings: dict[str, Any], seconds: float, most: int) -> None:
        self.name = f"{host[0]}:{host[1]}"
        given = {**settings, "host": host[0], "port": host[1]}
        self.breaker = Breaker(fails_over=True)
        self._seconds = seconds
        self._wire = Wire(sync_client(given, seconds, most).connection_pool, most, seconds / 2)
        self._loops = LoopClients(lambda: [async_client(given, seconds, most)])

    def post(self, commands: Commands) -> AbstractConnection | Exception:
        """The connection that the commands have gone to, or why they have not."""
        if resting := self._admit():
            return resting
        try:
            return self._wire.post(commands)
        except Exception as error:  # noqa: BLE001  (the failure of one node is no other's)
            self._note(error)
            return error
        except BaseException:
            self.breaker.abandoned()
            raise

    def collect(self, connection: AbstractConnection, count: int) -> Outcome:
        """What was posted is answered."""
        try:
            return self._note(self._wire.collect(connection, count))
        except Exception as error:  # noqa: BLE001
            return self._note(error)
        except BaseException:
            self.breaker.abandoned()
            raise

    def drop(self, connection: AbstractConnection) -> None:
        """Nobody will collect."""
        self._wire.drop(connection)
        self.breaker.abandoned()

    async def ask(self, commands: Commands, until: float) -> Outcome:
        """Send and wait, until a moment of the loop's clock."""
        if resting := self._admit():
            return resting
        try:
            async with Patience(until):
                with heed_cancellation():
                    replies = await _send(await self._loops.get(), commands)
        except Exception as error:  # noqa: BLE001
            return self._note(error)
        except BaseException:
            self.breaker.abandoned()
            raise
        return self._note(replies)

    def _admit(self) -> StoreError | None:
        """Why not to ask it now."""
        wait = self.breaker.admit()
        return StoreError(Cause.BREAKER, f"{self.name} failed a moment ago", retry_after=wait) if wait else None

    def _note(self, outcome: Outcome) -> Outcome:
        """Tell the breaker; returns the outcome, each error of a cluster under its class."""
        if isinstance(outcome, list):
            outcome = [_classed(reply) for reply in outcome]
        failures = [one for one in (outcome if isinstance(outcome, list) else [outcome]) if _is_failure(one)]
        if failures:
            if self.breaker.failed(waited(failures[0], self._seconds)):
                logger.warning("%s does not answer (%r); failure policies decide until it does", self.name, failures[0])
        elif isinstance(outcome, list):
            if lasted := self.breaker.succeeded():
                logger.warning("%s answers again, after %.1f s", self.name, lasted)
        else:
            self.breaker.abandoned()
        return outcome


def _classed(reply: Any) -> Any:
    if type(reply) is not ResponseError:
        return reply
    code, _, rest = str(reply).partition(" ")
    return _ERRORS[code](rest) if code in _ERRORS else reply


def _is_failure(reply: object) -> bool:
    # A node that says of a slot that it moves, or that nobody serves it, is well itself.
    of_a_slot = isinstance(reply, (ClusterDownError, TryAgainError))
    return isinstance(reply, Exception) and not of_a_slot and cause_of(reply) in COUNTED


async def _send(client: Any, commands: Commands) -> list[Any]:
    if len(commands) == 1:
        try:
            return [await client.execute_command(*commands[0])]
        except ResponseError as error:
            return [error]
    pipeline = client.pipeline(transaction=False)
    for parts in commands:
        pipeline.execute_command(*parts)
    return list(await pipeline.execute(raise_on_error=False))
