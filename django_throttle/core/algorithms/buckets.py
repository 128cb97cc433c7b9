"""Buckets and slots: units that come back with time, or when they are given back."""

from __future__ import annotations

from django_throttle.core.plan import NEVER, Plan, State, Step


def concurrency(held: int, mine: bool, cost: int, plan: Plan) -> Step:
    """At most ``limit`` leases at once; one that is held already is granted again."""
    limit, ask_again = plan.limit, plan.a
    wanted = 0 if mine else cost
    retry = 0 if held + wanted <= limit else ask_again
    return Step(max(0, limit - held), retry, ask_again if held else 0, ask_again, None, None)


def gcra(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """A bucket of ``burst`` that refills evenly. State: theoretical arrival time in microseconds, its fraction.

    Source: the ATM Forum's generic cell rate algorithm; times of a unit are in 1/fineness microseconds,
    so the first and the last unit of a burst are both usable and nothing drifts.
    """
    burst, unit, bucket, fineness = plan.limit, plan.a, plan.b, plan.c
    arrival, fraction = state or (now, 0)
    # The fraction may be one of another fineness, from before the limit was edited.
    used = 0 if arrival < now else (arrival - now) * fineness + min(fraction, fineness - 1)
    kept = None
    if used > bucket:  # the clock went back, or the rule became smaller: never owe more than a bucket
        used = bucket
        kept = _arrival(now, used, fineness)
    retry = 0
    if cost > burst or used + cost * unit > bucket:
        if counts_denied:
            used = min(used + min(cost, burst) * unit, bucket)
            kept = _arrival(now, used, fineness)
        retry = NEVER if cost > burst else -(-(used + cost * unit - bucket) // fineness)
    charged = used + cost * unit
    return Step(
        remaining=(bucket - used) // unit,
        retry=retry,
        reset=-(-used // fineness),
        charged_reset=-(-charged // fineness),
        charged=_arrival(now, charged, fineness) if retry == 0 else None,
        kept=kept,
    )


def interval_bucket(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """A bucket refilled by ``limit`` units a whole interval, counted from its first use. State: refilled at, units."""
    burst, interval, brings = plan.limit, plan.a, plan.b
    since, units = state or (now, burst)
    kept = None
    if since > now:  # the clock went back: the interval begins again
        since, kept = now, (now, units)
    refills = (now - since) // interval
    units = min(burst, units + min(refills, -(-burst // brings)) * brings)
    since = now if units == burst else since + refills * interval
    retry = 0
    if cost > units:
        if counts_denied:
            units = max(0, units - cost)
            kept = (since, units)
        retry = NEVER if cost > burst else since + -(-(cost - units) // brings) * interval - now
    full = since + -(-(burst - units) // brings) * interval - now
    return Step(
        remaining=units,
        retry=retry,
        reset=full if units < burst else 0,
        charged_reset=since + -(-(burst - units + cost) // brings) * interval - now,
        charged=(since, units - cost) if retry == 0 else None,
        kept=kept,
    )


def _arrival(now: int, used: int, fineness: int) -> State:
    return now + used // fineness, used % fineness
