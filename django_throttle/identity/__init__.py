"""Callers and their idents: HTTP requests and ASGI scopes of a caller count under the same ident.

Idents begin with their kind, so user 5 and the address "5" differ.
"""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest

from django_throttle.core.key import check_ident
from django_throttle.identity.address import network
from django_throttle.identity.call import Caller
from django_throttle.identity.caller import AsgiCaller, IdentCaller, RequestCaller, normalize_ident
from django_throttle.identity.keys import combined
from django_throttle.identity.site_functions import is_async

__all__ = ["AsgiCaller", "RequestCaller", "caller_of", "client_address", "combined", "is_async", "network"]


def client_address(request_or_scope: HttpRequest | Mapping[str, object]) -> str | None:
    """Return the address that rules of key ``ip`` count, of a request (Django's or REST framework's) or an ASGI scope.

    The address is the one behind the proxies of TRUSTED_PROXIES. It is complete, in normal form. Return None if it is
    unknown.
    """
    if isinstance(request_or_scope, Mapping):
        address = AsgiCaller(dict(request_or_scope)).address()
    else:
        address = RequestCaller(request_or_scope).address()
    return None if address is None else str(address)


def caller_of(caller: Any, parameter: str = "publisher") -> Caller:
    """Return the caller of a consumer, its scope, a request or an ident. Return a caller as it is.

    Raise InvalidIdent for an invalid ident, and TypeError for other types.
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
    raise TypeError(
        f"{parameter} is a consumer, its scope, a request or an ident such as 'user:42', not {type(caller).__name__}"
    )
