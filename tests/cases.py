"""One table of what must happen: for each case some rules, and a history with what each call is told.

It runs on every store and both drivers, on the counters of one socket, and through sockets
(``tests/stores/test_contract.py``). Times are seconds after a moment at which all windows begin. A
sentence of the specification is one case; figures are worked out by hand, never copied from a run.
"""

from dataclasses import dataclass, replace
from typing import Any

from django_throttle.core import Reason, Rule


class Anything:
    """Equal to nothing in particular: what a step does not compare."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Any = Anything()


@dataclass(frozen=True, slots=True)
class Step:
    """``times`` equal calls at one moment, and the answer to the last of them; ANY is not compared.

    The verbs acquire, peek, reset and lease (the handshake of a socket) make a call. Refund, settle and release
    correct the earlier call ``of`` the same ident, by its place among all of them; a peek then gives the answer.
    """

    at: float
    verb: str = "acquire"
    cost: int = 1
    times: int = 1
    ident: str = "user:1"
    admitted: int | None = None  # how many of the calls pass; None: not counted
    allowed: Any = ANY
    remaining: Any = ANY
    retry: Any = ANY
    reset: Any = ANY
    rule: Any = ANY
    reason: Any = ANY  # of the rule that the decision speaks of
    each: Any = ANY  # remaining of every rule, in order
    delay: Any = ANY  # how long an allowed call is to wait for its turn
    removed: Any = ANY  # what reset answers
    of: int = -1
    used: int = 0  # the measured units to which settle corrects
    closed: Any = ANY  # the calls whose sockets are to close for this one, by their places


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rules: tuple[Rule, ...]
    steps: tuple[Step, ...]


#: By the name of each case its rules, and then its steps.
Table = dict[str, tuple[Any, ...]]


def passes(at: float, remaining: Any = ANY, reset: Any = ANY, **more: Any) -> Step:
    return Step(at, allowed=True, retry=0.0, remaining=remaining, reset=reset, **more)


def refused(at: float, retry: Any = ANY, reset: Any = ANY, **more: Any) -> Step:
    return Step(at, allowed=False, retry=retry, reset=reset, **more)


def burst(at: float, times: int, admitted: int, **more: Any) -> Step:
    return Step(at, times=times, admitted=admitted, **more)


def peeks(step: Step) -> Step:
    return replace(step, verb="peek")


def forgets(at: float, removed: int) -> Step:
    return Step(at, verb="reset", removed=removed)


def leased(at: float, remaining: Any = ANY, **more: Any) -> Step:
    """The handshake of a socket that gets a slot, and closes nobody else's unless the step says so."""
    return replace(passes(at, remaining, verb="lease"), **{"closed": (), **more})


def full(at: float, **more: Any) -> Step:
    """The handshake of a socket that gets no slot, nor closes another's."""
    return refused(at, verb="lease", **{"closed": (), **more})


def released(at: float, remaining: Any = ANY, of: int = -1, **more: Any) -> Step:
    return Step(at, "release", remaining=remaining, of=of, **more)


def refunded(at: float, remaining: Any = ANY, of: int = -1, **more: Any) -> Step:
    return Step(at, "refund", remaining=remaining, of=of, **more)


def settled(at: float, used: int, remaining: Any = ANY, of: int = -1, **more: Any) -> Step:
    return Step(at, "settle", used=used, remaining=remaining, of=of, **more)


def window(rate: str, n: int = 1, **options: Any) -> Rule:
    return Rule("window", rate, algorithm="sliding_window", resolution=n, **options)


def fixed(rate: str, **options: Any) -> Rule:
    return Rule("fixed", rate, algorithm="fixed_window", **options)


def log(rate: str, **options: Any) -> Rule:
    return Rule("log", rate, algorithm="sliding_log", **options)


def bucket(rate: str, size: int | None = None, **options: Any) -> Rule:
    return Rule("bucket", rate, algorithm="gcra", burst=size, **options)


def queue(rate: str, **options: Any) -> Rule:
    return Rule("queue", rate, algorithm="leaky_bucket", action="delay", **options)


def slots(limit: int, name: str = "slots", **options: Any) -> Rule:
    return Rule(name, limit=limit, algorithm="concurrency", **options)


def said(rule: Rule) -> str:
    options = [f"{name} {value}" for name, value in rule.as_options().items() if name not in ("algorithm", "count_on")]
    return f"{rule.algorithm}, {', '.join(options)}"


# A hundred calls spread over the first quarter of a minute.
EARLY = tuple(passes(index * 0.15) for index in range(100))

FIXED_WINDOW: Table = {
    "fixed window: the limit in each window, full again at its end": (
        fixed("3/min"),
        passes(0, remaining=2, reset=60.0), passes(10, remaining=1, reset=50.0), passes(59, remaining=0, reset=1.0),
        refused(59.5, retry=0.5, reset=0.5, remaining=0, reason=Reason.EXCEEDED), passes(60, remaining=2, reset=60.0),
    ),
    "fixed window: twice the limit passes across an edge, and no more": (
        fixed("100/min"), burst(59.9, 150, 100), burst(60.1, 150, 100, retry=59.9),
    ),
    "fixed window: windows are counted from the epoch, whatever the first call's time": (
        fixed("5/10m"), passes(599, remaining=4, reset=1.0), passes(600, remaining=4, reset=600.0),
    ),
    "fixed window: when the clock goes back, what was counted counts now": (
        fixed("3/min"), burst(65, 3, 3), refused(10, retry=50.0), passes(60, remaining=2),
    ),
}  # fmt: skip

