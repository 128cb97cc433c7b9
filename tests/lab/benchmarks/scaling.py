"""Benchmarks of many processes: open sockets on a machine, masters of a Cluster, a damper under a flood."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import cycle
from os import sysconf
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from redis import Redis

from tests.fleet import RedisCluster
from tests.lab.benchmarks.ours import MIXED
from tests.lab.benchmarks.player import SPAWN, Play, Row, Subject, company, in_flight, redis_commands, redis_seconds
from tests.lab.benchmarks.sockets import EXTENSIONS, commands_a_second, holder
from tests.servers import RedisServer, wait_until

SOCKETS, PROCESSES = 100_000, 8
PATIENCE = 600  # seconds, to open that many on few cores
WATCHED = 10  # seconds, of two beats
MASTERS = (1, 3, 6)
CLIENTS = 2
CALLS = 20_000  # of each client
EACH = 100  # calls in flight of a client, to a master
IDENTS = 10_000
SPARE = 200  # keys that are of no socket


def socket_rows(url: str, share: int) -> Iterator[Row]:
    count = SOCKETS // share // PROCESSES
    total = count * PROCESSES
    section = f"{total:,} open sockets in {PROCESSES} processes"
    with Redis.from_url(url) as server, ExitStack() as stack:
        started = (holder(count, place * (count + 1)) for place in range(PROCESSES))  # users are all different
        holders = [stack.enter_context(closing(process)) for process in started]
        empty = server.info("memory")["used_memory"]
        here = [process.ask("open", PATIENCE) for process in holders]
        there = (server.info("memory")["used_memory"] - empty) / total
        yield Row(section, "memory of each in Python", sum(here) / len(here) / 1000, "kB")
        yield Row(section, "memory of each in Redis", there, "B")
        yield Row(section, "connections of a process to Redis", (_clients(server) - 1) / PROCESSES, "")
        # The least of several: in the others times to live were extended, which has rows of its own.
        commands, scripts = min(commands_a_second(server, WATCHED) for _ in range(6 if share == 1 else 1))
        yield Row(section, "Redis commands, inside scripts too", commands, "/s", note=f"{scripts:.1f} scripts/s")
        yield Row(section, "the same, for each process", commands / PROCESSES, "/s")
        used, sent = redis_seconds(server), redis_commands(server)[0]
        beat, extension = holders[0].ask("beat")
        redis = (redis_seconds(server) - used) / EXTENSIONS / count
        sent = (redis_commands(server)[0] - sent) / EXTENSIONS / count
        yield Row(section, f"a beat, of a process with {count:,}", beat * 1e3, "ms")
        yield Row(section, f"the TTL of {count:,} extended", extension * 1e3, "ms")
        yield Row(section, "Redis' processor, to extend one", redis * 1e6, "µs")
        yield Row(section, "Redis commands for that, inside scripts too", sent, "")
        keys, left, start = server.dbsize(), total - count, time.monotonic()
        for process in holders[1:]:
            process.close()
        wait_until(lambda: server.dbsize() < keys - SPARE, timeout=60, every=0.01)
        first = time.monotonic() - start
        wait_until(lambda: server.dbsize() <= keys / PROCESSES + SPARE, timeout=120, every=0.01)
        last = time.monotonic() - start
        yield Row(section, f"SIGKILL: {left:,} slots are free after", last, "s", asked=30.0)
        yield Row(section, "the sweep alone", last - first, "s")


def _clients(server: Redis) -> int:
    return int(server.info("clients")["connected_clients"])


def scattered(url: str, masters: int) -> Play:
    """Calls of idents all over the slots, of which as many are in flight to each master."""
    from django_throttle.limiter import Limiter
    from django_throttle.stores import RedisStore

    idents = cycle([f"user:{number}" for number in range(IDENTS)])
    acquire = Limiter(MIXED[:1], RedisStore(url, deadline=5, max_connections=50)).aacquire
    return in_flight(lambda _: acquire(next(idents)), width=EACH * masters)


class Shared(NamedTuple):
    """Decisions a second of all clients; microseconds of one, of masters and of clients; the largest share of a master,
    in shares of equal size; and how many connections a client has to each.
    """

    rate: float
    redis: float
    client: float
    fullest: float
    lines: float


def cluster_rows(share: int) -> Iterator[Row]:
    section = f"{CLIENTS} clients, each with {EACH} calls in flight to each master, one rule"
    found = {masters: of_masters(masters, CALLS // share) for masters in MASTERS}
    for masters, shared in found.items():
        what = "Redis alone" if masters == 1 else f"Cluster of {masters} masters"
        yield Row(section, f"{what}: decisions", shared.rate, "/s", note=f"fullest master {shared.fullest:.2f} of mean")
        yield Row(section, f"{what}: connections of a client to each", shared.lines, "")
        beside = found[MASTERS[1]]
        ratio = (shared.redis / beside.redis, f"{MASTERS[1]} masters", 1.1) if masters > MASTERS[1] else ()
        yield Row(section, f"{what}: Redis' processors, a decision", shared.redis, "µs", *ratio)
        yield Row(section, f"{what}: clients' processors, a decision", shared.client, "µs")


def of_masters(masters: int, calls: int) -> Shared:
    with ExitStack() as stack:
        started = stack.enter_context(RedisServer() if masters == 1 else RedisCluster(0, masters=masters))
        nodes = [started] if isinstance(started, RedisServer) else started.masters()
        subjects = [Subject(f"client {number}", "scaling", "scattered", (masters,)) for number in range(CLIENTS)]
        players = stack.enter_context(company(subjects, started.url))
        servers = [stack.enter_context(node.client()) for node in nodes]
        threads = stack.enter_context(ThreadPoolExecutor(CLIENTS))

        def used() -> tuple[float, float, list[int]]:
            scripts = [redis_commands(server)[1] for server in servers]
            return sum(map(redis_seconds, servers)), sum(_processor_seconds(each.pid) for each in players), scripts

        def play() -> Shared:
            list(threads.map(lambda player: player.tell(1000), players))
            before, start, made = used(), time.perf_counter(), calls * CLIENTS
            list(threads.map(lambda player: player.tell(calls), players))
            took, after = time.perf_counter() - start, used()
            redis, client = ((now - then) / made * 1e6 for now, then in zip(after[:2], before[:2], strict=True))
            ran = [now - then for now, then in zip(after[2], before[2], strict=True)]
            lines = (sum(map(_clients, servers)) / len(servers) - 1) / CLIENTS
            return Shared(made / took, redis, client, max(ran) / (sum(ran) / len(ran)), lines)

        return max(play() for _ in range(3))


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / sysconf("SC_CLK_TCK")


DAMPER_PROCESSES = 4
LIMIT = 4000
TIMES = 5  # the limit: 20,000 attempts a second
LESS, RELEASE = 0.8, 26  # of the limit, for so many seconds in the end
SETTLED = 12  # seconds until then
BIN = 0.1
TICK = 0.005
READY: Any = None  # all processes, in each of them


def damper_rows(url: str, seconds: int) -> Iterator[Row]:
    """Four processes from rest to five times the limit, then to 0.8 of it; asked is twice what a simulation gets."""
    phases = [(seconds, LIMIT * TIMES / DAMPER_PROCESSES), (RELEASE, LIMIT * LESS / DAMPER_PROCESSES)]
    with (
        Redis.from_url(url) as server,
        SPAWN.Pool(DAMPER_PROCESSES, _be_ready, (SPAWN.Barrier(DAMPER_PROCESSES),)) as pool,
    ):
        before = redis_commands(server)[1]
        refused, passed = zip(*pool.starmap(attempts, [(url, phases)] * DAMPER_PROCESSES, chunksize=1), strict=True)
        calls = redis_commands(server)[1] - before
    rates = [sum(each) / (LIMIT * BIN) for each in zip(*passed, strict=True)]
    above = [second for second in range(12) if _mean(rates, second, 1) > 1.1]
    steady = [_mean(rates, at, 6) for at in range(SETTLED, seconds - 5, 6)]
    late = [at for at, each in enumerate(zip(*refused, strict=True)) if any(each)]
    what = f"4 processes, {LIMIT * TIMES:,}/s, {seconds} s"
    off = abs(_mean(rates, SETTLED, seconds - SETTLED) - 1)
    yield Row("damper", f"{what}: off the limit when settled", off * 100, "%", asked=6)
    yield Row("damper", f"{what}: deviation of 6-second rates", pstdev(steady) * 100, "%", asked=10)
    yield Row("damper", f"{what}: under 1.1 × the limit after", float(max(above, default=-1) + 1), "s", asked=12)
    all_passes = max(0.0, (max(late, default=0) + 1) * BIN - seconds)
    yield Row("damper", f"{what}: all passes again after", all_passes, "s", asked=24)
    note = "2 a second, and beats"
    yield Row("damper", f"{what}: script calls a second", calls / (seconds + RELEASE), "/s", note=note)


def _mean(rates: Sequence[float], begin: float, seconds: float) -> float:
    return fmean(rates[round(begin / BIN) : round((begin + seconds) / BIN)])


def _be_ready(barrier: Any) -> None:
    global READY
    READY = barrier


def attempts(url: str, phases: Sequence[tuple[float, float]]) -> tuple[list[int], list[int]]:
    """Return the numbers of refused and of passed attempts in each tenth of a second."""
    import django

    django.setup()
    from django_throttle.core import Rule
    from django_throttle.limiter import Limiter
    from django_throttle.stores import RedisStore

    limiter = Limiter([Rule("account", f"{LIMIT}/s", algorithm="damper")], RedisStore(url, deadline=5.0))
    limiter.peek("user:1")  # whatever takes time the first time
    bins = round(sum(seconds for seconds, _ in phases) / BIN)
    found = [0] * (bins + 1), [0] * (bins + 1)
    READY.wait()
    start, begin = time.monotonic(), 0.0
    for seconds, rate in phases:
        done = 0
        while (elapsed := time.monotonic() - start - begin) < seconds:
            due, at = int(elapsed * rate), int((begin + elapsed) / BIN)
            for _ in range(due - done):
                found[limiter.acquire("user:1").allowed][at] += 1
            done = due
            time.sleep(TICK)
        begin += seconds
    return found[0][:bins], found[1][:bins]
