"""What the record of decisions costs: time of a call, and memory of Redis after a month."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

from redis import Redis

from django_throttle import console
from django_throttle.console.recording import redis_keys
from django_throttle.console.recording.bounded_sample import BoundedSample, random_rank
from django_throttle.console.recording.cells import CODES, FIRST_TIME_CODE, HOUR, MINUTE, Cell
from django_throttle.console.recording.flush import RecordFlusher
from django_throttle.console.recording.heavy_hitters import HeavyHitters
from django_throttle.console.recording.recorder import DecisionRecorder, DecisionSample, Records
from django_throttle.console.recording.redis_keys import DAY, RECENT_SLOTS, SLOT, SLOTS
from django_throttle.core import Rule
from django_throttle.core.commands import Charges, charges_of
from django_throttle.core.decision import Reason
from django_throttle.stores import RedisStore
from django_throttle.stores.redis import scripts
from tests.lab.benchmarks.table import Row

SECTION = "what is recorded of decisions"
RULES, CALLS_PER_SECOND = 100, 10_000
BLOCK, BLOCKS = 20_000, 9
NAMES = [f"rule-{number}" for number in range(RULES)]


def charges() -> list[Charges]:
    draw, rules = random.Random(1), [Rule(name, "1000/s") for name in NAMES]
    return [charges_of(draw.choice(rules), f"user:{draw.randrange(100_000)}", 1) for _ in range(BLOCK)]


def passed_us() -> float:
    """CPU time of an ordinary decision's record, with its share of all that is done later, the agent's included."""
    made, calls, times = DecisionRecorder(), charges(), []
    events = ("request",)
    for _ in range(BLOCKS):
        start = process_time()
        for one in calls:
            made.record_allowed(one, "search", "GET", events, perf_counter() - 0.0003)
        whole = process_time() - start
        start = process_time()
        for _one in calls:
            perf_counter() - 0.0003
        empty = process_time() - start
        start = process_time()
        made.take()
        times.append((whole - empty + process_time() - start) / BLOCK * 1e6)
    return min(times)


def _cell(calls: int, refused: int) -> Cell:
    """A rule's decisions: most take about 256 µs, few much longer."""
    cell = {CODES[Reason.EXCEEDED]: refused}
    cell |= {FIRST_TIME_CODE + 8 + place: calls * 3 >> 2 * place + 2 for place in range(7)}
    return {code: number for code, number in cell.items() if number}


def fill(store: RedisStore, client: Redis, refusing: int) -> None:
    """A month under full load: there are at most 31 days, and 25 hours of minutes. So many rules refuse."""
    scripts.folders.append(Path(console.__file__).with_name("lua"))  # as the app does, which is not set up here
    flusher, now = RecordFlusher(store), int(time.time()) // DAY * DAY
    each, draw = CALLS_PER_SECOND // RULES, random.Random(2)
    for hour in range(now - 31 * DAY, now, HOUR):
        is_last = hour >= now - DAY - HOUR
        records, minutes = Records(), range(hour, hour + HOUR, MINUTE) if is_last else (hour,)
        for number, name in enumerate(NAMES):
            is_refusing = number < refusing
            for minute in minutes:
                calls = each * (MINUTE if is_last else HOUR)
                records.cells[name, minute] = _cell(calls, calls // 20 if is_refusing else 0)
            if is_refusing:
                counts = {f"user:{draw.randrange(10**6)}": draw.randrange(50, 2000) for _ in range(33)}
                records.rankings[name, hour] = HeavyHitters(counts)
        flusher.send(records)
        if not is_last:  # what has run out by then
            client.delete(*client.keys("*:rec:m:*"))
        if hour < now - redis_keys.RANKING_TTL_MS // 1000 and (over := client.keys("*:rec:t:*")):
            client.delete(*over)
    for slot in range(now // SLOT - SLOTS, now // SLOT + RECENT_SLOTS):
        records = Records()
        for stratum, most in redis_keys.MAX_RECENT_ENTRIES.items():
            sample = records.samples[stratum, slot] = BoundedSample(2 * most)
            for number in range(2 * most):
                idents = {f"user:{draw.randrange(10**6)}": [draw.choice(NAMES)]}
                seen = DecisionSample(
                    slot * SLOT + number, "search", "GET", "request", "refused", NAMES[0], "exceeded", 1, idents
                )
                sample.offer(random_rank(), seen)
        flusher.send(records)


def redis_mib(url: str, refusing: int) -> float:
    with Redis.from_url(url) as client:
        client.flushall()
        before = client.info("memory")["used_memory"]
        fill(RedisStore(url, deadline=5.0), client, refusing)
        return (client.info("memory")["used_memory"] - before) / 2**20


def rows(url: str) -> Iterator[Row]:
    yield Row(SECTION, "an ordinary decision's record, all told, CPU time", passed_us(), "µs", asked=0.5)
    for refusing in (RULES // 10, RULES):
        note = f"{RULES} rules, {CALLS_PER_SECOND:,} calls/s for 30 days, of which {refusing} refuse 5 %"
        subject = f"memory of Redis, {refusing} of {RULES} rules refuse"
        yield Row(SECTION, subject, redis_mib(url, refusing), "MiB", asked=10, note=note)