SLIDING_WINDOW: Table = {
    "design B: 100 early, at 1.25 min 25 in all, 24 after the first": (
        window("100/min"),
        *EARLY, passes(75, remaining=24, reset=105.0), burst(75, 30, 24, retry=0.6, remaining=0, reset=105.0),
    ),
    "design B: 100 early, at 1.75 min 75 in all, 74 after the first": (
        window("100/min"), *EARLY, passes(105, remaining=74, reset=75.0), burst(105, 80, 74, retry=0.6, remaining=0),
    ),
    "design B: 100 at 0.99 min, at 1.25 min 25 in all: the weakness of resolution 1": (
        window("100/min"), burst(59.4, 100, 100, remaining=0, reset=60.6), burst(75, 30, 25, retry=0.6),
    ),
    "design B: 100 early, resolution 2, at 1.25 min 50 in all": (
        window("100/min", 2), *EARLY, passes(75, remaining=49, reset=75.0), burst(75, 60, 49, retry=0.3),
    ),
    "design B: 100 at 0.99 min, resolution 2, at 1.25 min none": (
        window("100/min", 2),
        # The sub-window is counted whole until 90 s; then 99 of it may remain after 0.3 s.
        burst(59.4, 100, 100), burst(75, 5, 0, retry=15.3, remaining=0, reset=45.0),
    ),
    "design B: a minimum distance is a second rule, and what it refuses leaves the first alone": (
        Rule("budget", "100/min"), Rule("distance", "2/s"),
        passes(0.1, each=(99, 1), rule="distance"), passes(0.4, each=(98, 0), rule="distance"),
        refused(0.7, each=(98, 0), rule="distance", retry=0.8),  # half of 2 weighs 1 in the middle of the next
    ),
    "design B: with resolution 1 a caller may have to wait for two intervals": (
        window("1/min"),
        passes(0, remaining=0), refused(0, retry=120.0), refused(119.999999, retry=0.000001), passes(120),
    ),
    "design B: the more sub-intervals, the less: eleven of ten": (
        window("1/min", 10),
        passes(0, remaining=0), refused(0, retry=66.0), refused(65.999999, retry=0.000001), passes(66),
    ),
    "design B: the exact log keeps a minimum distance, too": (
        log("100/min"), Rule("distance", "1/500ms", algorithm="sliding_log"),
        passes(0.2, each=(99, 0)), refused(0.699999, each=(99, 0), rule="distance", retry=0.000001),
        passes(0.7, each=(98, 0)),
    ),
    "sliding window: resolution 4 weighs a quarter of a minute": (
        window("8/min", 4),
        burst(14, 8, 8, remaining=0, reset=61.0),
        refused(30, retry=31.875, remaining=0),  # from 60 s on it fades, 1/8 of 15 s each
        refused(61.874999, retry=0.000001), passes(61.875, remaining=0), passes(74, remaining=5, reset=61.0),
    ),
    "sliding window, strict: the oldest counts whole, so no window of a minute ever holds more": (
        window("100/min", strict=True),
        *EARLY, refused(75, retry=45.0, reset=45.0), burst(119.9, 1, 0, retry=0.1), burst(120, 101, 100),
    ),
    "sliding window, strict, resolution 4: frees in steps of a quarter": (
        window("4/min", 4, strict=True),
        burst(0, 2, 2, remaining=2), burst(20, 3, 2, retry=55.0, reset=70.0), refused(74.999999, retry=0.000001),
        burst(75, 3, 2, retry=15.0, remaining=0),
    ),
    "sliding window: forgotten once both windows have passed": (
        window("100/min"), burst(59.4, 100, 100), passes(119.999999, remaining=98), passes(180, remaining=99),
    ),
    "sliding window: when the clock goes back, what was counted counts now": (
        window("10/min"),
        burst(50, 4, 4), burst(65, 3, 3),
        # 3 in this window and 4 before it, of which ceil(4 x 50/60) count.
        Step(10, verb="peek", allowed=True, remaining=3), burst(10, 5, 3, retry=5.0), refused(10, retry=5.0),
    ),
}  # fmt: skip

