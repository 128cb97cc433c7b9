"""Drop-in replacements of DRF's throttles, with DRF's settings and methods, which count in our store."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from rest_framework import throttling
from rest_framework.request import Request
from rest_framework.settings import api_settings

from django_throttle import limiter, rulebook
from django_throttle.conf import conf
from django_throttle.core import Rate, Rule
from django_throttle.core.algorithms.sliding_log import MAX_LOG_UNITS
from django_throttle.core.exceptions import InvalidRate
from django_throttle.core.key import EVERYONE
from django_throttle.core.options import MAX_RESOLUTION
from django_throttle.core.overrides import UNLISTED_PREFIX
from django_throttle.drf.rule_throttle import DecidedThrottle, finish_in_view
from django_throttle.http.drf_exceptions import LimiterUnavailable
from django_throttle.http.request_state import django_request, method_of, scope_and_cost, state_of
from django_throttle.identity import RequestCaller, network
from django_throttle.identity.call import Call
from django_throttle.identity.caller import refuses_without_address
from django_throttle.identity.keys import shortened
from django_throttle.rulebook import sources
from django_throttle.rulebook.snapshot import NO_ADDRESS_WAIT

if TYPE_CHECKING:
    # REST framework imports the default throttle classes while it imports its views.
    from rest_framework.views import APIView


class Unsupported:
    """Attribute of DRF's throttles that drop-ins lack. Reading it on a throttle raises AttributeError with advice."""

    def __init__(self, advice: str) -> None:
        self.advice = advice

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, throttle: object | None, owner: type) -> Unsupported:
        if throttle is None:
            return self
        raise AttributeError(self.message(owner))

    def message(self, owner: type) -> str:
        return f"{owner.__name__}.{self.name}: {self.advice}"


class _CurrentRates:
    """Descriptor ``THROTTLE_RATES`` with the current value of DRF's setting. DRF itself reads it once, at import.

    If a test has replaced the rates of DRF's own class, they are used instead.
    """

    def __get__(self, throttle: object | None, owner: type) -> Mapping[str, object]:
        rates = throttling.SimpleRateThrottle.THROTTLE_RATES
        return api_settings.DEFAULT_THROTTLE_RATES if rates is _RATES_AT_IMPORT else rates


_RATES_AT_IMPORT: Final = throttling.SimpleRateThrottle.THROTTLE_RATES


