"""Drop-ins for DRF's own throttles: they obey its settings and methods, and count in our store."""

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

from django_throttle import limiter
from django_throttle.conf import conf
from django_throttle.core import Rate, Rule
from django_throttle.core.algorithms.sliding_log import MAX_LOG
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
    """What DRF's throttles have and these have not: whoever reads it, or puts something there, is told so."""

    def __init__(self, instead: str) -> None:
        self.instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, throttle: object | None, owner: type) -> Unsupported:
        if throttle is None:
            return self
        raise AttributeError(self.message(owner))

    def message(self, owner: type) -> str:
        return f"{owner.__name__}.{self.name}: {self.instead}"


class _RatesInForce:
    """``THROTTLE_RATES`` as DRF's setting is now, of a class and of a throttle; DRF itself reads it once, at import.

    Tests of a site may put other rates on DRF's own class: those hold then.
    """

    def __get__(self, throttle: object | None, owner: type) -> Mapping[str, object]:
        rates = throttling.SimpleRateThrottle.THROTTLE_RATES
        return api_settings.DEFAULT_THROTTLE_RATES if rates is _RATES_AT_IMPORT else rates


_RATES_AT_IMPORT: Final = throttling.SimpleRateThrottle.THROTTLE_RATES


class SimpleRateThrottle(DecidedThrottle, throttling.SimpleRateThrottle):
    """DRF's SimpleRateThrottle, counted in our store: atomic, by the store's clock, refused calls free.

    A subclass sets ``rate``, or ``scope`` for DEFAULT_THROTTLE_RATES, and may override ``get_cache_key`` (whose
    text is what the call counts under), ``get_rate``, ``parse_rate``, ``get_ident``, ``throttle_success``,
    ``throttle_failure`` and ``wait``. ``key`` and ``decision`` are those of the last request. A limit of 0 refuses
    every request, and counts none. Raises ImproperlyConfigured for a ``timer``, a ``cache`` or a ``cache_format``
    of one's own, by which nothing would be counted.
    """

    num_requests: int
    duration: float
    key: str

    timer: Any = Unsupported("calls are counted by the clock of the store, which a test moves by override_rules({})")
    cache: Any = Unsupported("calls are counted in the store that DJANGO_THROTTLE names, in no cache")
    history: Any = Unsupported("the store keeps none; self.decision has limit, remaining and retry_after")
    now: Any = Unsupported("calls are counted by the clock of the store")

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls._check()
        is_formatted = cls.cache_format != throttling.SimpleRateThrottle.cache_format
        if is_formatted and cls.get_cache_key.__module__ == __name__:
            raise ImproperlyConfigured(
                f"{cls.__name__}.cache_format is only for a get_cache_key of its own; "
                "what is to count apart has another scope"
            )

    THROTTLE_RATES: Any = _RatesInForce()

    def parse_rate(self, rate: str | None) -> Any:  # whole seconds in DRF
        """(limit, window in seconds), or a pair of None for no limit; raises InvalidRate."""
        return read_rate(rate)

    def allow_request(self, request: Request, view: APIView) -> bool:
        self._check()
        key = None if self.rate is None else self.get_cache_key(request, view)
        if key is None:
            return True
        self.key = key
        if self.num_requests <= 0:
            return conf().SHADOW or self.throttle_failure()
        caller = RequestCaller(request)
        # A limit and a window that the site has computed need be no whole numbers.
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
        """True; called for each request that passes, which has been counted by then."""
        return True

    def wait(self) -> float | None:
        """Retry-After in seconds; None when the request will never pass. Of a limit of 0 it is the window, as DRF's."""
        return self.duration if self.num_requests == 0 else super().wait()

    def get_ident(self, request: Request) -> str | None:  # type: ignore[override]
        """The client's address: DRF's reading where NUM_PROXIES is set, else one that no header can forge.

        Raises LimiterUnavailable where nobody knows it and the site refuses that (NO_ADDRESS).
        """
        # What the header says is taken only when it is an address, in one notation.
        said = None if api_settings.NUM_PROXIES is None else super().get_ident(request)
        address = network(said, conf().IPV6_PREFIX)
        ident = f"ip:{address}" if address else RequestCaller(request).ident("ip")
        if ident is None and refuses_without_address():
            raise LimiterUnavailable(NO_ADDRESS_WAIT)
        return None if ident is None else _TaggedIdent(ident)

    @classmethod
    def _check(cls) -> None:
        """At each request too, because DRF's way to test a throttle is to set a timer on its class."""
        for unsupported in _NEVER_OVERRIDDEN:
            if getattr(cls, unsupported.name) is not unsupported:
                raise ImproperlyConfigured(unsupported.message(cls))


