"""Who is asking: one resolver for HTTP requests and ASGI scopes, so that both count under the same ident.

Idents carry their kind, so user 5 and the address "5" never meet.
"""

from collections.abc import Mapping
from typing import Any

from django_throttle.identity.address import network
from django_throttle.identity.caller import HttpWho, ScopeWho
from django_throttle.identity.keys import is_async

__all__ = ["HttpWho", "ScopeWho", "client_address", "is_async", "network"]


def client_address(request_or_scope: Any) -> str | None:
    """The address that rules by ``ip`` go by, of a request (Django's or REST framework's) or an ASGI scope.

    Through the proxies that TRUSTED_PROXIES names, whole and in one notation; None where nobody knows it.
    """
    found = request_or_scope
    address = (ScopeWho(dict(found)) if isinstance(found, Mapping) else HttpWho(found)).address()
    return None if address is None else str(address)
