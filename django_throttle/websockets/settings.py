"""Settings of a WebSocket entry point, and their validation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import Parameter, iscoroutine, iscoroutinefunction, signature
from math import isfinite
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.options import did_you_mean, misspellings
from django_throttle.exceptions import InvalidSetting
from django_throttle.identity.site_functions import own_function
from django_throttle.runtime import LogThrottle
from django_throttle.websockets.error_frames import (
    ACTIONS,
    ANSWERS,
    CLOSE_CODES,
    REFUSALS,
    DroppedFrames,
    Event,
    continuity_payload,
    encode,
    error_payload,
)

logger = logging.getLogger("django_throttle")

T = TypeVar("T")

#: For each action, the number of consecutive refusals from which it is taken.
LADDER: Final = {"error": 1, "close": 10}
ON_RULE_CHANGE: Final = ("ignore", "warn", "close")
POSITIONAL: Final = Parameter.POSITIONAL_OR_KEYWORD

# Converts a payload to the form that a subprotocol prescribes; returns None if it has no such frame.
Shape = Callable[[object], object | None]

_log_throttle: Final = LogThrottle()


def _no_kind(message: Event) -> Hashable | None:
    return None


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """The settings of one entry point."""

    scope: str  #: whose rules apply
    refuse: str = "http"  #: way to refuse a handshake, of REFUSALS
    cost: Callable[[Event], int] | int = 1  #: cost of an incoming frame, or a function of its event
    #: Makes an error frame of the decision, and of the refused message if it takes two arguments.
    payload: Callable[..., object] = error_payload
    coalesce: Callable[[Event], Hashable | None] = _no_kind  #: returns the kind of an outgoing frame
    continuity: Callable[[DroppedFrames], object] = continuity_payload  #: makes the frame that reports dropped frames
    close_codes: Mapping[str, int] = field(default_factory=dict)  #: close codes by reason
    #: For actions of ACTIONS, the number of consecutive refusals from which the action is taken; 0 for never.
    #: It is merged into LADDER.
    ladder: Mapping[str, int] | None = None
    #: Seconds of silence until a socket is closed; 0 for never. The setting SOCKET_IDLE_TIMEOUT applies if None.
    idle_timeout: float | timedelta | None = None
    max_age: float | timedelta = 0  #: seconds that a socket may be open; 0 for no limit
    on_rule_change: str = "warn"  #: action for sockets above a lowered limit, of ON_RULE_CHANGE
    answers: str = "each"  #: refused messages that are answered, of ANSWERS

    def check(self) -> None:
        """Raise InvalidSetting for an invalid option. Django's settings are not checked."""
        if not isinstance(self.scope, str) or not self.scope:
            raise InvalidSetting(f"the scope of sockets must be a name, not {self.scope!r}")
        _check_word("refuse", self.refuse, REFUSALS)
        _check_codes(self.close_codes)
        _check_word("on_rule_change", self.on_rule_change, ON_RULE_CHANGE)
        _check_word("answers", self.answers, ANSWERS)
        _check_ladder(self.ladder)
        if self.idle_timeout is not None:
            _check_seconds("idle_timeout", self.idle_timeout)
        _check_seconds("max_age", self.max_age)
        if callable(self.cost):
            _check_function("cost", self.cost)
        elif type(self.cost) is not int or self.cost < 0:
            raise InvalidSetting(f"cost must be a whole number of 0 or more, or a function, not {self.cost!r}")
        for name in ("payload", "coalesce", "continuity"):
            _check_function(name, getattr(self, name))

    def refusal_content(self, decision: Decision, shape: Shape, message: Event | None = None) -> str | bytes | None:
        """Return the content of an error frame, the standard one if that of the site cannot be sent.

        ``shape`` is of the subprotocol, ``message`` the refused frame. Return None if the subprotocol has no such
        frame.
        """
        return _encoded_content(
            self.payload,
            partial(_call_payload_function, self.payload, decision, message),
            error_payload,
            decision,
            shape,
        )

    def continuity_content(self, dropped: DroppedFrames, shape: Shape) -> str | bytes | None:
        """Return the content of the frame that reports dropped frames, as ``refusal_content`` does."""
        return _encoded_content(self.continuity, partial(self.continuity, dropped), continuity_payload, dropped, shape)

    def coalesce_kind(self, message: Event) -> Hashable | None:
        """Return the kind of an outgoing frame, or None if the site's function fails."""
        try:
            kind = self.coalesce(message)
            hash(kind)
        except Exception as error:  # noqa: BLE001 - it may raise anything
            _log_failure(self.coalesce, error, "the frame is treated as a frame without a kind")
            return None
        return kind

    def action(self, refusals: int) -> str:
        """Return the hardest action of the ladder that is due after this number of consecutive refusals."""
        ladder = {**LADDER, **(self.ladder or {})}
        due = [action for action in ACTIONS if 0 < ladder.get(action, 0) <= refusals]
        return due[-1] if due else "drop"

    def lifetimes(self) -> tuple[float, float]:
        """Return the idle timeout and the maximal age of a socket, in seconds; 0 for no limit."""
        idle_timeout = conf().SOCKET_IDLE_TIMEOUT if self.idle_timeout is None else self.idle_timeout
        return _seconds(idle_timeout), _seconds(self.max_age)