_NEVER_OVERRIDDEN: Final = (SimpleRateThrottle.timer, SimpleRateThrottle.cache)


class AnonRateThrottle(SimpleRateThrottle):
    """Limits each address that is not logged in."""

    scope = "anon"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        return None if RequestCaller(request).ident("user") else self.get_ident(request)


class UserRateThrottle(SimpleRateThrottle):
    """Limits each user, and each address that is not logged in."""

    scope = "user"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        user = RequestCaller(request).ident("user")
        return _TaggedIdent(user) if user else self.get_ident(request)


class ScopedRateThrottle(throttling.ScopedRateThrottle, UserRateThrottle):
    """Limits each user, or address, in the view's ``throttle_scope``; views without one are free."""

    get_cache_key = UserRateThrottle.get_cache_key


class _TaggedIdent(str):
    """What we have found ourselves, and tagged by its kind; any other key is a text of the site's own making."""

    __slots__ = ()


@lru_cache(maxsize=512)
def _rule_of_rate(scope: str, limit: int, window: float, shadow: bool) -> Rule:
    """DRF's promise, never more than the limit in any window: by a log, or by counters where a log would be long."""
    name, rate = f"{UNLISTED_PREFIX}{scope}", Rate(limit, window)
    if limit <= MAX_LOG:
        rule = Rule(name, rate, key=EVERYONE, algorithm="sliding_log")
    else:
        rule = Rule(name, rate, key=EVERYONE, resolution=MAX_RESOLUTION, strict=True)
    return rule.as_shadow() if shadow else rule


def read_rate(rate: str | None) -> tuple[int | None, float | None]:
    """Return limit and window in seconds of a rate as ``Rate.parse`` reads it, or else as DRF does; of None, two Nones.

    DRF reads one letter of the unit, so ``10/months`` would be ten a minute there: no month is read.
    Raises InvalidRate, also for what DRF cannot read.
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


def unsupported_reads(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each read of what drop-ins lack in the methods of a throttle: the method, the attribute, what to do.

    Methods whose source cannot be read, and attributes that the class itself sets, are passed over.
    """
    missing = {name: at for name, at in vars(SimpleRateThrottle).items() if isinstance(at, Unsupported)}
    wanted = {name: at for name, at in missing.items() if inspect.getattr_static(kind, name, None) is at}
    uses = [use for base in kind.__mro__ if base.__module__ not in _LIBRARIES for use in _uses_of_self(base)]
    wanted = {
        name: at for name, at in wanted.items() if not any(node.attr == name and is_set for _, node, is_set in uses)
    }
    for method, name in dict.fromkeys((method, node.attr) for method, node, _ in uses):
        if name in wanted:
            yield method, name, wanted[name].instead


_LIBRARIES: Final = {__name__, DecidedThrottle.__module__, throttling.__name__, "builtins"}


def _uses_of_self(kind: type[Any]) -> Iterator[tuple[str, ast.Attribute, bool]]:
    """Yield each attribute of ``self`` in the source of a class: the method, its node, whether it is set there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return
    for method in ast.walk(tree):
        if isinstance(method, ast.FunctionDef):
            for node in ast.walk(method):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                    yield method.name, node, isinstance(node.ctx, ast.Store)


def loaded_drop_ins() -> Iterator[type[SimpleRateThrottle]]:
    """Yield the classes that are loaded, without ``SimpleRateThrottle`` itself."""
    classes = SimpleRateThrottle.__subclasses__()
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        yield kind


def drop_in_names() -> set[str]:
    """What overrides call the limits of the throttles that are loaded, and of every scope that has a rate."""
    found = set(api_settings.DEFAULT_THROTTLE_RATES)
    for kind in loaded_drop_ins():
        rates = kind.THROTTLE_RATES
        found |= {getattr(kind, "scope", None) or kind.__name__, *(rates if isinstance(rates, Mapping) else ())}
    return {f"{UNLISTED_PREFIX}{scope}" for scope in found if isinstance(scope, str)}


sources.unlisted_limits.append(drop_in_names)
