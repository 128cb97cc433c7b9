"""A person at the site: a browser's cookies, connections to each worker, and open sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from testproject.check.form import read_form

UNHEARD_SECONDS = 0.3  # after an echo until a message may be taken for sent to the room


class Refused(Exception):
    """A handshake was answered with a status instead of a socket."""

    def __init__(self, status: int, retry_after: str | None) -> None:
        super().__init__(f"{status}, Retry-After {retry_after}")
        self.status = status
        self.retry_after = retry_after


class Visitor:
    """Somebody who logs in, sends requests, holds sockets open, and edits rules."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.http = self._client()
        self.sockets: list[Socket] = []

    def log_in(self, name: str, password: str) -> bool:
        """Through the admin's own form; whether the site knows us afterwards."""
        page = self.http.get("/admin/login/")
        fields = read_form(page.text, "login-form")
        self.http.post("/admin/login/", data={**fields, "username": name, "password": password})
        return bool(self.budgets()["user"] == name)

    def search(self, client: httpx.Client | None = None) -> httpx.Response:
        return (client or self.http).get("/api/search", params={"q": "ap"})

    def order(self, client: httpx.Client | None = None) -> httpx.Response:
        headers = {"X-CSRFToken": self.http.cookies.get("csrftoken") or ""}
        return (client or self.http).post("/api/orders", headers=headers)

    def report(self) -> httpx.Response:
        return self.http.post("/api/reports", headers={"X-CSRFToken": self.http.cookies.get("csrftoken") or ""})

    def budgets(self, client: httpx.Client | None = None) -> dict[str, Any]:
        """What the page shows: the rules that hold for us, and what is left of them."""
        found: dict[str, Any] = (client or self.http).get("/api/budgets").raise_for_status().json()
        return found

    def rule(self, name: str) -> dict[str, Any]:
        """One of them, by its rule's name."""
        rules: dict[str, dict[str, Any]] = {rule["name"]: rule for rule in self.budgets()["rules"]}
        return rules[name]

    def edit_rule(self, name: str, **changes: str) -> float:
        """Open the rule's page in the admin, change fields of its form, save; returns when Save was pressed."""
        url = self.rule(name)["admin"]
        fields = read_form(self.http.get(url).raise_for_status().text, "throttlerule_form")
        unknown = set(changes) - set(fields)
        if unknown:
            raise LookupError(f"the form has no field {', '.join(sorted(unknown))}; it has {', '.join(fields)}")
        pressed = time.monotonic()
        saved = self.http.post(url, data={**fields, **changes, "_save": "Save"})
        if saved.status_code != 302:
            raise ValueError(f"the admin did not save the rule {name}: {saved.status_code}")
        return pressed

    def each_worker(self, wanted: int = 2, patience: float = 30.0) -> dict[int, httpx.Client]:
        """A connection to each worker, which stays with it as long as it is kept alive."""
        found: dict[int, httpx.Client] = {}
        spare: list[httpx.Client] = []
        deadline = time.monotonic() + patience
        while len(found) < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {len(found)} of {wanted} workers answer")
            client = self._client()
            worker = self.budgets(client)["worker"]
            # One that is not needed stays open meanwhile: an idle worker takes the next connection.
            spare.append(client) if worker in found else found.update({worker: client})
        close_all(spare)
        return found

    def open_socket(self) -> Socket:
        """One more socket; raises Refused when the handshake is answered with a status."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        try:
            connection = connect(
                f"ws://{self.address}/ws/chat",
                origin=Origin(f"http://{self.address}"),  # a site without one could be any site
                additional_headers={"Cookie": cookies},
                proxy=None,
                close_timeout=1,
            )
        except InvalidStatus as refusal:
            response = refusal.response
            raise Refused(response.status_code, response.headers.get("Retry-After")) from None
        self.sockets.append(Socket(connection))
        return self.sockets[-1]

    def close(self) -> None:
        """Close every socket and connection."""
        close_all(self.sockets)
        self.sockets.clear()
        self.http.close()

    def _client(self) -> httpx.Client:
        cookies = self.http.cookies if hasattr(self, "http") else None
        # The environment may name a proxy, which has no business between us and this machine.
        return httpx.Client(base_url=f"http://{self.address}", cookies=cookies, trust_env=False, timeout=30)


class Socket:
    """An open socket, which knows its worker."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.worker: int = self._hear("hello")["worker"]

    def say(self, number: int, text: str = "hello") -> bool:
        """Send one message; whether it was echoed rather than refused."""
        self.connection.send(json.dumps({"id": number, "text": text}))
        return bool(self._hear("echo", "error")["type"] == "echo")

    def hears(self, text: str, patience: float) -> bool:
        """Whether somebody else's message that begins like this comes in time."""
        try:
            while not self._hear("heard", patience=patience)["text"].startswith(text):
                pass
        except TimeoutError:
            return False
        return True

    def unheard(self, text: str) -> dict[str, Any]:
        """Say something; why it is kept from the room, nothing if it was sent there."""
        self.connection.send(json.dumps({"id": text, "text": text}))
        self._hear("echo")
        try:
            return self._hear("unheard", patience=UNHEARD_SECONDS)
        except TimeoutError:
            return {}

    @property
    def is_open(self) -> bool:
        """False once the other side has gone."""
        try:
            self.connection.ping().wait(0.5)
            return self.connection.state.name == "OPEN"
        except ConnectionClosed:
            return False

    def close(self) -> None:
        self.connection.close()

    def _hear(self, *kinds: str, patience: float = 20) -> dict[str, Any]:
        while True:
            frame: dict[str, Any] = json.loads(self.connection.recv(timeout=patience))
            if frame["type"] in kinds:
                return frame


def close_all(things: Iterable[httpx.Client | Socket]) -> None:
    """Close clients and sockets alike."""
    for thing in things:
        thing.close()