BUCKETS: Table = {
    "gcra: a burst at rest, then one call per interval": (
        bucket("10/min", 5),
        passes(0, remaining=4, reset=6.0), burst(0, 4, 4, remaining=0, reset=30.0),
        refused(0, retry=6.0, reset=30.0, remaining=0), refused(5.999999, retry=0.000001),
        passes(6, remaining=0, reset=30.0), passes(21, remaining=1, reset=21.0), passes(600, remaining=4, reset=6.0),
    ),
    "gcra: without burst= the bucket holds the rate's limit": (
        bucket("60/min"),
        burst(0, 61, 60, retry=1.0, reset=60.0), burst(30, 31, 30, retry=1.0), passes(31, remaining=0),
    ),
    "token bucket is the same, seen from the other side": (
        Rule("bucket", "3/min", algorithm="token_bucket"),
        passes(0, remaining=2, reset=20.0), passes(10, remaining=1, reset=30.0),
        passes(30, remaining=1, reset=30.0),  # 10 s of debt were left
        passes(30, remaining=0, reset=50.0), refused(30, retry=10.0, reset=50.0), passes(80, remaining=2, reset=20.0),
    ),
    "gcra: an interval with no exact number of microseconds neither drifts nor wastes a call": (
        bucket("7/min", 7),
        burst(0, 8, 7, retry=8.571429, reset=60.0), refused(8.571428, retry=0.000001), passes(8.571429, remaining=0),
        refused(8.571429, retry=8.571429),  # two sevenths of a minute are 17142857.14… µs
        passes(17.142858, remaining=0), refused(17.142858, retry=8.571428), burst(60, 6, 5, remaining=0),
        passes(120, remaining=6),
    ),
    "gcra: one at a time": (
        bucket("1/min", 1), passes(0, remaining=0, reset=60.0), refused(30, retry=30.0), passes(60, remaining=0),
    ),
    "gcra: when the clock goes back an hour, nobody owes more than a full bucket, and refill goes on": (
        bucket("3/min"),
        burst(3600, 3, 3), refused(0, retry=20.0, reset=60.0), passes(20, remaining=0), refused(20, retry=20.0),
        passes(40, remaining=0),
    ),
    "gcra: a clock that jumps ahead gives one full bucket, not more": (
        bucket("3/min"), burst(0, 3, 3), burst(3600, 4, 3, retry=20.0),
    ),
}  # fmt: skip

SLIDING_LOG: Table = {
    "sliding log: exactly the limit in any window, each call comes free when it is one window old": (
        log("3/min"),
        passes(0, remaining=2, reset=60.0), passes(10, remaining=1, reset=60.0), passes(50, remaining=0, reset=60.0),
        refused(59.999999, retry=0.000001, reset=50.000001, remaining=0), passes(60, remaining=0, reset=60.0),
        refused(60, retry=10.0), passes(110, remaining=1, reset=60.0),
    ),
    # Design D: 2/min at 1:00:01, 1:00:30, 1:00:50 and 1:01:40, here 1, 30, 50 and 100 s.
    "design D: sliding log 2/min, denied attempts counted: a refused call stays in the log": (
        log("2/min", count_denied=True),
        passes(1, remaining=1), passes(30, remaining=0), refused(50, retry=ANY, remaining=0),
        passes(100, remaining=0),  # 1 and 30 are gone, 50 and 100 are two
        refused(100),
    ),
    "sliding log: a cost waits until as much has come free": (
        log("4/min"),
        passes(0, cost=2), passes(20, cost=2, remaining=0), refused(30, cost=3, retry=50.0), passes(80, cost=3),
    ),
    "sliding log: when the clock goes back, what was taken was taken now": (
        log("2/min"), burst(3600, 2, 2), refused(0, retry=60.0), refused(59), passes(60, remaining=1),
    ),
}  # fmt: skip

INTERVAL_BUCKET: Table = {
    "design D: token bucket 3/min with interval refill": (
        Rule("bucket", "3/min", algorithm="token_bucket", refill="interval"),
        passes(0, remaining=2), passes(10, remaining=1), passes(30, remaining=0), refused(55, retry=5.0, remaining=0),
        peeks(passes(60, remaining=3, reset=0.0)), burst(60, 4, 3, retry=60.0, reset=60.0),
    ),
    "interval refill: a larger bucket takes several intervals to fill": (
        Rule("bucket", "2/min", algorithm="token_bucket", refill="interval", burst=5),
        burst(0, 6, 5, retry=60.0, reset=180.0), burst(60, 3, 2, retry=60.0),
        refused(130, cost=5, retry=110.0, remaining=2), passes(240, cost=5, remaining=0),
    ),
}  # fmt: skip

LEAKY_BUCKET: Table = {
    "leaky bucket as a meter is a bucket that drains evenly": (
        Rule("leaky", "6/min", algorithm="leaky_bucket", burst=3),
        burst(0, 4, 3, retry=10.0, delay=0.0), passes(10, remaining=0, delay=0.0), refused(19, retry=1.0),
    ),
    "leaky bucket as a queue: each call waits for those before it, and a full queue refuses": (
        queue("6/min", burst=3),
        passes(0, remaining=2, delay=0.0), passes(0, remaining=1, delay=10.0), passes(0, remaining=0, delay=20.0),
        refused(0, retry=10.0, delay=0.0), passes(15, remaining=0, delay=15.0), passes(600, remaining=2, delay=0.0),
    ),
    "a queue is full, too, where its last place would wait for longer than max_delay": (
        queue("6/min", max_delay=10),
        passes(0, delay=0.0), passes(0, delay=10.0), refused(0, retry=10.0), refused(5, retry=5.0),
        passes(10, delay=10.0),
    ),
    "a queue whose interval is no whole number of microseconds: nobody waits for nobody, nor longer than max_delay": (
        queue("7/min", max_delay=0),
        passes(0, delay=0.0), refused(0, retry=8.571429), refused(8.571428, retry=0.000001),
        passes(8.571429, delay=0.0),
    ),
    "a queue tells beforehand what it would tell": (
        queue("6/min", burst=3),
        peeks(passes(0, delay=0.0)), passes(0, delay=0.0), peeks(passes(0, delay=10.0)), passes(0, delay=10.0),
        peeks(passes(5, delay=15.0)),
    ),
}  # fmt: skip

CONCURRENCY: Table = {
    "what is held at once: nobody knows when a slot comes free, so ask again in 5 s": (
        Rule("slots", limit=2, algorithm="concurrency"),
        peeks(passes(0, remaining=2, reset=0.0)), passes(0, remaining=1, reset=5.0), passes(0, remaining=0, reset=5.0),
        refused(0, retry=5.0, reset=5.0, remaining=0), passes(0, ident="user:2", remaining=1),
    ),
}  # fmt: skip

