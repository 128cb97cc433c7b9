"""What a rule means, in words: one sentence that an operator can check against what was meant."""

from __future__ import annotations

from typing import Final

from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule

WHO: Final[dict[str, str]] = {
    "user": "each user",
    "ip": "each address",
    "user_or_ip": "each user or address",
    "api_key": "each API key, user or address",
    "session": "each session",
    "tenant": "each tenant",
    "connection": "each WebSocket",
    "everyone": "everyone together",
}
_PARTS: Final = {key: words.removeprefix("each ") for key, words in WHO.items()}
AUDIENCE: Final[dict[str, str]] = {
    "anonymous": "visitors who are not logged in",
    "authenticated": "logged-in users",
    "staff": "staff",
}
# What happens, as a noun: one of it, many of it, and how it is called in a list of different kinds.
NOUNS: Final[dict[str, tuple[str, str, str]]] = {
    "request": ("request", "requests", "HTTP requests"),
    "inflight": ("request in flight", "requests in flight", "HTTP requests in flight"),
    "connect": ("connection attempt", "connection attempts", "WebSocket connection attempts"),
    "connection": ("open WebSocket", "open WebSockets", "open WebSockets"),
    "message": ("message", "messages", "WebSocket messages"),
    "send": ("message sent", "messages sent", "WebSocket messages sent"),
    "publish": ("publication", "publications", "publications"),
    "task": ("task", "tasks", "tasks"),
}
_MAKES_ROOM: Final = {
    "evict_oldest": "a new WebSocket closes the oldest",
    "evict_idle": "a new WebSocket closes the one silent for longest",
}
_JUDGED: Final = {"fast": "judged by the last seconds", "average": "judged by the last 24 seconds"}
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
        *_shape(rule),
        _together(rule.events) if rule.unit == "calls" else "",
        _scopes(rule.scopes),
        f"only {_listed(_methods(rule.methods))}" if rule.methods else "",
        f"only for {audience(rule.audience)}" if rule.audience else "",
        _cost(rule.cost),
        f"counting only answers of status {_listed(list(map(str, rule.count_on)))}" if rule.count_on else "",
        "refused ones count too" if rule.count_denied else "",
        "charged every few seconds" if rule.batched else "",
        f"tolerated up to {rule.enforce_at:,g} times as much" if rule.enforce_at != 1 else "",
        f"warned of at {shares(rule.warn_at)}" if rule.warn_at else "",
        _instead_of_refusal(rule),
        _MAKES_ROOM.get(rule.at_limit, ""),
        _without_store(rule.on_store_failure),
        "" if rule.enabled else "switched off",
    )
    return ", ".join(part for part in parts if part)


def who(key: str) -> str:
    """Who has a budget of their own under this key."""
    if "+" in key:
        return f"each combination of {_listed([_PARTS.get(part) or f'value of {part}' for part in key.split('+')])}"
    return WHO.get(key) or f"each value of {key}"


def events(names: tuple[str, ...]) -> str:
    """What is counted: "HTTP requests and WebSocket messages"."""
    return _listed([NOUNS[name][2] for name in NOUNS if name in names])


def scopes(names: tuple[str, ...]) -> str:
    """Where the rule applies: "everywhere", or the scopes' names."""
    return "everywhere" if "*" in names else _listed(list(dict.fromkeys(names)))


def audience(entries: tuple[str, ...]) -> str:
    """Whom a rule is about: "staff and the group editors"."""
    return _listed([AUDIENCE.get(entry) or "the {} {}".format(*entry.split(":", 1)) for entry in entries])


def shares(found: tuple[float, ...]) -> str:
    """Shares of a limit: "80 % and 100 %"."""
    return _listed([f"{share * 100:,g} %" for share in found])


def window(rate: Rate) -> str:
    """The rate's window: "minute", "10 minutes", "month"."""
    if rate.monthly:
        return "month"
    milliseconds = rate.window_us // 1000
    unit, size = next((unit, size) for unit, size in UNITS if milliseconds % size == 0)
    return unit if milliseconds == size else f"{milliseconds // size:,} {unit}s"


def _amount(rule: Rule) -> str:
    rates = rule.rates or ((rule.rate,) if rule.rate is not None else ())
    most = rates[0].limit if rates else rule.limit or 0
    noun = f"{most:,} " + (f"bytes of {events(rule.events)}" if rule.unit == "bytes" else _noun(rule.events, most))
    if not rates:
        return f"{noun} at once"
    return _listed([f"{noun} per {window(rates[0])}", *(f"{rate.limit:,} per {window(rate)}" for rate in rates[1:])])


def _noun(names: tuple[str, ...], count: int) -> str:
    kinds = set(names)
    if kinds == BOTH_DOORS:
        kinds = {"request"}
    if len(kinds) > 1:
        return "call" if count == 1 else "calls"
    return NOUNS[kinds.pop()][count != 1]


def _shape(rule: Rule) -> tuple[str, ...]:
    """How strictly the amount is meant, in the algorithm's terms."""
    every = _listed([window(part.rate) for part in rule.parts if part.rate is not None])
    if rule.algorithm == "fixed_window":
        return (f"counted afresh every {every}" + (f" in {rule.timezone}" if rule.timezone else ""),)
    if rule.algorithm == "sliding_log":
        return (f"counted exactly in any {every}",)
    if rule.algorithm == "sliding_window":
        steps = f"moving on in {rule.resolution} steps" if rule.resolution != 1 else ""
        return steps, f"never more in any {every}" if rule.strict else ""
    if rule.is_damper:
        return "held to that by refusing a share of what is attempted", _JUDGED[rule.estimator]
    if rule.algorithm == "concurrency" or rule.action == "delay":
        return ()
    refilled = f"refilled all at once every {every}" if rule.refill == "interval" else ""
    return _bursts(rule), refilled


def _bursts(rule: Rule) -> str:
    most = [rule.burst or part.limit or 0 for part in rule.parts]
    if max(most) == 1:
        return "evenly spaced"
    return f"bursts up to {_listed([f'{burst:,}' for burst in dict.fromkeys(most)])}"


def _instead_of_refusal(rule: Rule) -> str:
    if rule.action == "shadow":
        return "recorded but never refused"
    if rule.action != "delay":
        return ""
    most = max(rule.burst or part.limit or 0 for part in rule.parts)
    queue = f"evenly spaced, up to {most:,} waiting their turn"
    if rule.max_delay is None:
        return queue
    return f"{queue} for at most {rule.max_delay:,g} second" + ("s" if rule.max_delay != 1 else "")


def _methods(names: tuple[str, ...]) -> list[str]:
    """As they apply: GET is answered for HEAD too."""
    return [*names, "HEAD"] if "GET" in names and "HEAD" not in names else [*names]


def _cost(cost: int | str) -> str:
    if isinstance(cost, str):
        return f"each counting as much as {cost} says"
    return f"each counting {cost:,}" if cost != 1 else ""


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
