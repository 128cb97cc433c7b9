"""The JavaScript helper in a real browser: it waits, paces, queues and comes back as the server says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from django_throttle.local.open_sockets import notice_payload
from django_throttle.websockets.error_frames import CLOSE_CODES

SCRIPT = Path(__file__).parents[2] / "django_throttle" / "static" / "django_throttle" / "throttled-socket.js"
PAGE = """<!doctype html><meta charset=utf-8><link rel=icon href=data:,><script type=module>
import { ThrottledSocket, parseError } from "/throttled-socket.js";
const seconds = () => performance.now() / 1000;
window.wires = [];
// A WebSocket whose server is the test: what it checks and when it tells is as in the standard.
class Wire extends EventTarget {
  static CONNECTING = 0; static OPEN = 1; static CLOSING = 2; static CLOSED = 3;
  readyState = 0; sent = []; at = seconds();
  constructor() { super(); window.wires.push(this); }
  send(text) { this.sent.push(text); window.told.push({ type: "sent", data: text, at: seconds() }); }
  close(code, reason) {
    if (code !== 1000 && !(code >= 3000 && code <= 4999)) throw new DOMException(`not ${code}`, "InvalidAccessError");
    this.readyState = Math.max(this.readyState, 2);
  }
  accept() { this.readyState = 1; this.dispatchEvent(new Event("open")); }
  say(data) { this.dispatchEvent(new MessageEvent("message", { data })); }
  end(code, reason = "") { this.readyState = 3; this.dispatchEvent(new CloseEvent("close", { code, reason })); }
}
window.WebSocket = Wire;
window.chance = window.timers = 0;
window.told = [];
const real = setTimeout;
window.setTimeout = (...given) => {
  window.timers += 1;
  if (window.timers > 5000) throw new Error("it never rests");
  return real(...given);
};
window.reset = () => { window.socket?.close(); wires.length = window.timers = 0; window.told = []; };
window.begin = (path, options) => {
  const told = window.told = [];
  const socket = window.socket = new ThrottledSocket(path, { random: () => window.chance, ...options });
  socket.told = told;
  for (const type of ["open", "close", "throttled", "waiting", "resumed", "dropped", "lost"]) {
    socket.addEventListener(type, (event) => told.push({ ...event.detail, type, at: seconds() }));
  }
  socket.addEventListener("message", (event) => told.push({ type: "message", at: seconds(), data: event.data }));
  return socket;
};
window.parseError = parseError;
window.ready = true;
</script>"""


class Stage:
    """One page where nothing moves by itself; numbers are seconds, chance is what the page draws at random."""

    def __init__(self, page: Page) -> None:
        page.clock.install(time=0)
        self.page = page
        page.route("**/*", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        page.route("**/throttled-socket.js", lambda route: route.fulfill(path=SCRIPT, content_type="text/javascript"))
        page.goto("http://localhost/")
        page.wait_for_function("window.ready")
        page.clock.pause_at(1000)  # seconds that the page's clock shows when it stands still

    def reset(self) -> Stage:
        self.do("reset()")
        return self

    def begin(self, chance: float = 0.0, **options: Any) -> Stage:
        self.page.evaluate(
            "([chance, options]) => { window.chance = chance; begin('/ws/chat/', options); }", [chance, options]
        )
        return self

    def opened(self, **options: Any) -> Stage:
        self.begin(**options).accept()
        return self.run(0.1)

    def refused(self, frame: dict[str, Any], **options: Any) -> Stage:
        self.opened(**options).send("refused")
        self.say(frame)
        return self

    def comes_back_after(self, seconds: float) -> None:
        """Assert that it connects again after so many seconds, and no sooner."""
        before = self.connections
        self.run(seconds - 0.01)
        assert self.connections == before
        self.run(0.02)
        assert self.connections == before + 1

    def run(self, seconds: float) -> Stage:
        self.page.clock.run_for(round(seconds * 1000))
        return self

    def do(self, script: str) -> Any:
        return self.page.evaluate(script)

    def send(self, *texts: str) -> list[bool]:
        sent: list[bool] = self.page.evaluate("texts => texts.map((text) => socket.send(text))", texts)
        return sent

    def accept(self) -> None:
        self.do("wires.at(-1).accept()")

    def say(self, frame: dict[str, Any] | str) -> None:
        self.page.evaluate("data => wires.at(-1).say(data)", frame if isinstance(frame, str) else json.dumps(frame))

    def end(self, code: int, reason: str = "") -> None:
        self.page.evaluate("([code, reason]) => wires.at(-1).end(code, reason)", [code, reason])

    @property
    def connections(self) -> int:
        return int(self.do("wires.length"))

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.do("told") if not kinds or event["type"] in kinds]

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.told()]

    def texts(self, kind: str = "sent") -> list[str]:
        return [event["data"] for event in self.told(kind)]


MONTH = 30 * 86400
LIMITED = {"type": "error", "code": "rate_limited", "detail": "Slow down.", "rule": "chat", "limit": 20, "remaining": 0}
CROWDED = {**LIMITED, "code": "connection_limit", "limit": 5, "window": None}


@pytest.fixture(scope="module")
def empty(browser: Browser) -> Iterator[Stage]:
    with browser.new_page() as page:
        yield Stage(page)


@pytest.fixture
def stage(empty: Stage) -> Iterator[Stage]:
    mistakes: list[str] = []
    empty.page.on("pageerror", lambda error: mistakes.append(str(error)))
    yield empty.reset()
    assert mistakes == []


def limited(retry_after: Any, limit: int = 20, window: float = 1, **others: Any) -> dict[str, Any]:
    return {**LIMITED, "limit": limit, "window": window, "retry_after": retry_after, **others}


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


class TestQueue:
    def test_what_is_sent_before_the_connection_is_open_waits_in_order(self, stage: Stage) -> None:
        stage.begin()
        assert stage.send("one", "two") == [False, False]
        stage.accept()
        stage.run(0.01).say({**CROWDED, "retry_after": 5})
        stage.end(4430)
        assert (stage.texts(), stage.do("socket.queued")) == ([], 2)
        stage.run(5).accept()
        stage.run(0.1)
        assert stage.texts() == ["one", "two"]
        assert stage.send("three") == [True]
        assert stage.do("[socket.queued, socket.readyState, socket.wait]") == [0, 1, 0]

    def test_a_known_pace_is_kept_from_the_first_message_on(self, stage: Stage) -> None:
        stage.begin(pace={"limit": 5, "window": 2})
        stage.send(*numbers(12))
        stage.accept()
        stage.run(0.1)
        assert stage.texts() == numbers(5)
        assert stage.do("socket.wait") == pytest.approx(2, abs=0.2)
        stage.run(5)
        assert stage.texts() == numbers(12)
        times = [event["at"] for event in stage.told("sent")]
        assert all(later - sooner >= 2 for sooner, later in zip(times, times[5:], strict=False))
        assert times[-1] - times[0] < 4.5

    def test_it_is_bounded_and_drops_what_is_too_old(self, stage: Stage) -> None:
        stage.refused(limited(MONTH), maxQueue=2, maxAge=2)
        stage.send("a", "b")
        stage.run(1).send("c")
        stage.run(1.5)
        dropped = [("a", "full"), ("b", "old")]
        assert [(event["data"], event["reason"]) for event in stage.told("dropped")] == dropped
        stage.run(1)
        assert (stage.texts("dropped"), stage.do("socket.queued")) == (["a", "b", "c"], 0)


class TestRefusals:
    @pytest.mark.parametrize("seconds", [4, MONTH])
    def test_the_others_wait_as_long_as_the_server_says(self, stage: Stage, seconds: int) -> None:
        stage.refused(limited(seconds))
        (refused,) = stage.told("throttled")
        assert (refused["rule"], refused["code"], refused["message"]) == ("chat", "rate_limited", "Slow down.")
        assert refused["seconds"] == seconds
        assert stage.send("later") == [False]
        assert stage.do("[socket.queued, socket.wait]") == [1, seconds]
        stage.run(seconds - 0.01)
        assert stage.kinds() == ["open", "sent", "throttled"]
        stage.run(0.02)
        assert stage.kinds() == ["open", "sent", "throttled", "resumed", "sent"]

    def test_it_keeps_the_pace_of_the_rule_afterwards(self, stage: Stage) -> None:
        """20 in 2 seconds: a tenth of a second apart, however many wait."""
        stage.refused(limited(0.1, window=2))
        stage.send(*numbers(100))
        stage.run(11)
        assert stage.texts() == ["refused", *numbers(100)]
        times = [event["at"] for event in stage.told("sent")]
        assert {round(after - before, 3) for before, after in pairwise(times[1:])} == {0.1}

    @pytest.mark.parametrize(("code", "seconds"), [("limiter_unavailable", 5), ("blocked", 5), ("blocked", None)])
    def test_a_failure_and_a_block_make_it_rest_too(self, stage: Stage, code: str, seconds: int | None) -> None:
        stage.refused(limited(seconds, code=code, limit=1, window=60))
        stage.send("a", "b")
        stage.run((seconds or 60) - 0.1)
        assert stage.texts() == ["refused"]
        stage.run(0.2)
        assert stage.texts() == ["refused", "a", "b"]

    def test_a_message_too_large_for_ever_holds_up_no_other(self, stage: Stage) -> None:
        stage.opened().send("large")
        stage.say(limited(None))
        assert stage.told("throttled")[0]["seconds"] == 0
        assert stage.send("small", "small") == [True, True]


class TestFrames:
    @pytest.mark.parametrize("code", CLOSE_CODES)
    def test_ours_are_known(self, stage: Stage, code: str) -> None:
        stage.opened().say(notice_payload(code, "Why."))
        assert [told["code"] for told in stage.told("throttled")] == [code]
        stage.say({"type": "continuity_lost", "lost": 7, "since": "2026-11-20T12:34:56.789Z"})
        assert stage.told("lost")[0]["lost"] == 7
        stage.end(4321)
        stage.run(1000)
        assert stage.told("close")[0]["final"] is (code in ("evicted", "blocked", "closed"))

    @pytest.mark.parametrize(
        "frame",
        [
            '{"type": "error", "text": "mine"}', '{"type": "error", "code": "invalid_input", "detail": "mine"}',
            '{"type": "error", "code": "rate_limited", "detail": "mine, too"}',
            '{"type": "error", "code": "out_of_stock", "rule": "one each", "retry_after": 5}',
            '{"type": "continuity_lost", "chapter": 7}', '{"type": "error", oops', '{"type": "error", "code": null}',
            "plain",
        ],
    )  # fmt: skip
    def test_those_of_the_application_are_its_own(self, stage: Stage, frame: str) -> None:
        stage.opened().say(frame)
        assert stage.texts("message") == [frame]
        assert stage.told("throttled", "lost") == []
        stage.end(1006)
        assert stage.told("waiting")[0]["seconds"] < 1

    def test_a_site_with_a_payload_of_its_own_says_how_to_read_it(self, stage: Stage) -> None:
        stage.do(
            """() => begin("/ws/chat/", { parse: (data) => {
              const { error } = JSON.parse(data);
              return error ? { type: "error", code: "rate_limited", retry_after: error.seconds } : parseError(data);
            } })"""
        )
        stage.accept()
        stage.run(0.1).send("refused")
        stage.say({"error": {"code": "slow_down", "seconds": 3}})
        assert stage.do("socket.wait") == 3


class TestComingBack:
    def test_after_a_loss_it_sends_what_waited(self, stage: Stage) -> None:
        stage.opened().end(1012)
        stage.send("still here")
        stage.run(1).accept()
        stage.run(0.1)
        assert stage.kinds() == ["open", "close", "waiting", "open", "sent"]
        assert [event["attempt"] for event in stage.told("open")] == [0, 1]
        assert stage.told("close")[0]["final"] is False

    @pytest.mark.parametrize(("chance", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
    def test_it_backs_off_longer_and_longer(self, stage: Stage, chance: float, share: float) -> None:
        """Half of each wait is random; a minute is the longest."""
        stage.begin(chance=chance)
        for attempt in range(1, 10):
            stage.end(1006)
            (*_, waiting) = stage.told("waiting")
            assert waiting["attempt"] == attempt
            assert waiting["seconds"] == pytest.approx(share * min(60, 0.5 * 2 ** (attempt - 1)))
            stage.comes_back_after(waiting["seconds"])

    def test_a_connection_that_lasts_makes_waits_short_again(self, stage: Stage) -> None:
        stage.begin()
        for _ in range(4):
            stage.end(1006)
            stage.run(5)
        for lasts, attempt in ((4, 5), (6, 1)):
            stage.accept()
            stage.run(lasts).end(1006)
            assert stage.told("waiting")[-1]["attempt"] == attempt
            stage.run(10)

    def test_it_gives_up_when_it_is_told_to(self, stage: Stage) -> None:
        stage.begin(maxAttempts=2)
        for _ in range(3):
            stage.end(1006)
            stage.run(60)
        assert stage.connections == 3
        assert [event["final"] for event in stage.told("close")] == [False, False, True]

    @pytest.mark.parametrize("code", [1000, 1008, 4400, 4401, 4403, 4404, 4410])
    def test_it_stays_away_after_codes_that_mean_it(self, stage: Stage, code: int) -> None:
        stage.opened().end(code)
        assert stage.told("close")[0]["final"] is True
        assert stage.do("socket.readyState") == 3
        assert stage.send("no") == [False]
        assert [(event["data"], event["reason"]) for event in stage.told("dropped")] == [("no", "closed")]
        stage.run(1000)
        assert stage.connections == 1

    @pytest.mark.parametrize(
        ("said", "reason", "seconds"),
        [
            ("", "connection limit; retry_after=17", 17), ("17", "", 17), (f"{MONTH}", "", MONTH),
            *((senseless, "", 60) for senseless in ("1e999", "-1e999", "-5", '"soon"', "[]", "{}", "true")),
        ],
    )  # fmt: skip
    def test_a_refused_handshake_is_tried_again_when_the_server_says(
        self, stage: Stage, said: str, reason: str, seconds: int
    ) -> None:
        """By the error frame, or where it gets lost by the close's reason.

        Browsers count a timer's wait in 31 bits: what is longer, or no number, they take for no wait at all.
        """
        stage.begin().accept()
        if said:
            stage.say(json.dumps({**CROWDED, "retry_after": 0})[:-2] + f"{said}}}")
        stage.end(4430, reason)
        assert stage.told("waiting")[0]["seconds"] == seconds
        stage.comes_back_after(seconds)


class TestClosing:
    def test_it_is_for_good(self, stage: Stage) -> None:
        stage.begin().send("never")
        stage.do("socket.close(4001, 'enough')")
        assert stage.do("[socket.readyState, wires[0].readyState]") == [2, 2]
        stage.end(4001, "enough")
        assert stage.kinds() == ["dropped", "close"]
        (closed,) = stage.told("close")
        assert (closed["code"], closed["reason"], closed["final"]) == (4001, "enough", True)
        assert stage.do("[socket.readyState, socket.close()]") == [3, None]
        stage.run(1000)
        assert stage.connections == 1


def test_an_option_that_makes_no_sense(stage: Stage) -> None:
    senseless: list[dict[str, Any]] = [
        {"firstWait": "a"}, {"longestWait": None}, {"jitter": -1}, {"maxQueu": 3}, {"pace": {"limit": 0, "window": 1}},
        {"pace": {"limit": 5}}, {"parse": 1}, {"random": 0.5}, {"finalCodes": 4000}, {"finalErrors": None},
        {"protocols": None}, {"toString": 1},
    ]  # fmt: skip
    for options in senseless:
        with pytest.raises(Exception, match=f"TypeError.*{next(iter(options))}"):
            stage.begin(**options)
    assert stage.connections == 0
