"""Each setting by itself: its text, its choices, its range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.core.checks import CheckMessage

from django_throttle.checks.given import Given, is_number, value_of, wrong
from django_throttle.conf import NAMES, unknown
from django_throttle.core.headers import VERSIONS, X_VERSIONS

# Setting: number of its check, least, most, and whether it counts something.
NUMBERS: Final[dict[str, tuple[str, float, float, bool]]] = {
    "RULES_POLL": ("E020", 0.05, 60, False),
    "RULES_REREAD": ("E021", 1, 3600, False),
    "DEADLINE": ("E022", 0.005, 10, False),
    "MAX_CONNECTIONS": ("E023", 1, 10_000, True),
    "PROCESSES": ("E081", 0, 1_000_000, True),
    "BEAT_INTERVAL": ("E024", 0.1, 300, False),
    "PROCESS_TTL": ("E025", 0.5, 3600, False),
    "CONNECTION_TTL": ("E026", 1, 86_400, False),
    "EXTEND_INTERVAL": ("E027", 0.5, 43_200, False),
    "IPV6_PREFIX": ("E028", 1, 128, True),
    "DAMPER_INTERVAL": ("E080", 0.5, 4, False),
    "SOCKET_ACCEPT_TIMEOUT": ("E072", 0, 3600, False),
    "SOCKET_IDLE_TIMEOUT": ("E073", 0, 604_800, False),
    "SOCKET_MAX_AGE": ("E074", 0, 31_536_000, False),
    "MAX_VIOLATIONS": ("E029", 0, 1_000_000, True),
}
TEXTS: Final = {"PREFIX": "E012", "KEY_SECRET": "E013"}
SWITCHES: Final = {
    "DATABASE_RULES": "E014",
    "RULES_WAIT": "E018",
    "AGENT": "E015",
    "SHADOW": "E060",
    "TESTS_IN_MEMORY": "E017",
}
CHOICES: Final = {
    "STORE": ("E010", ("memory", "redis")),
    "REFUSE_SOCKET": ("E016", ("http", "frame")),
    "NO_ADDRESS": ("E042", ("skip", "refuse")),
    "RATELIMIT_HEADERS": ("E051", tuple(VERSIONS)),
    "X_RATELIMIT_HEADERS": ("E052", X_VERSIONS),
}


def _names(given: Given) -> Iterator[CheckMessage]:
    for name in given:
        if name not in NAMES:
            yield wrong("E002", unknown(name))


def _choices(given: Given) -> Iterator[CheckMessage]:
    for name, (number, allowed) in CHOICES.items():
        if value_of(given, name) not in allowed:
            yield wrong(number, f"{name} is one of {', '.join(allowed)}, not {value_of(given, name)!r}")


def _texts(given: Given) -> Iterator[CheckMessage]:
    for name, number in TEXTS.items():
        if not isinstance(value_of(given, name), str):
            yield wrong(number, f"{name} is text, not {type(value_of(given, name)).__name__}")
    prefix = value_of(given, "PREFIX")
    if isinstance(prefix, str) and (not prefix or set(prefix) & set("{} \t\n")):
        yield wrong(TEXTS["PREFIX"], f"PREFIX is text without spaces and braces, not {prefix!r}")


def _switches(given: Given) -> Iterator[CheckMessage]:
    for name, number in SWITCHES.items():
        if not isinstance(value_of(given, name), bool):
            yield wrong(number, f"{name} is True or False, not {value_of(given, name)!r}")


def _numbers(given: Given) -> Iterator[CheckMessage]:
    for name, (number, least, most, counts) in NUMBERS.items():
        value = value_of(given, name)
        if not is_number(value, counts) or not least <= value <= most:
            kind = "whole number" if counts else "number of seconds"
            yield wrong(number, f"{name} is a {kind} from {least} to {most}, not {value!r}")


VALUE_CHECKS: Final = (_names, _choices, _texts, _switches, _numbers)
