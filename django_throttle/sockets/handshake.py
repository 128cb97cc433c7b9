"""The handshake of a socket: decided by the rules, then its application runs behind a connection."""

from __future__ import annotations

from typing import Any, Final

from django_throttle import limiter, rulebook
from django_throttle.core import Decision
from django_throttle.core.refunds import NOTHING, Charged
from django_throttle.facts import Facts
from django_throttle.identity.caller import SOCKET
from django_throttle.sockets import limits, rule_change
from django_throttle.sockets.connection import Guard
from django_throttle.sockets.frames import Application, Receive, Scope, Send
from django_throttle.sockets.settings import Terms
from django_throttle.sockets.timers import spawn

EVENTS: Final = ("connect", "connection")


async def guarded(app: Application, scope: Scope, receive: Receive, send: Send, terms: Terms) -> Any:
    """Run the application under the rules of its scope; anything but a socket's handshake passes untouched.

    A guard of the same scope that stands around this one does it all, by these terms; one of another scope charges
    its rules, and this one those that are left.
    """
    if scope["type"] != "websocket":
        return await app(scope, receive, send)
    terms.check()
    refuse = terms.refusal()
    outer: Guard | None = scope.get(SOCKET)
    if outer is not None and outer.scope == terms.scope:
        outer.adopt(terms)
        return await app(scope, receive, send)
    guard = scope[SOCKET] = Guard(scope, receive, send, terms, await receive(), outer)
    try:
        before = await rulebook.acurrent()
        refused = await _knock(guard, outer)
        if refused is None:
            guard.start()
            if (now := rulebook.present()) not in (None, before):  # rules have changed before it could be seen
                spawn(rule_change.review([guard], before, now))
            return await app(scope, guard.receive, guard.send)
        await refuse(scope, guard.tell, refused, terms.said(refused), terms.close_code)
    except ConnectionAbortedError:  # it went on sending for long after we had closed
        if guard.farewell is None:
            raise
    finally:
        if outer is None:
            del scope[SOCKET]
        else:
            scope[SOCKET] = outer
        await guard.gone()


async def _knock(guard: Guard, outer: Guard | None) -> Decision | None:
    """One decision on the rate of handshakes and on the connections held open: the refusal, if it is one."""
    charged = NOTHING
    if outer is not None:
        found = await limits.find(outer.scope, EVENTS, outer.who, await rulebook.acurrent())
        charged = Charged(dict.fromkeys(found.pairs, 1))
    decision = await limiter.adecide(Facts(guard.scope, EVENTS, guard.who, charged=charged))
    if decision.lease is not None:
        guard.leases = (decision.lease,)
    return None if decision.allowed else decision
