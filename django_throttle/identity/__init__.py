"""Who is asking: one resolver for HTTP requests and ASGI scopes, so that both count under the same ident.

Idents carry their kind, so user 5 and the address "5" never meet.
"""

from django_throttle.identity.address import network
from django_throttle.identity.own import is_async
from django_throttle.identity.request import HttpWho
from django_throttle.identity.scope import ScopeWho

__all__ = ["HttpWho", "ScopeWho", "is_async", "network"]
