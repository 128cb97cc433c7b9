"""The steps at the live site, each a generator of rows."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx

from django_throttle.conf import Conf
from testproject.check.standstill import elapsed
from testproject.check.table import Row, seconds
from testproject.check.visitor import Refused, Socket, Visitor, close_all
from testproject.prepare import LOGIN, PASSWORD

MOST = 500  # calls after which "until refused" has failed
MOST_HANDSHAKES = 30  # half of what the rule of handshakes allows
MESSAGES = 15  # within the burst of the rule of messages, and more than the layer's capacity
PUBSUB = os.environ.get("CHANNEL_LAYER") == "pubsub"
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


def later(visitor: Visitor) -> Iterator[Row]:
    """Two reports: the second one's turn is yet to come, so it is done later, and its page says so."""
    answers = [visitor.report(), visitor.report()]
    statuses = [answer.status_code for answer in answers]
    yield Row("two reports", "200, then 202", f"{statuses[0]}, then {statuses[1]}", statuses == [200, 202])
    said, starts = answers[1].json(), datetime.fromisoformat(answers[1].json()["starts_at"]).timestamp()

    def state() -> str:
        return str(visitor.http.get(answers[1].headers["Location"]).json()["state"])

    first, done = said["state"], _wait(lambda: state() == "done", starts - time.time() + seconds(10))
    early = time.time() < starts
    yield Row("the second one's page", "queued, then done", f"{first}, then {state()}", done and not early)
    other = httpx.get(f"http://{visitor.address}{answers[1].headers['Location']}").status_code
    yield Row("the same page for somebody else", "404", str(other), other == 404)


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


def chat(visitor: Visitor) -> Iterator[Row]:
    """A message reaches the other worker's socket; what a full queue loses is no refusal, and is counted apart."""
    workers = visitor.each_worker()
    here, there = _socket_on_each_worker(visitor)
    _wait(lambda: visitor.rule("api")["remaining"] > MESSAGES, seconds(5))
    began = time.monotonic()
    heard = here.say(0, "to all") and there.hears("to all", seconds(5))
    yield Row(
        "say something on one worker",
        "echoed, and heard on the other worker",
        f"heard after {1000 * elapsed(began):.0f} ms" if heard else "not heard",
        heard,
    )
    yield _while_the_other_stands_still(here, there, workers)
    saved = visitor.edit_rule("lobby", rate="2/10s")
    wanted, refusal = {"rule": "lobby", "members": 2}, dict[str, Any]()
    for number in range(MOST):
        refusal = here.unheard(f"unheard {number}")
        if refusal == {**refusal, **wanted} or elapsed(saved) > seconds(10):
            break
    yield Row(
        "allow publications of 2 in 10 s, and say something to 2",
        "refused by the rule lobby, heard by nobody",
        f"refused by {refusal['rule']}, of {refusal['members']}" if refusal else "not refused",
        refusal == {**refusal, **wanted} and not there.hears(f"unheard {number}", 0.5),
    )
    close_all([*visitor.sockets, *workers.values()])
    visitor.sockets.clear()


def _while_the_other_stands_still(here: Socket, there: Socket, workers: dict[int, httpx.Client]) -> Row:
    """Its queue in Redis fills up; uvicorn replaces a worker that stands still for five seconds."""
    os.kill(there.worker, signal.SIGSTOP)
    try:
        said = sum(here.say(number, f"message {number}") for number in range(MESSAGES))
    finally:
        os.kill(there.worker, signal.SIGCONT)
    heard = 0
    while there.hears("message", seconds(1)):
        heard += 1
    lost = sum(sum(client.get("/api/budgets").json()["lost"].values()) for client in workers.values())
    return Row(
        f"say {MESSAGES} things while the other worker stands still",
        f"{MESSAGES} = heard + counted as lost, no refusal" + (", none lost" if PUBSUB else ""),
        f"{said} said, {heard} heard, {lost} lost",
        said == MESSAGES == heard + lost and bool(lost) is not PUBSUB,
    )


def _socket_on_each_worker(visitor: Visitor) -> list[Socket]:
    found: dict[int, Socket] = {}
    for _ in range(MOST_HANDSHAKES):
        socket = visitor.open_socket()
        if found.setdefault(socket.worker, socket) is not socket:
            visitor.sockets.remove(socket)
            socket.close()
        if len(found) == 2:
            return list(found.values())
    raise AssertionError(f"{MOST_HANDSHAKES} sockets, and all on one worker")


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
