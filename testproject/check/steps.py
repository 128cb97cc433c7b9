"""The steps at the live site, each a generator of rows."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import httpx

from django_throttle.conf import Conf
from testproject.check.standstill import elapsed
from testproject.check.table import Row, seconds
from testproject.check.visitor import Refused, Visitor, close_all
from testproject.prepare import LOGIN, PASSWORD

MOST = 500  # calls after which "until refused" has failed
ATTEMPTS = 3  # at being early, on a machine that may stand still
EARLY = 0.2  # seconds before the promised moment at which a call must still be refused
LATER = 1 + Conf().RETRY_JITTER  # times as long as it must be Retry-After may be, so that a crowd is spread out


def log_in(visitor: Visitor) -> Iterator[Row]:
    known = visitor.log_in(LOGIN, PASSWORD)
    yield Row("log in through the admin's form", f"known as {LOGIN}", "known" if known else "not known", known)


def burst(visitor: Visitor) -> Iterator[Row]:
    """Orders until one is refused; refused still just before the promised moment, through at Retry-After."""
    limit = visitor.rule("orders")["limit"]
    passed, refusal, sent = _until_refused(visitor.order)
    # More than one limit may pass when the burst meets a moment at which older ones expire.
    fits = limit <= passed <= 2 * limit
    yield Row(
        "a burst of orders until refused", f"{limit} pass, then 429", f"{passed}, then {refusal.status_code}", fits
    )
    for _ in range(ATTEMPTS):
        row = _wait_for_retry_after(visitor, refusal, sent)
        if row:
            yield row
            return
        _, refusal, sent = _until_refused(visitor.order)
    yield Row("wait Retry-After", f"an order {EARLY} s too early", "always too late for that", False)


def _wait_for_retry_after(visitor: Visitor, refusal: httpx.Response, sent: float) -> Row | None:
    """None when the machine stood still, so that no order was early. What lies between two moments took that long."""
    refused = asked = time.monotonic()
    wait, retry = int(refusal.headers["Retry-After"]), visitor.rule("orders")["retry_after"]
    most = time.monotonic() + retry - sent
    least, free = asked + retry - refused, asked + retry
    time.sleep(max(0.0, free - EARLY - time.monotonic()))
    early = visitor.order().status_code
    if time.monotonic() > free:
        return None
    time.sleep(max(0.0, refused + wait - time.monotonic()))
    then = visitor.order().status_code
    return Row(
        f"wait Retry-After, {wait} s (exactly {retry:.2f})",
        f"429 {EARLY} s too early, then 201",
        f"{early}, then {then}",
        early == 429 and then == 201 and wait - 1 < most * LATER and least <= wait + 0.1,
    )


def shared_budget(visitor: Visitor) -> Iterator[Row]:
    """Half the budget by HTTP, the rest by messages: together they are what the rule allows."""
    rule = visitor.rule("api")
    limit, per_second = rule["limit"], rule["per_second"]
    socket = visitor.open_socket()
    time.sleep(limit / per_second + 0.1)
    started = time.monotonic()
    by_http = sum(visitor.search().status_code == 200 for _ in range(limit // 2))
    for by_message in range(MOST):
        said = time.monotonic()
        if not socket.say(by_message):
            break
    most = limit + per_second * (time.monotonic() - started) + 1
    yield Row(
        "one budget for HTTP and WebSocket messages",
        f"{limit} (+ what refills) in all",
        f"{by_http} requests + {by_message} messages",
        by_http == limit // 2 and limit <= by_http + by_message <= most,
    )
    passed = sum(visitor.search().status_code == 200 for _ in range(10))
    took = time.monotonic() - said
    yield Row(
        "what messages used up is missing for HTTP",
        "of 10 only what refills",
        f"{passed} in {took:.2f} s",
        passed <= took * per_second + 1,
    )
    socket.close()
    visitor.sockets.remove(socket)


def sockets(visitor: Visitor) -> Iterator[Row]:
    """Sockets until the cap refuses one; then a worker dies and its slots come back."""
    limit = visitor.rule("sockets")["limit"]
    refusal = _open_until_refused(visitor)
    held = len(visitor.sockets)
    yield Row(
        "open sockets until the cap refuses one",
        f"{limit} open, then 429 with Retry-After",
        f"{held}, then {refusal}",
        held == limit and refusal.status == 429 and refusal.retry_after is not None,
    )
    (victim, lost), *_ = Counter(socket.worker for socket in visitor.sockets).most_common()
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    survivors = [socket for socket in visitor.sockets if socket.worker != victim]
    visitor.sockets[:] = survivors
    took = _wait(lambda: _opens(visitor), 40) and elapsed(killed)
    if took:
        # Who has kept coming may be refused for a tenth of a second more, by a worker that has not asked again yet.
        _wait(lambda: bool(_open_until_refused(visitor)) and len(visitor.sockets) >= limit, 2)
    alive = sum(socket.is_open for socket in visitor.sockets)
    yield Row(
        f"kill -9 the worker that holds {lost} of them",
        f"its slots are back within {seconds(2):.0f} s",
        f"{took:.2f} s, {alive} open again" if took else "never",
        bool(took) and took <= seconds(2) and alive == limit,
    )
    close_all(visitor.sockets)
    visitor.sockets.clear()
    closed = time.monotonic()
    free = _wait(lambda: visitor.rule("sockets")["remaining"] == limit, 10)
    yield Row(
        "close all of them", "every slot free at once", f"{time.monotonic() - closed:.2f} s" if free else "never", free
    )


def edit(visitor: Visitor) -> Iterator[Row]:
    """An edit in the admin, seen in what each worker allows and refuses: first a wide limit, then a narrow one."""
    workers = visitor.each_worker()
    _until_refused(visitor.order)
    yield from _edit(visitor, workers, "10000/10s", 201)
    yield from _edit(visitor, workers, "1/10s", 429)
    close_all(workers.values())


def _edit(visitor: Visitor, workers: dict[int, httpx.Client], rate: str, status: int) -> Iterator[Row]:
    saved = visitor.edit_rule("orders", rate=rate)
    learned: dict[int, float] = {}

    def all_know() -> bool:
        for worker, client in workers.items():
            if visitor.order(client).status_code == status:
                learned.setdefault(worker, elapsed(saved))
        return len(learned) == len(workers)

    known = _wait(all_know, 10)
    times = ", ".join(f"{after:.2f} s" for after in learned.values())
    yield Row(
        f"set the rate of orders to {rate} in the admin",
        f"{status} from both workers within {seconds(1):.0f} s",
        times or "never",
        known and max(learned.values()) <= seconds(1),
    )


def _until_refused(call: Callable[[], httpx.Response]) -> tuple[int, httpx.Response, float]:
    """How many passed, the refusal, and when that one was asked for."""
    for passed in range(MOST):
        sent = time.monotonic()
        response = call()
        if response.status_code == 429:
            return passed, response, sent
        response.raise_for_status()
    raise AssertionError(f"{MOST} calls, and none refused")


def _open_until_refused(visitor: Visitor) -> Refused:
    for _ in range(MOST):
        try:
            visitor.open_socket()
        except Refused as refusal:
            return refusal
    raise AssertionError(f"{MOST} sockets, and none refused")


def _opens(visitor: Visitor) -> bool:
    try:
        visitor.open_socket()
    except (Refused, OSError, EOFError):
        return False
    return True


def _wait(happened: Callable[[], bool], patience: float) -> bool:
    began = time.monotonic()
    while not happened():
        if elapsed(began) > patience:
            return False
        time.sleep(0.02)
    return True
