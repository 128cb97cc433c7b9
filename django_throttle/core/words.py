"""What a rule means, in words: one sentence that an operator can check against what was meant."""

from __future__ import annotations

from typing import Final

from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule

WHO: Final[dict[str, str]] = {
    "user": "each user",
    "ip": "each address",
    "user_or_ip": "each user or address",
    "session": "each session",
    "everyone": "everyone together",
}
# What happens, as a noun: one of it, many of it, and how it is called in a list of different kinds.
NOUNS: Final[dict[str, tuple[str, str, str]]] = {
    "request": ("request", "requests", "HTTP requests"),
    "connect": ("connection attempt", "connection attempts", "WebSocket connection attempts"),
    "connection": ("open connection", "open connections", "WebSocket connections"),
    "message": ("message", "messages", "WebSocket messages"),
    "send": ("message sent", "messages sent", "WebSocket messages sent"),
    "publish": ("publication", "publications", "publications"),
    "task": ("task", "tasks", "tasks"),
}
# Largest first; the first that divides a window names it.
UNITS: Final = (
    ("week", 604_800_000),
    ("day", 86_400_000),
    ("hour", 3_600_000),
    ("minute", 60_000),
    ("second", 1000),
    ("millisecond", 1),
)
# The everyday pair, in everyday words.
BOTH_DOORS: Final = frozenset(("request", "message"))


def describe(rule: Rule) -> str:
    """The whole rule in one sentence, such as "each user: 100 requests per minute, bursts up to 20"."""
    parts = (
        f"{who(rule.key)}: {_amount(rule)}",
        _shape(rule),
        _together(rule.events),
        _scopes(rule.scopes),
        f"each counting {rule.cost:,}" if rule.cost != 1 else "",
        "refused ones count too" if rule.count_denied else "",
        "recorded but never refused" if rule.action == "shadow" else "",
        _without_store(rule.on_store_failure),
        "" if rule.enabled else "switched off",
    )
    return ", ".join(part for part in parts if part)


def who(key: str) -> str:
    """Who has a budget of their own under this key."""
    return WHO.get(key) or f"each value of {key}"


def events(names: tuple[str, ...]) -> str:
    """What is counted: "HTTP requests and WebSocket messages"."""
    return _listed([NOUNS[name][2] for name in NOUNS if name in names])


def scopes(names: tuple[str, ...]) -> str:
    """Where the rule applies: "everywhere", or the scopes' names."""
    return "everywhere" if "*" in names else _listed(list(dict.fromkeys(names)))


def window(rate: Rate) -> str:
    """The rate's window: "minute", "10 minutes", "1,500 milliseconds"."""
    milliseconds = rate.window_us // 1000
    unit, size = next((unit, size) for unit, size in UNITS if milliseconds % size == 0)
    return unit if milliseconds == size else f"{milliseconds // size:,} {unit}s"


def _amount(rule: Rule) -> str:
    limit = rule.limit or 0
    noun = f"{limit:,} {_noun(rule.events, limit)}"
    return f"{noun} at once" if rule.rate is None else f"{noun} per {window(rule.rate)}"


def _noun(names: tuple[str, ...], count: int) -> str:
    kinds = set(names)
    if kinds == BOTH_DOORS:
        kinds = {"request"}
    if len(kinds) > 1:
        return "call" if count == 1 else "calls"
    return NOUNS[kinds.pop()][count != 1]


def _shape(rule: Rule) -> str:
    """How strictly the amount is meant, in the algorithm's terms."""
    if rule.rate is None:
        return ""
    if rule.algorithm == "fixed_window":
        return f"counted afresh every {window(rule.rate)}"
    if rule.algorithm == "sliding_window":
        steps = f"moving on in {rule.resolution} steps" if rule.resolution != 1 else ""
        hard = f"never more in any {window(rule.rate)}" if rule.strict else ""
        return ", ".join(part for part in (steps, hard) if part)
    burst = rule.burst or rule.rate.limit
    return "evenly spaced" if burst == 1 else f"bursts up to {burst:,}"


def _together(names: tuple[str, ...]) -> str:
    if set(names) == BOTH_DOORS:
        return "HTTP and WebSocket together"
    return f"{events(names)} together" if len(set(names)) > 1 else ""


def _scopes(names: tuple[str, ...]) -> str:
    if "*" in names:
        return ""
    several = len(set(names)) > 1 or any(sign in names[0] for sign in "*?[")
    return f"on {scopes(names)}" + (" together" if several else "")


def _without_store(policy: str) -> str:
    return {"allow": "let through while the store is away", "deny": "refused while the store is away"}.get(policy, "")


def _listed(words: list[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
