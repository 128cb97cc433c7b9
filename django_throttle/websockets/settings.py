"""Settings of a WebSocket entry point: what an entry point says of its sockets, checked as soon as it is given."""

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
from django_throttle.identity.call import own_function
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

ON_RULE_CHANGE: Final = ("ignore", "warn", "close")
POSITIONAL: Final = Parameter.POSITIONAL_OR_KEYWORD

# Makes of a payload what a subprotocol has for it; None for no frame.
Shape = Callable[[object], object | None]

_log_throttle: Final = LogThrottle()


def _no_kind(message: Event) -> Hashable | None:
    return None


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """The scope whose rules apply, what a client is told, what is done about refused frames, and for how long.

    ``payload`` is called with the decision, and with the refused message if it takes two arguments.
    ``ladder`` has, for an action (ACTIONS), the refusal in a row from which on it is taken; 0 for never. None leaves a
    choice to the settings, as it does for ``idle_timeout`` and ``max_age``, in seconds; 0 for never.
    """

    scope: str
    refuse: str | None = None
    cost: Callable[[Event], int] | int = 1
    payload: Callable[..., object] = error_payload
    coalesce: Callable[[Event], Hashable | None] = _no_kind
    continuity: Callable[[DroppedFrames], object] = continuity_payload
    close_codes: Mapping[str, int] = field(default_factory=dict)
    ladder: Mapping[str, int] | None = None
    idle_timeout: float | timedelta | None = None
    max_age: float | timedelta | None = None
    on_rule_change: str = "warn"
    answers: str = "each"

    def check(self) -> None:
        """Raise InvalidSetting for an invalid option; the site's settings are not looked at."""
        if not isinstance(self.scope, str) or not self.scope:
            raise InvalidSetting(f"the scope of sockets must be a name, not {self.scope!r}")
        if self.refuse is not None:
            _check_word("refuse", self.refuse, REFUSALS)
        _check_codes(self.close_codes)
        _check_word("on_rule_change", self.on_rule_change, ON_RULE_CHANGE)
        _check_word("answers", self.answers, ANSWERS)
        _check_ladder(self.ladder)
        _check_seconds("idle_timeout", self.idle_timeout)
        _check_seconds("max_age", self.max_age)
        if callable(self.cost):
            _check_function("cost", self.cost)
        elif type(self.cost) is not int or self.cost < 0:
            raise InvalidSetting(f"cost must be a whole number of 0 or more, or a function, not {self.cost!r}")
        for name in ("payload", "coalesce", "continuity"):
            _check_function(name, getattr(self, name))

    @property
    def refusal(self) -> str:
        """How a handshake is refused: "http" or "frame"; raises InvalidSetting for a way that does not exist."""
        refusal = self.refuse or conf().REFUSE_SOCKET
        _check_word("REFUSE_SOCKET", refusal, REFUSALS)
        return refusal

    def refusal_content(self, decision: Decision, shape: Shape, message: Event | None = None) -> str | bytes | None:
        """Return the content of an error frame for a refused message, or for none: the site's own, if it can be sent.

        ``shape`` is of the subprotocol; None if it has no such frame.
        """
        return _content(
            self.payload, partial(_refusal, self.payload, decision, message), error_payload, decision, shape
        )

    def continuity_content(self, dropped: DroppedFrames, shape: Shape) -> str | bytes | None:
        """Return the content of the frame that reports dropped ones, likewise."""
        return _content(self.continuity, partial(self.continuity, dropped), continuity_payload, dropped, shape)

    def coalesce_kind(self, message: Event) -> Hashable | None:
        """Of which kind an outgoing frame is; None where the site's own function fails."""
        try:
            kind = self.coalesce(message)
            hash(kind)
        except Exception as error:  # noqa: BLE001 - it may raise anything
            _log_failure(self.coalesce, error, "the frame is taken to be of no kind")
            return None
        return kind

    def action(self, refusals: int) -> str:
        """What is done about the last of so many refusals in a row: the hardest action that is due."""
        ladder = {"error": 1, "close": conf().MAX_VIOLATIONS, **(self.ladder or {})}
        due = [action for action in ACTIONS if 0 < ladder.get(action, 0) <= refusals]
        return due[-1] if due else "drop"

    def lifetimes(self) -> tuple[float, float]:
        """For how long a socket may be silent, and open; seconds, 0 for ever."""
        site = conf()
        idle = site.SOCKET_IDLE_TIMEOUT if self.idle_timeout is None else _seconds(self.idle_timeout)
        oldest = site.SOCKET_MAX_AGE if self.max_age is None else _seconds(self.max_age)
        return idle, oldest


