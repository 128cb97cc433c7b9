"""Who is asking: the proxies whose word is taken, and the functions that name a caller."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from django.core.checks import CheckMessage, Warning
from django.utils.module_loading import import_string

from django_throttle.checks.given import Given, value_of, wrong
from django_throttle.core import Rule
from django_throttle.core.checks.key import parts
from django_throttle.exceptions import InvalidSetting, ThrottleError
from django_throttle.identity.own import is_async, is_path
from django_throttle.identity.proxies import Proxies, declared

# Headers in which a proxy says one address, however many there are in a row.
SINGLE: Final = frozenset(("x-real-ip", "cf-connecting-ip", "true-client-ip", "fastly-client-ip", "x-client-ip"))
BY_ADDRESS: Final = frozenset(("ip", "user_or_ip", "api_key"))
_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _proxies(given: Given) -> Iterator[CheckMessage]:
    try:
        proxies = declared(value_of(given, "TRUSTED_PROXIES"))
    except InvalidSetting as error:
        yield wrong("E040", str(error))
        return
    header = value_of(given, "PROXY_HEADER")
    if not isinstance(header, str) or not re.fullmatch("[A-Za-z0-9-]+", header):
        yield wrong("E041", f"PROXY_HEADER is the name of a header like X-Forwarded-For, not {header!r}")
        return
    yield from _fitting(given, proxies, header)


def _fitting(given: Given, proxies: Proxies, header: str) -> Iterator[CheckMessage]:
    if "PROXY_HEADER" in given and not proxies.declared:
        message = f"nobody is believed what PROXY_HEADER {header!r} says, as TRUSTED_PROXIES names no proxy"
        yield Warning(message, id="django_throttle.W010")
    if proxies.count > 1 and header.lower() in SINGLE:
        message = f"{header} says one address, so there is no {proxies.count}th from the right, and it is never used"
        hint = "Set TRUSTED_PROXIES to 1, or to the networks of the proxies."
        yield Warning(message, hint=hint, id="django_throttle.W011")


def _tenant(given: Given) -> Iterator[CheckMessage]:
    path = value_of(given, "TENANT")
    if path == "":
        return
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        yield wrong("E043", f"TENANT is a path like user.tenant_id or shop.limits.tenant, not {path!r}")
    elif not is_path(path):
        yield from _function("E043", "TENANT", path)


def _user(given: Given) -> Iterator[CheckMessage]:
    path = value_of(given, "USER_IDENT")
    if path == "":
        return
    if not isinstance(path, str) or "." not in path:
        yield wrong("E044", f"USER_IDENT is the path of a function like shop.limits.account, not {path!r}")
    else:
        yield from _function("E044", "USER_IDENT", path)


def _function(number: str, setting: str, path: str) -> Iterator[CheckMessage]:
    try:
        found = import_string(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield wrong(number, f"{setting} {path!r} cannot be imported ({error})")
        return
    if not callable(found) or is_async(found):
        yield wrong(number, f"{setting} {path!r} is no plain function, which can be called for every request")


def _tenants(given: Given) -> Iterator[CheckMessage]:
    if value_of(given, "TENANT"):
        return
    for rule in rules_in(given):
        if "tenant" in parts(rule.key) or any(one.startswith("tenant:") for one in rule.audience):
            yield wrong("E045", f"rule {rule.name!r} asks for the tenant, and TENANT does not say who that is")


def rules_in(given: Given) -> Iterator[Rule]:
    """The rules in settings that make sense."""
    rules = value_of(given, "RULES")
    for name, options in rules.items() if isinstance(rules, Mapping) else ():
        try:
            yield Rule.from_options(name, options)
        except ThrottleError:
            pass  # another check says so


def unsaid(given: Given) -> Iterator[CheckMessage]:
    """For production: whether there is a proxy is not for us to guess."""
    if value_of(given, "TRUSTED_PROXIES") is not None:
        return
    found = [rule.name for rule in rules_in(given) if BY_ADDRESS.intersection(parts(rule.key))]
    if found:
        message = (
            f"rules count by address ({', '.join(found)}), and TRUSTED_PROXIES is not set: behind a proxy all clients "
            "would share one budget, and over a Unix socket these rules would apply to nobody who is not logged in"
        )
        hint = "Name your proxies; or set it to () where clients connect to the server themselves, or the server "
        hint += "reports their addresses by its own settings."
        yield Warning(message, hint=hint, id="django_throttle.W012")


def shares(given: Given) -> Iterator[CheckMessage]:
    """For production: how many processes share a limit while Redis is away, before any of them has reached it."""
    if value_of(given, "STORE") != "redis" or value_of(given, "PROCESSES"):
        return
    found = [rule.name for rule in rules_in(given) if rule.on_store_failure == "local"]
    if found:
        message = (
            f"PROCESSES is not set: processes that start while Redis is away each admit the whole limit of "
            f"{', '.join(found)}"
        )
        hint = "Set it to the number of server processes on all hosts; or give these rules another on_store_failure."
        yield Warning(message, hint=hint, id="django_throttle.W081")


IDENTITY_CHECKS: Final = (_proxies, _tenant, _user, _tenants)
