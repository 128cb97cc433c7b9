"""The handshake of a socket: decided by the rules, then its application runs behind a connection."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django_throttle import limiter, rulebook
from django_throttle.core import Decision
from django_throttle.core.ledger import Ledger
from django_throttle.identity.call import Call
from django_throttle.identity.caller import SOCKET
from django_throttle.runtime import in_thread, spawn
from django_throttle.websockets import rule_change
from django_throttle.websockets.connection import Connection
from django_throttle.websockets.error_frames import (
    Application,
    Receive,
    Scope,
    Send,
    refuse_handshake,
)
from django_throttle.websockets.messages import Inbound, Outbound
from django_throttle.websockets.settings import SocketSettings


async def run(app: Application, scope: Scope, receive: Receive, send: Send, settings: SocketSettings) -> Any:
    """Run the application under the rules of its scope; anything but a socket's handshake passes untouched.

    A connection of the same scope around this one does it all, with these settings; one of another scope charges its
    rules, and this one those that are left.
    """
    if scope["type"] != "websocket":
        return await app(scope, receive, send)
    refusal = settings.refusal
    outer = _innermost(scope.get(SOCKET))
    if outer is not None and outer.scope == settings.scope:
        outer.adopt(settings, scope)
        return await app(scope, receive, send)
    first = await receive()
    connection = scope[SOCKET] = Connection(scope, receive, send, settings, outer)
    inbound, outbound = Inbound(connection, first), Outbound(connection)
    try:
        before = rulebook.loaded() or await rulebook.acurrent()
        refused = await _decide(connection)
        if refused is None:
            connection.start()
            if (now := rulebook.loaded()) not in (None, before):  # rules have changed before it could be seen
                spawn(rule_change.apply([connection], before, now))
            return await app(scope, inbound.receive, outbound.send)
        close = connection.close_for(refused, has_started=False)
        await refuse_handshake(scope, connection.send_own, refused, close, by=refusal)
    except ConnectionAbortedError:  # it went on sending for long after we had closed
        if connection.closed is None:
            raise
    finally:
        connection.application_returned()
        with suppress(Exception):  # the scope is the site's, and may be anything by now: its own error matters
            _restore(scope, connection)


def _innermost(found: object) -> Connection | None:
    """Return the innermost connection around, of which the scope has ``found``. Those that were left do not count."""
    connection = found if isinstance(found, Connection) else None
    while connection is not None and connection.has_returned:
        connection = connection.outer
    return connection


def _restore(scope: Scope, connection: Connection) -> None:
    """Put the connection around this one back in the scope, unless one that runs beside it has its place there."""
    present = _innermost(scope.get(SOCKET, connection))
    if present is None:
        scope.pop(SOCKET, None)
    else:
        scope[SOCKET] = present


async def _decide(connection: Connection) -> Decision | None:
    """One decision on the rate of handshakes and on the connections held open: the refusal, if it is one."""
    outer, events = connection.outer, rule_change.HANDSHAKE_EVENTS
    charged = Ledger.of_costs(dict.fromkeys(await connection.outer_pairs(events), 1))
    call = Call(connection.scope, events, connection.caller, charged=charged, refundable=True)
    decision = await limiter.adecide(call, run_in_thread=in_thread)
    if decision.lease is not None:
        connection.leases = (decision.lease,)
    if decision.allowed:
        connection.handshake = decision
        return None
    if outer is not None:
        await outer.refund_handshake()
    return decision