def _refusal(function: Callable[..., object], decision: Decision, message: Event | None) -> object:
    """Call a function that makes the payload of a refusal.

    It gets the message too if it has a parameter ``message``, or needs two arguments.
    """
    try:
        parameters = signature(function).parameters
    except ValueError:  # of a built-in function
        return function(decision)
    if "message" in parameters:
        by_name = {"decision": decision} if "decision" in parameters else {}
        return function(*(() if by_name else (decision,)), **by_name, message=message)
    required = [one for one in parameters.values() if one.default is one.empty and one.kind <= POSITIONAL]
    return function(decision, message) if len(required) > 1 else function(decision)


def _content(
    own: object, make: Callable[[], object], standard: Callable[[T], object], subject: T, shape: Shape
) -> str | bytes | None:
    """Return the encoded content of a frame: the site's own, or the standard one if that cannot be sent."""
    try:
        payload = make()
        if iscoroutine(payload):
            payload.close()  # nobody will ever await it
            raise TypeError("it must not be asynchronous: the content is needed at once")
        content = encode(payload)
        shaped = shape(payload)
        return content if shaped is payload else _encoded(shaped)
    except Exception as error:  # noqa: BLE001 - it may raise anything
        _log_failure(own, error, "what it returned cannot be sent, and the client gets the standard frame")
        return _encoded(shape(standard(subject)))


def _encoded(payload: object | None) -> str | bytes | None:
    return None if payload is None else encode(payload)


def _log_failure(own: object, error: Exception, consequence: str) -> None:
    """Log what a function of the site's has raised, at most once a minute for each."""
    name = getattr(own, "__qualname__", None) or repr(own)
    if _log_throttle.due(name):
        logger.error("%s failed: %s", name, consequence, exc_info=error)


def _check_word(what: str, word: object, known: Iterable[str]) -> None:
    if not isinstance(word, str) or word not in known:
        raise InvalidSetting(f"{what} must be one of {', '.join(known)}, not {word!r}{did_you_mean(word, known)}")


def _check_seconds(what: str, given: object) -> None:
    if given is None:
        return
    number = _seconds(given) if isinstance(given, timedelta) else given
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not isfinite(number) or number < 0:
        raise InvalidSetting(f"{what} must be a number of seconds, 0 for never, not {given!r}")


def _seconds(given: float | timedelta) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else given


def _check_ladder(ladder: object) -> None:
    if ladder is None:
        return
    if not isinstance(ladder, Mapping):
        raise InvalidSetting(f"a ladder must be a dictionary such as {{'close': 20}}, not {ladder!r}")
    for action, number in ladder.items():
        _check_word("an action of a ladder", action, ACTIONS)
        if type(number) is not int or number < 0:
            raise InvalidSetting(f"a ladder must have whole numbers of refusals in a row, not {number!r}")


def _check_codes(own: object) -> None:
    if not isinstance(own, Mapping):
        raise InvalidSetting(f"close codes must be a dictionary such as {{'idle': 4001}}, not {own!r}")
    for reason, code in own.items():
        _check_word("the reason of a close code", reason, CLOSE_CODES)
        if type(code) is not int or not (code == 1000 or 3000 <= code <= 4999):
            raise InvalidSetting(f"a close code must be 1000 or from 3000 to 4999, not {code!r}")


def _check_function(what: str, given: object) -> None:
    if not callable(given):
        raise InvalidSetting(f"{what} must be a function, not {given!r}")
    if iscoroutinefunction(given):
        raise InvalidSetting(f"{what} must not be asynchronous: its result is needed at once")


