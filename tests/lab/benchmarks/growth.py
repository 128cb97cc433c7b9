"""What grows with identities, rules and overrides: time, memory in Redis, and memory of a process."""

import gc
import logging
import random
from collections.abc import Iterator
from time import perf_counter

from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.lab.benchmarks.decisions import VIEW_CALLS
from tests.lab.benchmarks.ours import KEPT, rules_for_hours
from tests.lab.benchmarks.player import IN_FLIGHT, SPAWN, Play, Row, Subject, company, compare, in_flight, one_by_one
from tests.servers import free_port

FEW, MANY = 1_000, 1_000_000
AT_ONCE = 20_000  # new idents, so that nobody loses patience
BOOKS = (3, 100, 1_000)  # rules
OVERRIDES = 10_000
WIDE = 400  # calls in flight at once, so that a flood waits for nothing but processors
MIB = 1 << 20


def new(url: str, database: int) -> Play:
    return in_flight(_limiter(url, database).aacquire, fresh=True)


def known(url: str, database: int, idents: int) -> Play:
    numbers, acquire = random.Random(1), _limiter(url, database).acquire
    return one_by_one(lambda _: acquire(f"fresh:{numbers.randrange(idents)}"))


def overridden(url: str, overrides: int) -> Play:
    from django.conf import settings
    from django.core.management import call_command

    from django_throttle.models import ThrottleOverride
    from tests.lab.benchmarks.views import under, view

    under(3)
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "DATABASE_RULES": True}
    call_command("migrate", verbosity=0)
    whom = [("ip", f"10.1.{at // 250}.{at % 250}") if at % 2 else ("user", f"{at}") for at in range(overrides)]
    rows = [ThrottleOverride(kind=kind, value=value, factor=2, reason="growth") for kind, value in whom]
    ThrottleOverride.objects.bulk_create(rows)
    return view(url, "ours", 3)


def identity_rows(url: str, rounds: int, share: int) -> Iterator[Row]:
    section, counts = "identities, each under five rules", {1: FEW, 0: MANY // share}
    with Redis.from_url(url) as server:
        for database, count in counts.items():
            before = server.info("memory")["used_memory"]
            with company([Subject("new", "growth", "new", (database,))], url) as (player,):
                for at in range(0, count, AT_ONCE):
                    player.tell(min(AT_ONCE, count - at))
            size = (server.info("memory")["used_memory"] - before) / count
        yield Row(section, f"{count:,} identities: memory of each in Redis", size, "B", asked=260.0)
        names = {f"{count:,} identities: a decision": (database, count) for database, count in counts.items()}
        subjects = [Subject(name, "growth", "known", found) for name, found in names.items()]
        results = compare(subjects, url, rounds)
        server.flushall(asynchronous=True)  # millions of keys take longer than a client waits
    few, many = results
    yield Row(section, few, results[few].took, "µs")
    yield Row(section, many, results[many].took, "µs", results[many].took / results[few].took, f"{FEW:,}", 1.1)


def rulebook_rows(url: str, rounds: int) -> Iterator[Row]:
    section = "a view's three rules, and others"
    books = {f"{rules:,} rules": rules - 3 for rules in BOOKS}
    subjects = [Subject(name, "views", "view", ("ours", 3, others), VIEW_CALLS) for name, others in books.items()]
    stored = {f"{count:,} overrides in the database": count for count in (0, 2, OVERRIDES)}
    subjects += [Subject(name, "growth", "overridden", (count,), VIEW_CALLS) for name, count in stored.items()]
    results = compare([Subject("unthrottled", "views", "view", ("none",), VIEW_CALLS), *subjects], url, rounds)
    bare = results["unthrottled"].took
    for names in (list(books), list(stored)):
        first = results[names[0]].took - bare
        for name in names:
            more = results[name].took - bare
            asked = 1.1 if name == names[-1] else None
            yield Row(section, f"{name}: RuleThrottle adds", more, "µs", more / first, names[0], asked)


def flood_rows(url: str, idents: int) -> Iterator[Row]:
    section = f"memory of a process, flooded with {idents:,} identities"
    with SPAWN.Pool(1) as pool:
        found = pool.apply(flooded, (url, idents))
    for what, grown, late, seconds in found:
        note = f"{seconds / idents * 1e6:.0f} µs an identity; {late / MIB:.1f} MiB after the first tenth"
        yield Row(section, what, grown / MIB, "MiB", note=note)
    grown, late = (sum(each[at] for each in found) / MIB for at in (1, 2))
    yield Row(section, "together", grown, "MiB", asked=64.0, note=f"{late:.1f} MiB after the first tenth")


def flooded(url: str, idents: int) -> list[tuple[str, int, int, float]]:
    """What was asked, the bytes by which this process has grown, those after a tenth of it, and the seconds it took."""
    import django

    django.setup()
    logging.disable()
    refusing = Limiter((Rule("refused", "1/day"),), RedisStore(url, deadline=5, max_connections=IN_FLIGHT))
    ahead = Limiter((Rule("ahead", "1000000/h", prepaid=True),), RedisStore(url, deadline=5, max_connections=IN_FLIGHT))
    damped = Limiter((Rule("damped", "1000/s", algorithm="damper"),), RedisStore(url, deadline=5))
    away = Limiter((Rule("away", "10/h"),), RedisStore(f"redis://127.0.0.1:{free_port()}/0"))

    async def until_refused(ident: str) -> None:
        while (await refusing.aacquire(ident)).allowed:
            pass

    floods = {
        "last answers of Redis, and refusals": in_flight(until_refused, fresh=True, width=WIDE),
        "units bought ahead": in_flight(ahead.aacquire, fresh=True, width=WIDE),
        "dampers": one_by_one(damped.acquire, fresh=True),
        "limits in the process while Redis is away": one_by_one(away.acquire, fresh=True),
    }
    for play in floods.values():
        play(WIDE)  # what the first calls make is not of their identities
    found = []
    for what, play in floods.items():
        start, sizes = perf_counter(), [_settled()]
        for share in (idents // 10, idents - idents // 10):
            play(share)
            sizes.append(_settled())
        found.append((what, sizes[2] - sizes[0], sizes[2] - sizes[1], perf_counter() - start))
    return found


def _settled() -> int:
    """Bytes of this process, without what the collector would free."""
    from tests.lab.benchmarks.sockets import resident_bytes

    gc.collect()
    return resident_bytes()


def _limiter(url: str, database: int) -> Limiter:
    store = RedisStore(f"{url.removesuffix('/0')}/{database}", deadline=5, max_connections=IN_FLIGHT)
    return Limiter(rules_for_hours(KEPT, "9000000/h"), store)
