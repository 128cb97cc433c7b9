"""The JavaScript helper in a real browser: it waits, paces, queues and comes back as the server says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.servers import free_port, slack
from tests.sockets_page import Server
from tests.test_demo_page import FLAGS

LIMITED = {"type": "error", "code": "rate_limited", "detail": "Slow down.", "rule": "chat", "limit": 20, "remaining": 0}
QUICK = {"firstWait": 0.05, "jitter": 0.1}


@pytest.fixture(scope="module")
def browser(need_binary: Callable[[str], str]) -> Iterator[Browser]:
    chromium = need_binary("chromium")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=FLAGS) as browser:
        yield browser


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture
def server(port: int) -> Iterator[Server]:
    """In a thread of its own, as the browser is driven from this one."""
    server, started, loops = Server(), threading.Event(), []

    async def main() -> None:
        ended = asyncio.Event()
        loops.append((asyncio.get_running_loop(), ended))
        await server.run(port, started, ended)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(slack(10))
    yield server
    loop, ended = loops[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join(slack(20))


@pytest.fixture
def page(browser: Browser, server: Server, port: int) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(slack(10) * 1000)
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_function("window.ready")
    yield page
    page.close()


def begin(page: Page, **options: Any) -> None:
    page.evaluate("options => open_socket('/ws/chat/', options)", {**QUICK, **options})


def until(page: Page, kind: str, number: int = 1) -> list[dict[str, Any]]:
    """Wait for so many events of a kind; all that was told."""
    page.wait_for_function(
        "([kind, number]) => told.filter(one => one.type === kind).length >= number", arg=[kind, number]
    )
    told: list[dict[str, Any]] = page.evaluate("told")
    return told


def of(told: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in told if one["type"] == kind]


def test_what_is_sent_before_the_connection_is_open_waits_in_order(page: Page, server: Server) -> None:
    first = "options => { open_socket('/ws/chat/', options); return [socket.send('one'), socket.send('two')]; }"
    assert page.evaluate(first, QUICK) == [False, False]
    told = until(page, "message", 2)
    assert [one["data"] for one in of(told, "message")] == ["one", "two"]
    assert page.evaluate("[socket.send('three'), socket.queued, socket.readyState, socket.wait]") == [True, 0, 1, 0]


def test_a_refused_message_makes_the_others_wait_as_long_as_the_server_says(page: Page, server: Server) -> None:
    server.script = [[{"after": 1, "say": {**LIMITED, "window": 1, "retry_after": 0.4}}]]
    begin(page)
    page.evaluate("socket.send('refused')")
    (refused,) = of(until(page, "throttled"), "throttled")
    assert (refused["rule"], refused["code"], refused["message"]) == ("chat", "rate_limited", "Slow down.")
    assert 0.4 <= refused["seconds"] <= 0.45
    assert page.evaluate("[socket.send('later'), socket.queued, socket.wait > 0]") == [False, 1, True]
    told = until(page, "message")
    (resumed,), (later,) = of(told, "resumed"), of(told, "message")
    assert later["at"] >= resumed["at"] >= refused["at"] + 0.4


def test_it_keeps_the_pace_of_the_rule_afterwards(page: Page, server: Server) -> None:
    """20 in 2 seconds: a tenth of a second apart."""
    server.script = [[{"after": 1, "say": {**LIMITED, "window": 2, "retry_after": 0.1}}]]
    begin(page)
    page.evaluate("socket.send('refused')")
    until(page, "throttled")
    page.evaluate("for (let number = 0; number < 5; number += 1) socket.send(`${number}`)")
    told = until(page, "message", 5)
    assert [one["data"] for one in of(told, "message")] == list("01234")
    times = [at for at, _ in server.received[1:]]
    assert times[-1] - times[0] >= 4 * 0.1 - 0.02


def test_it_comes_back_after_a_loss_and_sends_what_waited(page: Page, server: Server) -> None:
    server.script = [[{"close": 1012}]]
    begin(page)
    until(page, "close")
    page.evaluate("socket.send('still here')")
    told = until(page, "message")
    assert of(told, "close")[0]["final"] is False
    assert [one["attempt"] for one in of(told, "open")] == [0, 1]
    assert server.connections == 2


def test_it_backs_off_longer_and_longer(page: Page, server: Server) -> None:
    server.script = [[{"close": 1011}]] * 4
    begin(page)
    told = until(page, "waiting", 4)
    waits = [one["seconds"] for one in of(told, "waiting")]
    print(f"waits: {waits}")
    for place, wait in enumerate(waits):
        most = 0.05 * 2**place
        assert most / 2 <= wait <= most


@pytest.mark.parametrize("reason", [True, False])
def test_a_refused_handshake_is_tried_again_when_the_server_says(page: Page, server: Server, reason: bool) -> None:
    """By the error frame, or where it gets lost by the close's reason."""
    error = {**LIMITED, "code": "connection_limit", "window": None, "retry_after": 1}
    said = [] if reason else [{"say": error}]
    server.script = [[*said, {"close": 4430, "reason": "connection limit; retry_after=1" if reason else ""}]]
    begin(page)
    (waiting,) = of(until(page, "waiting"), "waiting")
    assert 1.0 <= waiting["seconds"] <= 1.1
    told = until(page, "open", 2)
    assert of(told, "open")[1]["at"] - waiting["at"] >= 1.0