# START is the midnight in UTC at which Thursday, 16 November 2023 begins: 01:00 in Berlin.
DAY = 86_400.0
CALENDAR: Table = {
    "a day of a time zone ends at its midnight": (
        fixed("2/day", timezone="Europe/Berlin"),
        burst(0, 3, 2, retry=DAY - 3600, reset=DAY - 3600), refused(DAY - 3600 - 0.000001, retry=0.000001),
        passes(DAY - 3600, remaining=1, reset=DAY),
    ),
    "a week begins on Monday": (
        fixed("1/w", timezone="UTC"),
        passes(0, reset=4 * DAY), refused(DAY, retry=3 * DAY), passes(4 * DAY, reset=7 * DAY),
    ),
    "a month is as long as it is: fifteen days of November are left, then December": (
        fixed("10/month"),
        burst(0, 11, 10, retry=15 * DAY, reset=15 * DAY), passes(15 * DAY, remaining=9, reset=31 * DAY),
        passes(46 * DAY, remaining=9, reset=31 * DAY),  # January
    ),
    "the day on which clocks go forward has 23 hours": (
        fixed("1/day", timezone="Europe/Berlin"),
        # 31 March 2024, which begins 136 days later, at 23:00 UTC of the 30th.
        passes(136 * DAY - 3600, reset=23 * 3600.0), refused(136 * DAY), passes(136 * DAY + 22 * 3600.0, reset=DAY),
    ),
}  # fmt: skip

SEVERAL_RATES: Table = {
    "a rule of several rates keeps them all, and what one refuses is charged to none": (
        Rule("both", rates=("100/min", "2/s")),
        passes(0.1, each=(99, 1), rule="both"), passes(0.4, each=(98, 0)), refused(0.7, each=(98, 0), retry=0.8),
    ),
    "reset forgets every rate of a rule": (
        Rule("both", rates=("2/min", "3/h"), algorithm="fixed_window"),
        burst(0, 3, 2), forgets(0, 2), passes(0, each=(1, 2)),
    ),
}  # fmt: skip

COSTS: Table = {
    "a cost is taken whole or not at all": (
        fixed("10/min"),
        passes(0, cost=7, remaining=3), refused(1, cost=4, remaining=3, retry=59.0), passes(1, cost=3, remaining=0),
    ),
    "gcra waits for the whole cost": (
        bucket("10/min", 5),
        passes(0, cost=5, remaining=0, reset=30.0), refused(15, cost=3, retry=3.0, remaining=2),
        passes(15, cost=2, remaining=0, reset=27.0),
    ),
    "a sliding window waits until the whole cost fits": (
        window("10/min"),
        # 10 x rest/60 must come down to 6, which is at 60 + 24 s.
        passes(0, cost=10, remaining=0), refused(0, cost=4, retry=84.0), passes(84, cost=4, remaining=0),
    ),
    "a rule's own cost multiplies the call's": (
        fixed("10/min", cost=3),
        passes(0, remaining=7), passes(0, cost=2, remaining=1), refused(0, retry=60.0, remaining=1),
    ),
    **{
        f"{said(rule)}: a cost above the limit is refused for ever, and takes nothing": (
            rule,
            refused(0, cost=11, retry=None, remaining=10, reason=Reason.TOO_COSTLY), passes(0, cost=10, remaining=0),
            refused(0, cost=11, retry=None, remaining=0, reason=Reason.TOO_COSTLY),
        )
        for rule in (fixed("10/min"), window("10/min"), window("10/min", 4), bucket("10/min"))
    },
    **{
        f"{rule.algorithm}: cost 0 asks, is always within an unbroken limit, and charges nothing": (
            rule,
            passes(0, cost=0, remaining=10, reset=0.0), passes(0, cost=9, remaining=1), passes(0, cost=0, remaining=1),
            passes(0, remaining=0), passes(0, cost=0, remaining=0), refused(0),
        )
        for rule in (fixed("10/min"), window("10/min"), bucket("10/min"))
    },
}  # fmt: skip

PEEK_AND_RESET: Table = {
    **{
        f"{rule.algorithm}: peek answers what acquire would, and charges nothing": (
            rule,
            peeks(passes(0, remaining=2, reset=0.0)), peeks(refused(0, cost=3, retry=None)),
            peeks(passes(0, remaining=2, reset=0.0)), passes(0), passes(0, remaining=0),
            peeks(refused(0, retry=retry, remaining=0)), peeks(passes(retry, remaining=remaining)), passes(retry),
        )
        for rule, retry, remaining in (
            (fixed("2/min"), 60.0, 2), (window("2/min"), 90.0, 1), (bucket("2/min"), 30.0, 1),
        )
    },
    **{
        f"{rule.algorithm}: reset makes the rate full again, once": (
            rule, burst(0, 3, 2), forgets(0, 1), forgets(0, 0), passes(0, remaining=1),
        )
        for rule in (
            fixed("2/min"), window("2/min"), log("2/min"), bucket("2/min"),
            Rule("bucket", "2/min", algorithm="token_bucket", refill="interval"),
            Rule("leaky", "2/min", algorithm="leaky_bucket"),
        )
    },
    "reset forgets one ident under every rule, and nobody else": (
        fixed("2/min"), bucket("2/min"),
        burst(0, 2, 2), burst(0, 2, 2, ident="user:2"), forgets(0, 2), passes(0), refused(0, ident="user:2"),
    ),
    "idents do not share a budget, whatever characters they hold": (
        fixed("1/min"),
        *(
            step(0, ident=ident)
            for ident in (
                "user:1", "user:11", "user:1 ", "USER:1", "{user:1}", "user:1\x00", "\ud800", "пользователь",
                "a" * 1024,
            )
            for step in (passes, refused)
        ),
    ),
}  # fmt: skip

