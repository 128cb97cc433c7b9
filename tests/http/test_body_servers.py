"""What views read over real servers, however clients say how much they send: never more bytes than a rule allows."""

import socket
from collections.abc import Iterator
from itertools import product
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.http.servers import ASGI, WSGI, Server
from tests.servers import RedisServer

LIMIT = 1000
RULES: dict[str, Any] = {
    "slots": {
        "rate": f"{LIMIT}/h", "unit": "bytes", "algorithm": "fixed_window", "key": "tests.http.served.caller",
        "scopes": ["middleware", "drf"],
    }
}  # fmt: skip
DOORS = ["middleware", "decorator", "drf"]
CHUNKED = "Transfer-Encoding: chunked\r\n"
# How a client says how long its body is, and whether it comes in chunks.
CLAIMS = {
    "the truth": ("Content-Length: {size}\r\n", False), "in chunks": (CHUNKED, True),
    "in chunks, and one byte": ("Content-Length: 1\r\n" + CHUNKED, True),
    "in chunks, and none": ("Content-Length: 0\r\n" + CHUNKED, True),
    "chunks first": (CHUNKED + "Content-Length: 1\r\n", True), "with a sign": ("Content-Length: +{size}\r\n", False),
    "in groups": ("Content-Length: 0_{size}\r\n", False), "with zeros": ("Content-Length: 000{size}\r\n", False),
    "twice": ("Content-Length: 1\r\nContent-Length: {size}\r\n", False), "nothing": ("", False),
}  # fmt: skip


@pytest.fixture(scope="module", params=(*ASGI, *WSGI, "wsgiref"))
def server(request: pytest.FixtureRequest, redis_server: RedisServer, servers: None) -> Iterator[Server]:
    with Server(request.param, redis_server, RULES, RETRY_JITTER=0.0) as running:
        yield running


def post(port: int, where: str, claim: str, size: int) -> tuple[int, str]:
    """The status and the end of the answer; 0 and nothing where the server breaks off without one."""
    said, chunked = CLAIMS[claim]
    body = b"x" * size
    if chunked:
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts(body)) + b"0\r\n\r\n"
    head = f"POST {where} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{said.format(size=size)}\r\n"
    return ask(port, head.encode() + body)


def parts(body: bytes) -> list[bytes]:
    return [body[at : at + 700] for at in range(0, len(body), 700)]


def ask(port: int, request: bytes) -> tuple[int, str]:
    """As a client that sends whatever it likes, and reads until the connection is closed."""
    text = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        try:
            line.sendall(request)
            while part := line.recv(65536):
                text += part
        except ConnectionError:
            pass
    if not text:
        return 0, ""
    head, _, body = text.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = body.partition(b"\r\n")[2].partition(b"\r\n")[0]
    return int(head.split()[1]), body.decode()


def read(answer: tuple[int, str]) -> int:
    return int(answer[1]) if answer[0] == 200 else 0


def ways(server: Server) -> list[str]:
    """Return how views read; wsgiref hands out its socket, so only what has a length is read there."""
    return ["body"] if server.name == "wsgiref" else ["body", "read"] + ["raw"] * (server.name in WSGI)


# What a claim comes to is between the server and Django; what a door makes of it, two of them show.
@pytest.mark.parametrize(
    ("claim", "door"),
    [(claim, "middleware") for claim in CLAIMS] + list(product(["the truth", "in chunks"], ["decorator", "drf"])),
)
def test_no_claim_is_a_way_around(server: Server, door: str, claim: str) -> None:
    for by in ways(server):
        where = f"/{door}/size/{uuid4().hex}?by={by}"
        answers = [post(server.port, where, claim, size) for size in (400, 20_000, 400, 400)]
        assert sum(map(read, answers)) <= LIMIT, (by, answers)
        assert not any(status == 500 for status, _ in answers), answers
        has_length = claim == "the truth" or (server.name == "wsgiref" and claim.startswith(("with ", "in groups")))
        if has_length or (claim == "in chunks" and (server.name in ASGI or by == "raw")):
            assert [status for status, _ in answers] == [200, 429, 200, 429], by


@pytest.mark.parametrize("server", ["wsgiref"], indirect=True)
@pytest.mark.parametrize(("digits", "status"), [(20, 429), (4000, 429), (5000, 200)])
def test_a_length_beyond_all_bounds_is_no_failure(server: Server, digits: int, status: int) -> None:
    """Other servers answer 400 by themselves. Django reads nothing where the number is too long for Python."""
    head = f"POST /middleware/size/{uuid4().hex}?by=nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert ask(server.port, f"{head}Content-Length: {'9' * digits}\r\n\r\n".encode())[0] == status


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("server", ["hypercorn", "hypercorn-wsgi"], indirect=True)
def test_over_http_2_without_a_length(server: Server, door: str) -> None:
    with httpx.Client(verify=False, http1=False, http2=True) as client:
        for by in ways(server):
            where = f"http://127.0.0.1:{server.port}/{door}/size/{uuid4().hex}?by={by}"
            answers = [client.post(where, content=iter(parts(b"x" * size))) for size in (400, 20_000, 400, 400)]
            assert {answer.http_version for answer in answers} == {"HTTP/2"}
            found = [int(answer.text) for answer in answers if answer.status_code == 200]
            assert sum(found) <= LIMIT
            if server.name not in WSGI or by == "raw":
                assert [answer.status_code for answer in answers] == [200, 429, 200, 429]