@pytest.mark.parametrize(
    ("said", "code"), [([], 4403), ([], 1008), ([{"say": {**LIMITED, "code": "evicted", "retry_after": None}}], 4430)]
)
def test_it_stays_away_where_coming_back_would_not_help(page: Page, server: Server, said: list[Any], code: int) -> None:
    """One window would evict the other for ever."""
    server.script = [[*said, {"after": 1, "close": code}]]
    begin(page)
    page.evaluate("socket.send('bye')")
    told = until(page, "close")
    (closed,) = of(told, "close")
    assert (closed["code"], closed["final"]) == (code, True)
    assert page.evaluate("[socket.send('no'), socket.readyState]") == [False, 3]
    dropped = of(page.evaluate("told"), "dropped")[-1]
    assert (dropped["data"], dropped["reason"]) == ("no", "closed")
    assert server.connections == 1


def test_the_queue_is_bounded_and_says_what_it_drops(page: Page, server: Server) -> None:
    server.script = [[{"after": 1, "say": {**LIMITED, "window": 1, "retry_after": 0.3}}]]
    begin(page, maxQueue=2)
    page.evaluate("socket.send('refused')")
    until(page, "throttled")
    page.evaluate("['a', 'b', 'c'].forEach((each) => socket.send(each))")
    told = until(page, "message", 2)
    assert [(one["data"], one["reason"]) for one in of(told, "dropped")] == [("a", "full")]
    assert [one["data"] for one in of(told, "message")] == ["b", "c"]


def test_old_messages_are_not_sent(page: Page, server: Server) -> None:
    server.script = [[{"after": 1, "say": {**LIMITED, "window": 1, "retry_after": 0.3}}]]
    begin(page, maxAge=0.1)
    page.evaluate("socket.send('refused')")
    until(page, "throttled")
    page.evaluate("socket.send('stale')")
    told = until(page, "dropped")
    assert [(one["data"], one["reason"]) for one in of(told, "dropped")] == [("stale", "old")]


def test_lost_continuity_is_told_to_the_page(page: Page, server: Server) -> None:
    server.script = [[{"say": {"type": "continuity_lost", "lost": 7, "since": 1.5}}]]
    begin(page)
    (lost,) = of(until(page, "lost"), "lost")
    assert lost["lost"] == 7


def test_messages_of_the_application_are_left_alone(page: Page, server: Server) -> None:
    """Also one that looks like an error frame, but is none of ours."""
    begin(page)
    page.evaluate('socket.send(\'{"type": "error", "text": "mine"}\')')
    page.evaluate('socket.send(\'{"type": "error", oops\')')
    told = until(page, "message", 2)
    assert of(told, "throttled") == []


def test_closing_ends_it_for_good(page: Page, server: Server) -> None:
    begin(page)
    until(page, "open")
    page.evaluate("socket.close(4001, 'enough')")
    (closed,) = of(until(page, "close"), "close")
    assert (closed["code"], closed["reason"], closed["final"]) == (4001, "enough", True)
    assert page.evaluate("socket.close()") is None
    with pytest.raises(Exception, match="send needs text or binary data"):
        page.evaluate("socket.send(null)")


def test_a_page_that_closes_while_it_waits_does_not_come_back(page: Page, server: Server) -> None:
    server.script = [[{"close": 1011}]]
    begin(page, firstWait=0.3)
    until(page, "waiting")
    page.evaluate("socket.close()")
    told = until(page, "close", 2)
    assert of(told, "close")[-1]["final"] is True
    page.wait_for_timeout(400)
    assert server.connections == 1
