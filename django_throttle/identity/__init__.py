"""Who is asking: one resolver for HTTP requests and ASGI scopes, so that both count under the same ident.

Idents carry their kind, so user 5 and the address "5" never meet.
"""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest

from django_throttle.core.key import check_ident
from django_throttle.identity.address import network
from django_throttle.identity.call import Who
from django_throttle.identity.caller import HttpWho, IdentWho, ScopeWho, normalize_ident
from django_throttle.identity.keys import combined, is_async

__all__ = ["HttpWho", "ScopeWho", "client_address", "combined", "is_async", "network", "who_of"]


def client_address(request_or_scope: HttpRequest | Mapping[str, Any]) -> str | None:
    """The address that rules by ``ip`` go by, of a request (Django's or REST framework's) or an ASGI scope.

    Through the proxies that TRUSTED_PROXIES names, whole and in one notation; None where nobody knows it.
    """
    found = request_or_scope
    address = (ScopeWho(dict(found)) if isinstance(found, Mapping) else HttpWho(found)).address()
    return None if address is None else str(address)


def who_of(caller: Any, what: str = "publisher") -> Who:
    """The caller that a consumer, its scope, a request, a Who or an ident is.

    Raises InvalidIdent or TypeError for anything else.
    """
    if isinstance(caller, str):
        return IdentWho(normalize_ident(check_ident(caller)))
    if isinstance(caller, Mapping) and "type" in caller:
        return ScopeWho(caller)  # type: ignore[arg-type]
    if isinstance(getattr(caller, "_request", caller), HttpRequest):  # Django's, or REST framework's
        return HttpWho(caller)
    if hasattr(caller, "ident") and hasattr(caller, "is_"):
        return caller  # type: ignore[no-any-return]
    if isinstance(getattr(caller, "scope", None), Mapping):
        return ScopeWho(caller.scope)
    fault = f"{what} is a consumer, its scope, a request or an ident such as 'user:42', not {type(caller).__name__}"
    raise TypeError(fault)