# The attributes of a consumer, and what they are called in SocketSettings and by the middleware.
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
# What else somebody may take their names for: also those of the setting, and of the middleware's options.
_ALIKE: Final = {"throttle_refuse": "refuse", "throttle_max_violations": "throttle_ladder"}
_BY_OPTION: Final = {option: name for name, option in OPTIONS.items() if option != name}
# As alike as a letter more or less makes them; a site may have attributes of its own that begin like ours.
_NEAR: Final = 0.8


_attributes: Final = attrgetter(*OPTIONS)
# The settings of each class whose consumers all have the same, and by what attributes of it.
_checked: Final[WeakKeyDictionary[type, tuple[tuple[object, ...], SocketSettings]]] = WeakKeyDictionary()


def middleware_settings(scope: str, refuse: str | None, options: Mapping[str, Any]) -> SocketSettings:
    """The settings of a middleware, checked; raises InvalidSetting."""
    for name in options:
        if name not in OPTIONS.values():
            raise InvalidSetting(f"ThrottleMiddleware has no option {name!r}{did_you_mean(name, OPTIONS.values())}")
    settings = SocketSettings(scope, refuse, **options)
    settings.check()
    return settings


def consumer_settings(consumer: object, mixin: type) -> SocketSettings:
    """The settings of a consumer, checked; what it has unchanged of the ``mixin`` is as in SocketSettings.

    Raises InvalidSetting.
    """
    kind, own = type(consumer), vars(consumer)
    says, is_of_class = _attributes(kind), own.keys().isdisjoint(OPTIONS)
    known = _checked.get(kind) if is_of_class else None
    if known is not None and known[0] == says:
        return known[1]
    both = zip(OPTIONS, says, _attributes(mixin), strict=True)
    changed = {name: said for name, said, unchanged in both if name in own or said is not unchanged}
    given = {OPTIONS[name]: own_function(getattr(consumer, name)) for name in changed}
    given["scope"] = given.get("scope") or kind.__name__
    settings = SocketSettings(**given)
    settings.check()
    if is_of_class and not any(map(_may_vary, changed.values())):
        _checked[kind] = says, settings
    return settings


def _may_vary(attribute: object) -> bool:
    """Methods and properties are the consumer's, which ends with its socket; a mapping may be changed."""
    return callable(attribute) or hasattr(attribute, "__get__") or isinstance(attribute, Mapping)


def check_class(consumer: type) -> None:
    """Raise for a class that can never work: InvalidSetting for what it says, TypeError for what it is.

    A property has a value only on an instance, and is checked when one opens a socket.
    """
    if hasattr(consumer, "http_request") and not hasattr(consumer, "websocket_connect"):
        raise TypeError(
            f"{consumer.__name__}: ThrottledConsumerMixin limits sockets, and this is a consumer of requests, which "
            "nothing here limits by itself: make it a view, or ask a Limiter in it"
        )
    given = {option: getattr(consumer, name) for name, option in OPTIONS.items()}
    fixed = {option: value for option, value in given.items() if callable(value) or not hasattr(value, "__get__")}
    SocketSettings(**{**fixed, "scope": fixed.get("scope") or consumer.__name__}).check()


def misspelt_options(kind: type) -> Iterator[tuple[str, str]]:
    """Yield each attribute that a class itself has and that means nothing, with the one that was probably meant."""
    own = vars(kind)
    valid = [name for name in (*OPTIONS, *_ALIKE) if name.startswith("throttle")]
    names = [name for name in own if name.startswith("t")]
    yield from ((name, _ALIKE.get(near, near)) for name, near in misspellings(names, valid, _NEAR))
    yield from ((name, meant) for name, meant in _ALIKE.items() if name in names)
    # A handler of the consumer, or a property, may have any other name.
    values = {name: value for name, value in own.items() if not callable(value) and not hasattr(value, "__get__")}
    yield from misspellings([name for name, value in values.items() if isinstance(value, str)], ["refuse"], _NEAR)
    yield from ((name, meant) for name, meant in _BY_OPTION.items() if name in values)
