"""The handshake of a socket: its decision, and the run of its application behind a connection."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django_throttle import agent, limiter, rulebook
from django_throttle.core import Decision
from django_throttle.core.ledger import Ledger
from django_throttle.identity.call import Call
from django_throttle.identity.caller import SOCKET_SCOPE_KEY
from django_throttle.runtime import in_thread, spawn
from django_throttle.websockets import rule_change
from django_throttle.websockets.connection import Connection
from django_throttle.websockets.error_frames import Application, Receive, Scope, Send, refuse_handshake
from django_throttle.websockets.messages import Inbound, Outbound
from django_throttle.websockets.settings import SocketSettings


async def run(app: Application, scope: Scope, receive: Receive, send: Send, settings: SocketSettings) -> Any:
    """Run the application under the rules of its scope. Calls of other types than "websocket" pass unchanged.

    An outer connection of the same scope takes over these settings, and its rules apply. If its scope is another, both
    apply their rules, and a rule that both match is charged once.
    """
    if scope["type"] != "websocket":
        return await app(scope, receive, send)
    outer = _innermost(scope.get(SOCKET_SCOPE_KEY))
    if outer is not None and outer.scope == settings.scope:
        outer.adopt(settings, scope)
        return await app(scope, receive, send)
    first = await receive()
    connection = scope[SOCKET_SCOPE_KEY] = Connection(scope, receive, send, settings, outer)
    inbound, outbound = Inbound(connection, first), Outbound(connection)
    try:
        former_rules = rulebook.loaded() or await rulebook.acurrent()
        refused_decision = await _decide(connection)
        if refused_decision is None:
            connection.start()
            agent.socket_started()
            # The rules may have changed before the socket was registered.
            if (rules := rulebook.loaded()) not in (None, former_rules):
                spawn(rule_change.apply([connection], former_rules, rules))
            return await app(scope, inbound.receive, outbound.send)
        close = connection.close_for(refused_decision, has_started=False)
        await refuse_handshake(scope, connection.send_own, refused_decision, close, by=settings.refuse)
    except ConnectionAbortedError:  # raised by ``check_still_sending`` long after our close
        if connection.closed is None:
            raise
    finally:
        connection.application_returned()
        with suppress(Exception):  # the application may have put anything into the scope; its own error matters
            _restore_outer(scope, connection)


def _innermost(entry: object) -> Connection | None:
    """Return the innermost running connection, from the scope's entry. Skip those whose application has returned."""
    connection = entry if isinstance(entry, Connection) else None
    while connection is not None and connection.has_returned:
        connection = connection.outer
    return connection


def _restore_outer(scope: Scope, connection: Connection) -> None:
    """Restore the outer connection in the scope, unless a connection beside this one has replaced it."""
    running = _innermost(scope.get(SOCKET_SCOPE_KEY, connection))
    if running is None:
        scope.pop(SOCKET_SCOPE_KEY, None)
    else:
        scope[SOCKET_SCOPE_KEY] = running


async def _decide(connection: Connection) -> Decision | None:
    """Decide on the rate of handshakes and the number of open connections at once. Return the decision if refused."""
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