COUNT_DENIED: Table = {
    "fixed window, count_denied: refused calls count, and end with the window all the same": (
        fixed("2/min", count_denied=True), burst(0, 5, 2, remaining=0, retry=60.0), passes(60, remaining=1),
    ),
    "sliding window, count_denied: a refused call lengthens the wait": (
        window("2/min", count_denied=True),
        # Three counted: 1 + 3 x rest/60 must come down to 2, which is 40 s into the next window.
        burst(0, 2, 2), refused(1, retry=99.0), refused(99, retry=21.0), passes(120, remaining=0),
    ),
    "gcra, count_denied: a caller who does not stop does not get in": (
        bucket("2/min", count_denied=True),
        burst(0, 2, 2), refused(0, retry=30.0), refused(15, retry=30.0), refused(29, retry=30.0),
        refused(58, retry=30.0), passes(88, remaining=0),
    ),
    "count_denied: peek and cost 0 count nothing": (
        fixed("2/min", count_denied=True), Rule("after", "2/min", count_denied=True),
        burst(0, 2, 2), peeks(refused(0)), Step(0, cost=0, each=(0, 0)), refused(0, rule="after", retry=100.0),
    ),
    "count_denied: such a rule is charged although another one refuses; the others are not": (
        fixed("10/min", count_denied=True), Rule("plain", "10/min"), Rule("strict", "1/min", algorithm="gcra"),
        passes(0, each=(9, 9, 0)), refused(0, each=(8, 9, 0), rule="strict", retry=60.0), refused(0, each=(7, 9, 0)),
    ),
    **{
        f"count_denied: the wait is for {said(rule)}, which another rule's refusal uses up": (
            rule, Rule("minute", "1/min", algorithm="gcra"),
            passes(0, each=(2, 0)), refused(0, each=(1, 0), rule="minute", retry=60.0),
            refused(0, each=(0, 0), rule=rule.name, retry=wait), passes(wait),
        )
        for rule, wait in (
            (fixed("3/h", count_denied=True), 3600.0), (log("3/h", count_denied=True), 3600.0),
            (bucket("3/h", count_denied=True), 1200.0), (window("3/h", count_denied=True), 4800.0),
            (window("3/h", 2, count_denied=True), 4200.0),
            (Rule("interval", "3/h", algorithm="token_bucket", refill="interval", count_denied=True), 3600.0),
        )
    },
    "count_denied: of a rule that only watches nobody waits": (
        fixed("2/h", count_denied=True, action="shadow"), Rule("minute", "1/min", algorithm="gcra"),
        passes(0, each=(1, 0)), refused(0, each=(0, 0), rule="minute", retry=60.0),
    ),
}  # fmt: skip

MIXED: Table = {
    "all or nothing: what one rule refuses is charged to none": (
        fixed("10/min"), window("5/min", 2), bucket("10/min", 3), Rule("last", "2/min", algorithm="gcra"),
        passes(0, each=(9, 4, 2, 1), rule="last"), passes(0, each=(8, 3, 1, 0), rule="last"),
        burst(0, 20, 0, each=(8, 3, 1, 0), rule="last", retry=30.0), passes(30, each=(7, 2, 2, 0)),
    ),
    "a decision speaks of the rule that refuses for longest": (
        Rule("short", "1/10s", algorithm="fixed_window"), Rule("long", "1/h", algorithm="fixed_window"),
        passes(0, each=(0, 0)), refused(5, rule="long", retry=3595.0), refused(15, rule="long", each=(1, 0)),
    ),
    "a cost above one rule's limit outlasts every other refusal": (
        fixed("10/min"), Rule("small", "2/h", algorithm="gcra"),
        passes(0, cost=2), refused(0, cost=9, rule="small", retry=None, reason=Reason.TOO_COSTLY),
    ),
    "no rules: nothing to refuse": (
        passes(0, remaining=None, rule=None), forgets(0, 0), peeks(passes(0, remaining=None)),
    ),
    "a disabled rule does not apply": (fixed("1/min", enabled=False), burst(0, 3, 3, rule=None)),
}  # fmt: skip

SHADOW: Table = {
    "a shadow decides and records, and never refuses": (
        fixed("1/min", action="shadow"),
        passes(0, each=(0,), rule=None), burst(1, 3, 3, each=(0,), rule=None, remaining=None),
        burst(60, 1, 1, each=(0,)),
    ),
    "a shadow beside a real rule: the real one alone is spoken of and refuses": (
        fixed("1/min", action="shadow"), Rule("real", "3/min"),
        passes(0, each=(0, 2), rule="real"), burst(0, 5, 2, each=(0, 0), rule="real", remaining=0),
    ),
    "what a real rule refuses is not charged to a shadow": (
        fixed("10/min", action="shadow"), Rule("real", "1/min"), passes(0, each=(9, 0)), burst(0, 3, 0, each=(9, 0)),
    ),
}  # fmt: skip

