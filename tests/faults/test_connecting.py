"""What happens before the first command: names that are not found, handshakes that do not end, bad certificates."""

import gc
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from django_throttle.core import Rule
from django_throttle.exceptions import StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.failures import MAX_CONSECUTIVE_FAILURES
from tests.faults.conftest import BOUND, DEADLINE, KeyedCaller
from tests.servers import RedisServer, slack, wait_until

pytestmark = pytest.mark.usefixtures("servers")

ALLOW = Rule("allow", "100/h", algorithm="fixed_window", on_store_failure="allow")
SLOW = 0.4  # seconds that a name takes, beyond every bound
Make, Greet = Callable[..., KeyedCaller], Callable[[socket.socket], object]


class Listener(ThreadingTCPServer):
    """Takes connections on a port and hands each to ``greet``, in a thread of its own."""

    daemon_threads, block_on_close = True, False

    def __init__(self, greet: Greet) -> None:
        super().__init__(("127.0.0.1", 0), BaseRequestHandler)
        self.greet = greet

    def finish_request(self, request: Any, _: object) -> None:
        with suppress(OSError):  # the other side does not want what it was shown
            self.greet(request)
            while request.recv(65536):  # else it is closed at once
                pass


@pytest.fixture
def listen() -> Iterator[Callable[[Greet], int]]:
    with ExitStack() as stack:

        def listen(greet: Greet) -> int:
            listener = stack.enter_context(Listener(greet))
            stack.callback(listener.shutdown)
            threading.Thread(target=listener.serve_forever, args=(0.05,)).start()
            return int(listener.server_address[1])

        yield listen


def certified(folder: Path, days: int) -> ssl.SSLContext:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*private))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F19")
def test_a_handshake_that_hangs(caller: Make, listen: Any, figure: Any) -> None:
    call = caller(f"rediss://127.0.0.1:{listen(lambda taken: None)}/0", ALLOW)
    assert [call().degraded for _ in range(3)] == [True] * 3
    figure(f"longest {driver(call)} call", call.slowest * 1000, "ms")
    assert call.slowest <= BOUND


def test_certificates_that_are_read_too_late_close_nothing_twice(listen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ssl.create_default_context

    def late(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        time.sleep(DEADLINE * 1.1)
        return read(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", late)
    store = RedisStore(f"rediss://127.0.0.1:{listen(lambda taken: None)}/0", deadline=DEADLINE)
    with pytest.raises(StoreError) as failed:
        Limiter([ALLOW], store).reset("user:1")
    others = [os.dup(0) for _ in range(10)]  # one of them has the number that the connection had
    del failed
    gc.collect()
    for other in others:
        os.close(other)  # raises OSError where it was closed


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F19")
def test_certificates_are_read_once_elsewhere(caller: Make, listen: Any, monkeypatch: Any, figure: Any) -> None:
    read, readers = ssl.create_default_context, list[int]()

    def slow(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        readers.append(threading.get_ident())
        time.sleep(SLOW)  # as on a busy machine
        return read(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", slow)
    call = caller(f"rediss://127.0.0.1:{listen(lambda taken: None)}/0", ALLOW)
    assert [call().degraded for _ in range(MAX_CONSECUTIVE_FAILURES)] == [True] * MAX_CONSECUTIVE_FAILURES
    figure(f"longest {driver(call)} call while certificates take 400 ms", call.slowest * 1000, "ms")
    assert call.slowest <= BOUND
    assert len(readers) == 1
    assert readers != [threading.get_ident()]


def driver(call: KeyedCaller) -> str:
    return "synchronous" if call.run is None else "asynchronous"


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F19")
def test_an_expired_certificate(caller: Make, listen: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = certified(tmp_path, days=-1)
    port = listen(lambda taken: context.wrap_socket(taken, server_side=True))
    call = caller(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/certificate.pem", ALLOW)
    assert [call.surely().degraded for _ in range(MAX_CONSECUTIVE_FAILURES)] == [True] * MAX_CONSECUTIVE_FAILURES
    assert call.slowest <= slack(1.0)
    assert "certificate has expired" in caplog.text


def test_a_certificate_is_read_again_when_replaced(
    caller: Make, listen: Any, tmp_path: Path, server: RedisServer
) -> None:
    shown: list[socket.socket] = []

    def pass_on(taken: socket.socket) -> None:
        near = context.wrap_socket(taken, server_side=True)
        shown.append(near)
        with near, socket.create_connection(("127.0.0.1", server.port)) as far:
            while True:  # a script may be longer than what TLS carries at once
                for one in select.select([near, far], [], [])[0]:
                    if not (part := one.recv(65536)):
                        return
                    (far if one is near else near).sendall(part)

    context = certified(tmp_path, days=1)
    path, good = tmp_path / "certificate.pem", (tmp_path / "certificate.pem").read_text()
    path.write_text("not yet")
    call = caller(f"rediss://127.0.0.1:{listen(pass_on)}/0?ssl_ca_certs={path}", ALLOW)
    assert call.surely().degraded
    path.write_text(good)
    assert [call.surely().remaining for _ in range(3)] == [99, 98, 97]
    context = certified(tmp_path, days=2)
    shown.pop().shutdown(socket.SHUT_RDWR)
    wait_until(lambda: not call.surely().degraded)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """``resolver(answer)``: what becomes of a question for the name of the Redis server."""
    usual = socket.getaddrinfo

    def put(answer: Callable[[], object]) -> None:
        def ask(host: Any, *arguments: Any, **options: Any) -> Any:
            is_ours = host == "redis.invalid" and (answer() or True)
            return usual("127.0.0.1" if is_ours else host, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", ask)

    return put


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F20")
def test_a_slow_resolver(caller: Make, resolver: Any, figure: Any) -> None:
    call = caller("redis://redis.invalid:1/0", ALLOW)
    resolver(lambda: time.sleep(SLOW))
    calls = 0
    while not call.store.breaker.is_open:
        assert call().degraded
        calls += 1
    figure(f"longest {driver(call)} call, with a resolver of {SLOW * 1000:.0f} ms", call.slowest * 1000, "ms")
    # A loop that has stood still is no failure of Redis'.
    assert (
        calls == MAX_CONSECUTIVE_FAILURES
        if call.run is None
        else calls in range(MAX_CONSECUTIVE_FAILURES, 2 * MAX_CONSECUTIVE_FAILURES)
    )
    assert call.slowest <= (slack(SLOW + 0.05) if call.run is None else BOUND)
    call.slowest = 0.0
    assert call().degraded
    assert call.slowest <= slack(0.05), "the breaker is open"


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F20")
def test_a_name_that_is_not_found(caller: Make, resolver: Any) -> None:
    def unknown() -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    call = caller("redis://redis.invalid:6379/0", ALLOW)
    resolver(unknown)
    assert [call().degraded for _ in range(3)] == [True] * 3
    assert call.slowest <= BOUND
