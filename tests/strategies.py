"""What Hypothesis draws: rules of every algorithm and option, idents of any text, histories."""

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from django_throttle.core import Rate, Rule
from django_throttle.core.key import KEY_KINDS
from django_throttle.core.options import BUCKETS, EVENTS, MAX_RESOLUTION, METHODS, table
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidRule

ACTIONS, FAILURE_POLICIES, REFILLS, UNITS = (
    tuple(table(Rule)[name].choices) for name in ("action", "on_store_failure", "refill", "unit")
)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
SCOPES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters=","), min_size=1, max_size=20).filter(
    lambda text: text[0] not in "-!"  # an exclusion, or what looks like one
)
IDENTS = st.text(min_size=1, max_size=40)
KEYS = tuple(KEY_KINDS)
RATE_ALGORITHMS = ("fixed_window", "sliding_log", "sliding_window", "gcra", "token_bucket", "leaky_bucket")
LONGEST_LOG = 50  # longer ones only take longer
CALLS = tuple(event for event in EVENTS if event != "connection")
MILLISECONDS = st.sampled_from([1, 3, 999, 1000, 7000, 60_000, 86_400_000]) | st.integers(1, 366 * 86_400_000)
LIMITS = st.integers(1, 20) | st.integers(1, MAX_LIMIT)
FRAMES = st.sampled_from([("message",), ("send",), ("message", "send")])
METHOD_LISTS = st.lists(st.sampled_from(METHODS), max_size=3)
STATUSES = st.lists(st.integers(100, 599), max_size=3)
AUDIENCE_LISTS = st.lists(
    st.sampled_from(["anonymous", "authenticated", "staff", "group:night shift", "tenant:a:b"]), max_size=3
)
# Reached with any limit, or never.
SHARES = st.lists(st.sampled_from([0.01, 0.07, 0.5, 0.8, 1]) | st.floats(0.001, 1), max_size=3)


@st.composite
def rates(draw: st.DrawFn, limits: st.SearchStrategy[int] = LIMITS) -> Rate:
    return Rate(draw(limits), draw(MILLISECONDS) / 1000)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    options: dict[str, Any] = {
        "scopes": tuple(draw(st.lists(SCOPES, min_size=1, max_size=3))), "key": draw(st.sampled_from(KEYS)),
        "action": draw(st.sampled_from(["reject", "shadow"])),
        "on_store_failure": draw(st.sampled_from(FAILURE_POLICIES)), "enabled": draw(st.booleans()),
        "audience": draw(AUDIENCE_LISTS),
    }  # fmt: skip
    assume(options["key"] != "user" or set(options["audience"]) != {"anonymous"})
    name = draw(NAMES)
    if options["key"] == "connection":
        options |= {"on_store_failure": "local", "events": draw(FRAMES), "unit": draw(st.sampled_from(UNITS))}
        return draw(rate_rules(name, rates(), options))
    if draw(st.booleans()):
        options["events"] = tuple(draw(st.lists(st.sampled_from(CALLS), min_size=1, max_size=3)))
        options["warn_at"] = draw(SHARES)
        if {*options["events"]} <= {"request", "message", "send"}:
            options["unit"] = draw(st.sampled_from(UNITS))
        if options["events"] == ("request",):
            options |= {"methods": draw(METHOD_LISTS), "count_on": draw(STATUSES)}
        return draw(rate_rules(name, rates(), options))
    return Rule(name, limit=draw(LIMITS), algorithm="concurrency", **options)


@st.composite
def rate_rules(
    draw: st.DrawFn,
    name: str,
    rate: st.SearchStrategy[Rate],
    options: dict[str, Any] | None = None,
    bursts: st.SearchStrategy[int] = LIMITS,
) -> Rule:
    """A rule of a rate algorithm, with the options that the algorithm knows."""
    chosen: dict[str, Any] = {
        "algorithm": draw(st.sampled_from(RATE_ALGORITHMS)),
        "rate": draw(rate),
        **(options or {}),
    }
    if chosen["algorithm"] == "sliding_log":
        chosen["rate"] = Rate((chosen["rate"].limit - 1) % LONGEST_LOG + 1, chosen["rate"].window)
    most = chosen["rate"].limit
    if chosen["algorithm"] == "sliding_window":
        chosen["resolution"] = draw(st.integers(1, 4) | st.integers(1, MAX_RESOLUTION))
        chosen["strict"] = draw(st.booleans())
    elif chosen["algorithm"] in BUCKETS and draw(st.booleans()):
        most = chosen["burst"] = draw(bursts)
    if chosen["algorithm"] == "token_bucket":
        chosen["refill"] = draw(st.sampled_from(REFILLS))
    if chosen["algorithm"] == "leaky_bucket" and draw(st.booleans()):
        chosen["action"] = "delay"
        chosen["max_delay"] = draw(st.none() | st.integers(0, 100) | st.floats(0, 10))
    if chosen.get("action") != "delay" and most <= MAX_LIMIT // 10 and draw(st.booleans()):
        chosen["enforce_at"] = draw(st.sampled_from([1.1, 1.5, 2.3, 2.5, 10]))
    chosen["cost"] = draw(st.just(1) | st.integers(1, min(most, 5)))
    chosen["count_denied"] = draw(st.booleans())
    is_steady = chosen.get("refill") != "interval" and chosen.get("action") != "delay"
    chosen["prepaid"] = is_steady and not chosen["count_denied"] and draw(st.booleans())
    try:
        return Rule(name, **chosen)
    except InvalidRule:  # a burst that takes longer than a store can count
        assume(False)
        raise