class SimpleRateThrottle(DecidedThrottle, throttling.SimpleRateThrottle):
    """DRF's SimpleRateThrottle, counted in our store: atomically, by the store's clock, without charging refused calls.

    A subclass sets ``rate``, or ``scope`` for DEFAULT_THROTTLE_RATES. It may override ``get_cache_key``, whose text is
    counted, ``get_rate``, ``parse_rate``, ``get_ident``, ``throttle_success``, ``throttle_failure`` and ``wait``.
    ``key`` and ``decision`` belong to the last request. A limit of 0 refuses every request, and counts none.

    Raise ImproperlyConfigured if a subclass sets ``timer``, ``cache`` or ``cache_format``, which would have no effect.
    """

    num_requests: int
    duration: float
    key: str

    timer: Any = Unsupported("calls are counted by the store's clock; a test sets that clock with override_rules({})")
    cache: Any = Unsupported("calls are counted in the store that DJANGO_THROTTLE names, not in a cache")
    history: Any = Unsupported("the store keeps no history; self.decision has limit, remaining and retry_after")
    now: Any = Unsupported("calls are counted by the clock of the store")

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls._check()
        is_formatted = cls.cache_format != throttling.SimpleRateThrottle.cache_format
        if is_formatted and cls.get_cache_key.__module__ == __name__:
            raise ImproperlyConfigured(
                f"{cls.__name__}.cache_format has no effect without a get_cache_key of the class; "
                "set another scope to count separately"
            )

    THROTTLE_RATES: Any = _CurrentRates()

    def parse_rate(self, rate: str | None) -> Any:  # whole seconds in DRF
        """Return limit and window in seconds, or two None for no limit. Raise InvalidRate for other texts."""
        return read_rate(rate)

    def allow_request(self, request: Request, view: APIView) -> bool:
        self._check()
        if rulebook.is_unlimited():
            return True
        key = None if self.rate is None else self.get_cache_key(request, view)
        if key is None:
            return True
        self.key = key
        if self.num_requests <= 0:
            return conf().SHADOW or self.throttle_failure()
        caller = RequestCaller(request)
        # A limit and a window that the site has computed may be fractions.
        limit, window = ceil(self.num_requests), ceil(self.duration * 1000) / 1000
        rule = _rule_of_rate(self.scope or type(self).__name__, limit, window, conf().SHADOW)
        inner = django_request(request)
        (scope, _), method = scope_and_cost(view, inner), method_of(inner)
        ident = key if isinstance(key, _TaggedIdent) else f"key:{shortened(str(key))}"
        call = Call(scope, ("request",), caller, rule=rule, method=method, refundable=True, ident=ident)
        state, decision = state_of(inner), limiter.decide(call)
        state.note_drop_in(decision, caller)
        finish_in_view(view, inner, caller, state)
        return self.throttle_success() if self.answer(decision, view) else self.throttle_failure()

    def throttle_success(self) -> bool:
        """Return True. Called for each allowed request, after it was counted."""
        return True

    def wait(self) -> float | None:
        """Return Retry-After in seconds, or None if the request can never pass. For limit 0 return the window."""
        return self.duration if self.num_requests == 0 else super().wait()

    def get_ident(self, request: Request) -> str | None:  # type: ignore[override]
        """Return the ident of the client's address. Read it as DRF does if NUM_PROXIES is set, else unforgeably.

        Raise LimiterUnavailable if the address is unknown, and NO_ADDRESS is "refuse".
        """
        # Text from the header is used only if it is an address, in normal form.
        text = None if api_settings.NUM_PROXIES is None else super().get_ident(request)
        address = network(text, conf().IPV6_PREFIX)
        ident = f"ip:{address}" if address else RequestCaller(request).ident("ip")
        if ident is None and refuses_without_address():
            raise LimiterUnavailable(NO_ADDRESS_WAIT)
        return None if ident is None else _TaggedIdent(ident)

    @classmethod
    def _check(cls) -> None:
        """Raise ImproperlyConfigured for an overridden attribute. Called at each request, because tests set a timer."""
        for unsupported in _NEVER_OVERRIDDEN:
            if getattr(cls, unsupported.name) is not unsupported:
                raise ImproperlyConfigured(unsupported.message(cls))


_NEVER_OVERRIDDEN: Final = (SimpleRateThrottle.timer, SimpleRateThrottle.cache)


class AnonRateThrottle(SimpleRateThrottle):
    """Limit each address that is not logged in."""

    scope = "anon"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        return None if RequestCaller(request).ident("user") else self.get_ident(request)


class UserRateThrottle(SimpleRateThrottle):
    """Limit each user, and each address that is not logged in."""

    scope = "user"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        user = RequestCaller(request).ident("user")
        return _TaggedIdent(user) if user else self.get_ident(request)


class ScopedRateThrottle(throttling.ScopedRateThrottle, UserRateThrottle):
    """Limit each user, or address, in the view's ``throttle_scope``. Views without a scope are not limited."""

    get_cache_key = UserRateThrottle.get_cache_key


class _TaggedIdent(str):
    """Ident of our own making, with its kind as the prefix. Any other key is a text from the site's own code."""

    __slots__ = ()


@lru_cache(maxsize=512)
def _rule_of_rate(scope: str, limit: int, window: float, shadow: bool) -> Rule:
    """Return a rule that keeps DRF's promise, never more than the limit in any window. Long logs become counters."""
    name, rate = f"{UNLISTED_PREFIX}{scope}", Rate(limit, window)
    if limit <= MAX_LOG_UNITS:
        rule = Rule(name, rate, key=EVERYONE, algorithm="sliding_log")
    else:
        rule = Rule(name, rate, key=EVERYONE, resolution=MAX_RESOLUTION, strict=True)
    return rule.as_shadow() if shadow else rule


