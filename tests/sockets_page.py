"""A page that loads the JavaScript helper; its clock and the server behind its socket are the test's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SCRIPT = Path(__file__).parent.parent / "django_throttle" / "static" / "django_throttle" / "throttled-socket.js"
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
        """Nobody is left of those who were here before."""
        self.do("reset()")
        return self

    def begin(self, chance: float = 0.0, **options: Any) -> Stage:
        self.page.evaluate(
            "([chance, options]) => { window.chance = chance; begin('/ws/chat/', options); }", [chance, options]
        )
        return self

    def opened(self, **options: Any) -> Stage:
        """Connected, and beyond the moment in which a handshake may yet be refused."""
        self.begin(**options).accept()
        return self.run(0.1)

    def refused(self, frame: dict[str, Any], **options: Any) -> Stage:
        """Connected, and the one message that was sent is refused by this frame."""
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
        """A frame of the server, as Python writes it."""
        self.page.evaluate("data => wires.at(-1).say(data)", frame if isinstance(frame, str) else json.dumps(frame))

    def end(self, code: int, reason: str = "") -> None:
        self.page.evaluate("([code, reason]) => wires.at(-1).end(code, reason)", [code, reason])

    @property
    def connections(self) -> int:
        return int(self.do("wires.length"))

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        """What the page was told, and what was ``sent``, in order; all, or of these kinds."""
        return [event for event in self.do("told") if not kinds or event["type"] in kinds]

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.told()]

    def texts(self, kind: str = "sent") -> list[str]:
        return [event["data"] for event in self.told(kind)]