ENFORCED_LATER: Table = {
    "enforced at 2.5 times the limit: nothing is left beyond it, and calls pass all the same": (
        fixed("4/min", enforce_at=2.5),
        passes(0, remaining=3, reset=60.0), passes(0, cost=3, remaining=0), passes(1, remaining=0, reset=59.0),
        burst(1, 20, 5, remaining=0), refused(30, retry=30.0, reset=30.0, remaining=0, reason=Reason.EXCEEDED),
        passes(60, remaining=3),
    ),
    "enforced later: what costs more than the limit passes, what costs more than is tolerated never does": (
        fixed("4/min", enforce_at=2.5),
        refused(0, cost=11, retry=None, remaining=4, reason=Reason.TOO_COSTLY), passes(0, cost=10, remaining=0),
        refused(0, retry=60.0),
    ),
    "enforced later, rounded down, in decimals as they are written: 2.3 times 100 is 230": (
        fixed("100/min", enforce_at=2.3), burst(0, 300, 230),
    ),
    "enforced later in a sliding window: what is left is of the limit, the wait is until less than 1.5 times it": (
        window("100/min", enforce_at=1.5),
        burst(0, 200, 150, retry=60.4, remaining=0),
        peeks(passes(80, remaining=0)),  # 150 x 40/60 = 100
        passes(90, remaining=24),  # 150 x 30/60 = 75, and this one
    ),
    "enforced later in a log": (
        log("2/min", enforce_at=2),
        passes(0, remaining=1), passes(1, remaining=0), passes(2, remaining=0), passes(3, remaining=0),
        refused(4, retry=56.0, remaining=0), peeks(passes(62.5, remaining=1)),
    ),
    "enforced later in a bucket: it may be overdrawn, and is refilled no faster": (
        bucket("60/min", 10, enforce_at=2),
        burst(0, 30, 20, retry=1.0, reset=20.0, remaining=0), peeks(passes(10, remaining=0)),
        peeks(passes(15, remaining=5)), passes(20, remaining=9),
    ),
    "enforced later in a bucket that is refilled at once: what was overdrawn is made up for first": (
        Rule("bucket", "3/min", algorithm="token_bucket", refill="interval", enforce_at=2),
        burst(0, 10, 6, retry=60.0, remaining=0), passes(60, remaining=0), passes(120, remaining=1),
    ),
    "enforced later: only the rule that says so": (
        fixed("2/min", enforce_at=2), window("3/h"),
        passes(0, each=(1, 2)), passes(0, each=(0, 1)), passes(0, each=(0, 0)), refused(0, rule="window"),
    ),
}  # fmt: skip

# An answer that does not count gives back what it was charged; each of these rules has 5 at the start.
NOT_COUNTED: dict[str, Any] = {"count_on": (401, 403)}
REFUNDABLE = (
    fixed("5/min", **NOT_COUNTED), fixed("5/h", timezone="Europe/Berlin", **NOT_COUNTED),
    window("5/min", **NOT_COUNTED), window("5/min", 4, **NOT_COUNTED),
    window("5/min", 4, strict=True, **NOT_COUNTED), log("5/min", **NOT_COUNTED), bucket("5/min", **NOT_COUNTED),
    bucket("7/min", 5, **NOT_COUNTED), Rule("bucket", "5/min", algorithm="token_bucket", **NOT_COUNTED),
    Rule("bucket", "5/min", algorithm="token_bucket", refill="interval", **NOT_COUNTED),
    Rule("bucket", "2/min", algorithm="token_bucket", refill="interval", burst=5, **NOT_COUNTED),
    Rule("leaky", "5/min", algorithm="leaky_bucket", **NOT_COUNTED),
)  # fmt: skip