def read_rate(rate: str | None) -> tuple[int | None, float | None]:
    """Return limit and window in seconds of a rate, read by ``Rate.parse`` or else by DRF. Return two None for None.

    Months are not read by DRF: it reads the first letter of a unit only, so ``10/months`` would be ten per minute.
    Raise InvalidRate if neither can read the rate.
    """
    if rate is None:
        return None, None
    try:
        parsed = Rate.parse(rate)
    except InvalidRate:
        try:
            limit, window = throttling.SimpleRateThrottle.parse_rate(None, rate)  # type: ignore[arg-type]
        except (AttributeError, IndexError, KeyError, ValueError):
            limit = window = None
        if limit is None or "/mo" in rate:
            raise
        return limit, window
    return parsed.limit, parsed.window


def unsupported_reads(kind: type[object]) -> Iterator[tuple[str, str, str]]:
    """Yield each read of an unsupported attribute in the methods of a throttle: method, attribute, advice.

    Skip methods whose source cannot be read, and attributes that the class itself sets.
    """
    uses = [use for base in kind.__mro__ if base.__module__ not in _LIBRARIES for use in _uses_of_self(base)]
    set_names = {name for _, name, is_set in uses if is_set}
    unsupported = {
        name: value
        for name, value in vars(SimpleRateThrottle).items()
        if isinstance(value, Unsupported)
        and inspect.getattr_static(kind, name, None) is value
        and name not in set_names
    }
    for method, name in dict.fromkeys((method, name) for method, name, _ in uses):
        if name in unsupported:
            yield method, name, unsupported[name].advice


_LIBRARIES: Final = {__name__, DecidedThrottle.__module__, throttling.__name__, "builtins"}


def _uses_of_self(kind: type[object]) -> Iterator[tuple[str, str, bool]]:
    """Yield each attribute of ``self`` in the source of a class: the method, the attribute, and True if it is set."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return
    for method in ast.walk(tree):
        if isinstance(method, ast.FunctionDef):
            names = _names_of_self(method)
            for node in ast.walk(method):
                match node:
                    case ast.Attribute(ast.Name(name), attribute, context) if name in names:
                        yield method.name, attribute, isinstance(context, ast.Store)
                    case ast.Call(ast.Name("getattr"), [ast.Name(name), ast.Constant(str(attribute))]) if name in names:
                        yield method.name, attribute, False


def _names_of_self(method: ast.FunctionDef) -> set[str]:
    """Return ``self`` and the names to which a method assigns it."""
    names = {"self"}
    for node in ast.walk(method):
        match node:
            case ast.Assign(targets, ast.Name(name)) if name in names:
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.NamedExpr(ast.Name(alias), ast.Name(name)) | ast.AnnAssign(ast.Name(alias), _, ast.Name(name)):
                names |= {alias} if name in names else set()
    return names


def loaded_drop_ins() -> Iterator[type[SimpleRateThrottle]]:
    """Yield all loaded subclasses of ``SimpleRateThrottle``."""
    classes = SimpleRateThrottle.__subclasses__()
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        yield kind


def drop_in_names() -> set[str]:
    """Return the names for overrides of the limits of loaded throttles, and of every scope that has a rate."""
    scopes = set(api_settings.DEFAULT_THROTTLE_RATES)
    for kind in loaded_drop_ins():
        rates = kind.THROTTLE_RATES
        scopes |= {getattr(kind, "scope", None) or kind.__name__, *(rates if isinstance(rates, Mapping) else ())}
    return {f"{UNLISTED_PREFIX}{scope}" for scope in scopes if isinstance(scope, str)}


sources.unlisted_limits.append(drop_in_names)
