"""Who is asking: one resolver for HTTP requests and ASGI scopes, so that both count under the same ident.

Idents carry their kind, so user 5 and the address "5" never meet.
"""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest

from django_throttle.core.key import check_ident
from django_throttle.identity.address import network
from django_throttle.identity.call import Caller
from django_throttle.identity.caller import AsgiCaller, IdentCaller, RequestCaller, normalize_ident
from django_throttle.identity.keys import combined, is_async

__all__ = ["AsgiCaller", "RequestCaller", "caller_of", "client_address", "combined", "is_async", "network"]


def client_address(request_or_scope: HttpRequest | Mapping[str, Any]) -> str | None:
    """The address that rules by ``ip`` go by, of a request (Django's or REST framework's) or an ASGI scope.

    Through the proxies that TRUSTED_PROXIES names, whole and in one notation; None where nobody knows it.
    """
    found = request_or_scope
    address = (AsgiCaller(dict(found)) if isinstance(found, Mapping) else RequestCaller(found)).address()
    return None if address is None else str(address)


def caller_of(caller: Any, what: str = "publisher") -> Caller:
    """The caller that a consumer, its scope, a request, a Who or an ident is.

    Raises InvalidIdent or TypeError for anything else.
    """
    if isinstance(caller, str):
        return IdentCaller(normalize_ident(check_ident(caller)))
    if isinstance(caller, Mapping) and "type" in caller:
        return AsgiCaller(caller)  # type: ignore[arg-type]
    if isinstance(getattr(caller, "_request", caller), HttpRequest):  # Django's, or REST framework's
        return RequestCaller(caller)
    if hasattr(caller, "ident") and hasattr(caller, "is_"):
        return caller  # type: ignore[no-any-return]
    if isinstance(getattr(caller, "scope", None), Mapping):
        return AsgiCaller(caller.scope)
    fault = f"{what} is a consumer, its scope, a request or an ident such as 'user:42', not {type(caller).__name__}"
    raise TypeError(fault)