REFUNDS: Table = {
    **{
        f"{said(rule)}: given back at once, a charge is as if it had not been": (
            rule,
            passes(0, remaining=4), passes(0, cost=2, ident="user:2", remaining=3), passes(0, cost=3, remaining=1),
            refunded(0, remaining=4), peeks(passes(0, ident="user:2", remaining=3)), passes(0, cost=4, remaining=0),
            refused(0),
        )
        for rule in REFUNDABLE
    },
    **{
        f"{said(rule)}: however often it is given back, no budget is more than full": (
            rule,
            passes(0, cost=5, remaining=0), refused(0), *(refunded(0, remaining=5, of=0) for _ in range(3)),
            *(peeks(passes(times * rule.rate.window, remaining=5)) for times in (1, 2, 3)),
            burst(3 * rule.rate.window, 6, 5),
        )
        for rule in REFUNDABLE
    },
    **{
        f"{said(rule)}: once its window is over, nothing goes back": (
            rule,
            passes(0, cost=2), passes(3 * rule.rate.window + 0.5, cost=3, remaining=2),
            refunded(3 * rule.rate.window + 0.5, remaining=2, of=0),
        )
        for rule in REFUNDABLE
    },
    "gcra: what has flowed out since goes back no more": (
        bucket("6/min", **NOT_COUNTED),
        passes(0, cost=4, remaining=2),
        passes(30, remaining=4),  # 3 have flowed out, this one is in
        refunded(30, remaining=5, of=0), burst(30, 6, 5),
    ),
    "fixed window: a charge of the window before does not make this one larger": (
        fixed("3/min", **NOT_COUNTED), passes(59, cost=2), passes(60, remaining=2), refunded(60, remaining=2, of=0),
    ),
    "a refused call has nothing to give back, though it was counted": (
        fixed("2/min", count_denied=True, **NOT_COUNTED), burst(0, 3, 2), refunded(0, remaining=0), refused(0),
    ),
    "only rules that count some answers give back": (
        fixed("5/min", **NOT_COUNTED), Rule("plain", "5/min"), passes(0, each=(4, 4)), refunded(0, each=(5, 4)),
    ),
    "every rate of a rule gives back": (
        Rule("both", rates=("5/min", "9/h"), **NOT_COUNTED), passes(0, cost=2, each=(3, 7)), refunded(0, each=(5, 9)),
    ),
    "a rule's own cost is given back whole": (
        fixed("10/min", cost=3, **NOT_COUNTED), passes(0, cost=2, remaining=4), refunded(0, remaining=10),
    ),
    "a shadow gives back what it recorded; over its limit it records nothing": (
        fixed("1/min", action="shadow", **NOT_COUNTED),
        passes(0, each=(0,)), passes(0, each=(0,)), refunded(0, each=(0,), of=1), refunded(0, each=(1,), of=0),
    ),
    "a queue: the last turn goes to whoever comes next, one in the middle stays": (
        queue("6/min", burst=9),
        passes(0, delay=0.0), passes(0, delay=10.0), passes(0, delay=20.0), refunded(0, remaining=7),
        passes(0, delay=20.0), refunded(0, remaining=6, of=0), refunded(0, remaining=6, of=1), passes(0, delay=30.0),
        refunded(0, remaining=6, of=4), refunded(0, remaining=7, of=3), passes(5, delay=15.0),
    ),
    "a queue whose interval is no whole number of microseconds gives its last turn back": (
        queue("7/min", burst=9),
        passes(0, delay=0.0), passes(0, delay=8.571429), passes(0, delay=17.142857), refunded(0, remaining=7),
        passes(0, delay=17.142857),
    ),
}  # fmt: skip

# What a call costs is known when it is over: 10 are reserved.
ROWS: dict[str, Any] = {"unit": "rows", "reserve": 10}
MEASURED_WINDOWS = (
    fixed("100/min", **ROWS), fixed("100/h", timezone="Europe/Berlin", **ROWS), window("100/min", **ROWS),
    window("100/min", 4, strict=True, **ROWS), log("100/min", **ROWS),
)  # fmt: skip
MEASURED_BUCKETS = (
    bucket("100/min", **ROWS),
    Rule("bucket", "100/min", algorithm="token_bucket", **ROWS),
    Rule("leaky", "100/min", algorithm="leaky_bucket", **ROWS),
)
SETTLEMENTS: Table = {
    **{
        f"{said(rule)}: in the end a call is charged what it used, once": (
            rule,
            passes(0, cost=10, remaining=90), settled(0, used=3, remaining=97), passes(0, cost=10, remaining=87),
            settled(0, used=10, remaining=87), passes(0, cost=10, ident="user:2", remaining=90),
            settled(0, used=0, ident="user:2", remaining=100), passes(0, cost=10, remaining=77),
            settled(0, used=60, remaining=27), settled(0, used=60, remaining=27),
            peeks(passes(0, ident="user:2", remaining=100)), passes(0, cost=10, remaining=17),
            settled(0, used=27, remaining=0), refused(0),
        )
        for rule in (*MEASURED_WINDOWS, *MEASURED_BUCKETS)
    },
    **{
        f"{said(rule)}: what went beyond the limit is refused for a while": (
            rule,
            passes(0, cost=10), settled(0, used=150, remaining=0), refused(0, retry=retry), refused(retry - 0.000001),
            passes(retry),
        )
        for rule, retry in (
            (MEASURED_WINDOWS[0], 60.0), (MEASURED_WINDOWS[1], 3600.0),
            (MEASURED_WINDOWS[2], 80.4),  # 150 x rest/60 must come down to 99, which is at 60 + 20.4 s
            (MEASURED_WINDOWS[3], 75.0), (MEASURED_WINDOWS[4], 60.0),
        )
    },
    **{
        f"{said(rule)}, {used} used: it owes what went beyond it, up to another bucket": (
            rule,
            passes(0, cost=10), settled(0, used=used, remaining=0), refused(0, retry=(debt + 1) * 0.6),
            refused((debt + 1) * 0.6 - 0.000001), passes((debt + 1) * 0.6, remaining=0),
            refused((debt + 1) * 0.6, retry=0.6),
        )
        for rule in MEASURED_BUCKETS
        for used, debt in ((101, 1), (150, 50), (200, 100), (201, 100), (5000, 100))
    },
    "token_bucket, rate 70/min, burst 100: whoever owes waits by whole microseconds, rounded up": (
        Rule("bucket", "70/min", algorithm="token_bucket", burst=100, **ROWS),
        passes(0, cost=10, remaining=90), settled(0, used=3, remaining=97), passes(0, cost=10, remaining=87),
        settled(0, used=127, remaining=0),  # owes 30 of 70 a minute
        refused(0, retry=26.571429), refused(26.571428), passes(26.571429, remaining=0),
    ),
    "nothing reserved: what was used is charged all the same": (
        fixed("100/min", unit="rows", reserve=0), passes(0, cost=0, remaining=100), settled(0, used=30, remaining=70),
    ),
    "a settlement leaves other rules of the call alone": (
        fixed("100/min", **ROWS), Rule("calls", "100/min", **NOT_COUNTED),
        passes(0, cost=10, each=(90, 90)), settled(0, used=3, each=(97, 90)), settled(0, used=300, each=(0, 90)),
    ),
}  # fmt: skip