def _call_payload_function(function: Callable[..., object], decision: Decision, message: Event | None) -> object:
    """Call the site's function for the payload of a refusal.

    The message is passed too if the function has a parameter ``message`` or requires two arguments.
    """
    try:
        parameters = signature(function).parameters
    except ValueError:  # of a built-in function
        return function(decision)
    if "message" in parameters:
        by_name = {"decision": decision} if "decision" in parameters else {}
        return function(*(() if by_name else (decision,)), **by_name, message=message)
    required = [
        parameter
        for parameter in parameters.values()
        if parameter.default is parameter.empty and parameter.kind <= POSITIONAL
    ]
    return function(decision, message) if len(required) > 1 else function(decision)


def _encoded_content(
    function: object, make: Callable[[], object], standard: Callable[[T], object], subject: T, shape: Shape
) -> str | bytes | None:
    """Return the encoded payload that ``make`` returns, or the standard payload of ``subject`` if it cannot be sent.

    ``function`` is the function of the site, for the log.
    """
    try:
        payload = make()
        if iscoroutine(payload):
            payload.close()  # never awaited
            raise TypeError("it must not be asynchronous: the content is needed at once")
        content = encode(payload)
        shaped = shape(payload)
        return content if shaped is payload else _encoded_payload(shaped)
    except Exception as error:  # noqa: BLE001 - it may raise anything
        _log_failure(function, error, "the client gets the standard frame")
        return _encoded_payload(shape(standard(subject)))


def _encoded_payload(payload: object | None) -> str | bytes | None:
    return None if payload is None else encode(payload)


def _log_failure(function: object, error: Exception, consequence: str) -> None:
    """Log the error of a function of the site, at most once a minute for each function."""
    name = getattr(function, "__qualname__", None) or repr(function)
    if _log_throttle.try_acquire(name):
        logger.error("%s failed: %s", name, consequence, exc_info=error)


def _check_word(label: str, word: object, choices: Iterable[str]) -> None:
    if not isinstance(word, str) or word not in choices:
        raise InvalidSetting(f"{label} must be one of {', '.join(choices)}, not {word!r}{did_you_mean(word, choices)}")


def _check_seconds(label: str, value: object) -> None:
    number = _seconds(value) if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not isfinite(number) or number < 0:
        raise InvalidSetting(f"{label} must be a number of seconds, 0 for never, not {value!r}")


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _check_ladder(ladder: object) -> None:
    if ladder is None:
        return
    if not isinstance(ladder, Mapping):
        raise InvalidSetting(f"a ladder must be a dictionary such as {{'close': 20}}, not {ladder!r}")
    for action, number in ladder.items():
        _check_word("an action of a ladder", action, ACTIONS)
        if type(number) is not int or number < 0:
            raise InvalidSetting(f"a ladder must have whole numbers of refusals in a row, not {number!r}")


def _check_codes(codes: object) -> None:
    if not isinstance(codes, Mapping):
        raise InvalidSetting(f"close codes must be a dictionary such as {{'idle': 4001}}, not {codes!r}")
    for reason, code in codes.items():
        _check_word("the reason of a close code", reason, CLOSE_CODES)
        if type(code) is not int or not (code == 1000 or 3000 <= code <= 4999):
            raise InvalidSetting(f"a close code must be 1000 or from 3000 to 4999, not {code!r}")


def _check_function(label: str, value: object) -> None:
    if not callable(value):
        raise InvalidSetting(f"{label} must be a function, not {value!r}")
    if iscoroutinefunction(value):
        raise InvalidSetting(f"{label} must not be asynchronous: its result is needed at once")


# Names of consumer attributes, with their names in SocketSettings and in the middleware.
OPTIONS: Final[dict[str, str]] = {
    "throttle_scope": "scope",
    "refuse": "refuse",
    "throttle_cost": "cost",
    "throttle_error_payload": "payload",
    "throttle_coalesce": "coalesce",
    "throttle_continuity_payload": "continuity",
    "throttle_close_codes": "close_codes",
    "throttle_ladder": "ladder",
    "throttle_idle_timeout": "idle_timeout",
    "throttle_max_age": "max_age",
    "throttle_on_rule_change": "on_rule_change",
    "throttle_answers": "answers",
}
# Likely wrong names, with the right ones.
_WRONG_NAMES: Final = {"throttle_refuse": "refuse", "throttle_max_violations": "throttle_ladder"}
_NAME_BY_OPTION: Final = {option: name for name, option in OPTIONS.items() if option != name}
# Similarity of one letter more or less: a site may have its own attributes with our prefix.
_MIN_SIMILARITY: Final = 0.8


_get_attributes: Final = attrgetter(*OPTIONS)
# For each class whose consumers share their settings: its attributes, and the settings made of them.
_settings_cache: Final[WeakKeyDictionary[type, tuple[tuple[object, ...], SocketSettings]]] = WeakKeyDictionary()


def middleware_settings(scope: str, refuse: str, options: Mapping[str, Any]) -> SocketSettings:
    """Return the settings of a middleware. Raise InvalidSetting for an unknown or invalid option."""
    for name in options:
        if name not in OPTIONS.values():
            raise InvalidSetting(f"ThrottleMiddleware has no option {name!r}{did_you_mean(name, OPTIONS.values())}")
    settings = SocketSettings(scope, refuse, **options)
    settings.check()
    return settings


def consumer_settings(consumer: object, mixin: type) -> SocketSettings:
    """Return the settings of a consumer. Raise InvalidSetting for an invalid attribute.

    Attributes that the consumer inherits unchanged from ``mixin`` have the defaults of SocketSettings.
    """
    consumer_class, own = type(consumer), vars(consumer)
    attributes, is_of_class = _get_attributes(consumer_class), own.keys().isdisjoint(OPTIONS)
    cached = _settings_cache.get(consumer_class) if is_of_class else None
    if cached is not None and cached[0] == attributes:
        return cached[1]
    with_defaults = zip(OPTIONS, attributes, _get_attributes(mixin), strict=True)
    changed = {name: value for name, value, default in with_defaults if name in own or value is not default}
    options = {OPTIONS[name]: own_function(getattr(consumer, name)) for name in changed}
    options["scope"] = options.get("scope") or consumer_class.__name__
    settings = SocketSettings(**options)
    settings.check()
    if is_of_class and not any(map(_may_vary, changed.values())):
        _settings_cache[consumer_class] = attributes, settings
    return settings


def _may_vary(attribute: object) -> bool:
    """Return True for an attribute whose value may differ between consumers or change: a function or a mapping."""
    return callable(attribute) or hasattr(attribute, "__get__") or isinstance(attribute, Mapping)


def check_class(consumer: type) -> None:
    """Raise InvalidSetting for invalid attributes of a consumer class, TypeError for a consumer of requests.

    A property has a value only on an instance, so it is checked when a socket is opened.
    """
    if hasattr(consumer, "http_request") and not hasattr(consumer, "websocket_connect"):
        raise TypeError(
            f"{consumer.__name__}: ThrottledConsumerMixin limits WebSockets, but this consumer handles HTTP requests: "
            "make it a view, or call a Limiter in it"
        )
    options = {option: getattr(consumer, name) for name, option in OPTIONS.items()}
    fixed = {option: value for option, value in options.items() if callable(value) or not hasattr(value, "__get__")}
    SocketSettings(**{**fixed, "scope": fixed.get("scope") or consumer.__name__}).check()


def misspelt_options(consumer_class: type) -> Iterator[tuple[str, str]]:
    """Yield each attribute of the class itself that looks like a misspelt option, with the option."""
    own = vars(consumer_class)
    valid = [name for name in (*OPTIONS, *_WRONG_NAMES) if name.startswith("throttle")]
    names = [name for name in own if name.startswith("t")]
    for name, option in misspellings(names, valid, _MIN_SIMILARITY):
        yield name, _WRONG_NAMES.get(option, option)
    yield from ((name, option) for name, option in _WRONG_NAMES.items() if name in names)
    # Handlers of the consumer and properties may have any other name.
    values = {name: value for name, value in own.items() if not callable(value) and not hasattr(value, "__get__")}
    texts = [name for name, value in values.items() if isinstance(value, str)]
    yield from misspellings(texts, ["refuse"], _MIN_SIMILARITY)
    yield from ((name, attribute) for name, attribute in _NAME_BY_OPTION.items() if name in values)