LEASES: Table = {
    "a slot that is released is free again, once": (
        slots(2),
        leased(0, remaining=1, reset=5.0), leased(0, remaining=0), full(0, retry=5.0, reset=5.0, remaining=0),
        leased(0, ident="user:2", remaining=1), released(0, remaining=1, of=0), released(0, remaining=1, of=0),
        leased(0, remaining=0), released(0, remaining=1, of=1), released(0, remaining=2, of=3),
        peeks(passes(0, ident="user:2", remaining=1)),
    ),
    "a slot and a rate: each refuses without the other's charge, and only the slot is released": (
        slots(1), fixed("3/min"),
        leased(0, each=(0, 2)), full(0, each=(0, 2), rule="slots"), released(0, each=(1, 2), of=0),
        leased(0, each=(0, 1)), released(0, each=(1, 1)), leased(0, each=(0, 0)), released(0, each=(1, 0)),
        full(0, each=(1, 0), rule="fixed", retry=60.0), leased(60, each=(0, 2)),
    ),
    "cost 0 takes no slot, and time releases none": (
        slots(1), passes(0, cost=0, remaining=1), leased(0, remaining=0), passes(0, cost=0, remaining=0), full(50),
    ),
    "reset leaves open what is open": (
        slots(2), fixed("2/min"),
        leased(0, each=(1, 1)), forgets(0, 1), Step(0, "peek", each=(1, 2)), released(0, each=(2, 2)),
    ),
    "slots of a shadow are recorded, and never refused": (
        slots(1, action="shadow"),
        leased(0, each=(0,)), leased(0, each=(0,)), released(0, each=(0,), of=0), released(0, each=(1,), of=1),
    ),
    "evict_oldest: each newcomer closes the oldest, and the rule stays full": (
        slots(2, at_limit="evict_oldest"),
        leased(0, remaining=1), leased(0.5, remaining=0), leased(0, ident="user:2", remaining=1),
        leased(1, remaining=0, closed=(0,)), leased(2, remaining=0, closed=(1,)),
        released(3, remaining=0, of=0),  # its slot is another's
        released(3, remaining=1, of=3),
    ),
    "evict_oldest: a request closes nobody, and nobody closes a request": (
        slots(2, at_limit="evict_oldest"),
        passes(0, remaining=1), leased(0, remaining=0), refused(0, closed=()), leased(0, remaining=0, closed=(1,)),
        released(0, remaining=1, of=3), passes(0, remaining=0), full(0),
    ),
    "evict_oldest: under each rule that is full": (
        slots(3, at_limit="evict_oldest"), slots(1, "narrow", at_limit="evict_oldest"),
        leased(0, each=(2, 0)), leased(1, closed=(0,), each=(1, 0)), leased(2, closed=(1,), each=(0, 0)),
    ),
    **{
        f"evict_oldest: nobody is closed where {other.name} refuses, too": (
            slots(1, at_limit="evict_oldest"), other, leased(0, each=(0, 0)), full(0, each=(0, 0)), peeks(refused(0)),
        )
        for other in (fixed("1/min"), slots(1, "all"))
    },
    "evict_oldest: where refusals count, the one that makes room is not counted": (
        slots(1, at_limit="evict_oldest"), fixed("9/h", count_denied=True),
        leased(0, each=(0, 8)), leased(1, each=(0, 7), closed=(0,)), leased(2, each=(0, 6), closed=(1,)),
    ),
    "evict_oldest: a shadow closes nobody": (
        slots(1, at_limit="evict_oldest", action="shadow"), leased(0), leased(0), leased(0),
    ),
}  # fmt: skip

# Sockets alone: a frame waits for no longer than two seconds, and none that passes is free.
FRAMES: Table = {
    "a socket's frames: under a rule of measured units that reserves nothing each asks for one unit": (
        fixed("2/min", unit="rows", reserve=0), passes(0), passes(0), refused(0, retry=60.0),
    ),
    "a socket's queue: what would wait for longer than two seconds is refused": (
        queue("6/min", burst=3), passes(0, delay=0.0), refused(0, retry=8.0), refused(7.999999), passes(10, delay=0.0),
    ),
    "a socket's queue: each frame waits for those before it": (
        queue("500/s", burst=3),
        passes(0, delay=0.0), passes(0, delay=0.002), passes(0, delay=0.004), refused(0, retry=0.002),
    ),
}  # fmt: skip


def cases(*tables: Table) -> tuple[Case, ...]:
    return tuple(Case(name, *_split(row)) for table in tables for name, row in table.items())


def _split(row: tuple[Any, ...]) -> tuple[tuple[Rule, ...], tuple[Step, ...]]:
    rules = tuple(part for part in row if isinstance(part, Rule))
    return rules, row[len(rules) :]


CASES = cases(
    FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, BUCKETS, INTERVAL_BUCKET, LEAKY_BUCKET, CONCURRENCY, CALENDAR,
    SEVERAL_RATES, COSTS, PEEK_AND_RESET, COUNT_DENIED, MIXED, SHADOW, ENFORCED_LATER, REFUNDS, SETTLEMENTS,
    LEASES,
)  # fmt: skip
