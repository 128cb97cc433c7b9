"""Deadlines over all I/O of a call, on a blocking socket or on an event loop."""

from __future__ import annotations

import _socket
import asyncio
import logging
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from redis.connection import AbstractConnection
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_throttle.runtime import LogThrottle, in_child
from django_throttle.stores.redis.failures import LoopBlocked

CONNECT_SECONDS: Final = 2.0  # that making a connection may take, at least
WATCHED_CONNECT_SECONDS: Final = 0.5  # to a primary that Sentinels watch: another may take over meanwhile
SLOW: Final = (
    "connecting to Redis took %.0f ms, longer than DEADLINE (%.0f ms): calls meanwhile were decided without it; raise "
    "DEADLINE, or see what holds connections up"
)

T = TypeVar("T")
logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()


def connect_seconds(deadline: float, *, is_watched: bool) -> float:
    """Return how long making a connection may take, in the background of calls with this deadline."""
    return max(WATCHED_CONNECT_SECONDS if is_watched else CONNECT_SECONDS, deadline)


def log_slow_connecting(took: float, deadline: float) -> None:
    """Log that making a connection took longer than a call may."""
    if took > deadline and _log_throttle.due():
        logger.warning(SLOW, took * 1000, deadline * 1000)


# With this share of the deadline left, a socket timeout of the whole deadline is precise enough.
NEARLY: Final = 0.9
LAST_READ: Final = 0.001  # seconds; 0 would make the socket non-blocking


@dataclass(slots=True)
class _TimeLimit:
    """When the I/O of one block ends, in monotonic seconds; ``read_late`` once something was read after that."""

    until: float
    read_late: bool = False


# By context, not by thread: under gevent one thread runs many contexts, also if it was patched after this import.
_limit: ContextVar[_TimeLimit | None] = ContextVar("django_throttle.deadline", default=None)


def seconds_left(otherwise: T) -> float | T:
    """The seconds left, or ``otherwise`` without a deadline. Raises TimeoutError when none are left."""
    limit = _limit.get()
    if limit is None:
        return otherwise
    left = limit.until - time.monotonic()
    if left <= 0:
        raise TimeoutError("deadline passed")
    return left


def _to_read(otherwise: float | None) -> float | None:
    """The same for a read; after the deadline once LAST_READ seconds: a paused process reads what has arrived."""
    limit = _limit.get()
    if limit is None or limit.read_late or limit.until > time.monotonic():
        return seconds_left(otherwise)
    limit.read_late = True
    return LAST_READ


class Deadline:
    """All Redis I/O of this context inside the block ends within ``seconds``, and within any outer limit."""

    __slots__ = ("_seconds", "_token")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        around, until = _limit.get(), time.monotonic() + self._seconds
        self._token = _limit.set(_TimeLimit(until if around is None or until < around.until else around.until))

    def __exit__(self, kind: object, error: BaseException | None, _traceback: object) -> None:
        limit = _limit.get()
        _limit.reset(self._token)
        if limit is None or not isinstance(error, (TimeoutError, RedisTimeoutError)):
            return
        if time.monotonic() > limit.until + LATE and is_patched_by_gevent():
            raise LoopBlocked(BLOCKED) from error


LATE: Final = 0.02  # seconds; a loop that is not blocked ends a wait sooner
BLOCKED: Final = "the event loop was busy with something else"


def is_patched_by_gevent() -> bool:
    """Whether this process's sockets wait on gevent's loop, which other greenlets may hold up."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


LEAST_SECONDS: Final = 0.02  # of a round trip after its deadline: for a last question, and for undoing

# When the present call began, where it sends several commands within one deadline; in monotonic seconds.
call_began: ContextVar[float | None] = ContextVar("django_throttle.call", default=None)


@contextmanager
def one_deadline() -> Iterator[None]:
    """All commands that this context sends inside share one deadline of the store; after it each has LEAST_SECONDS."""
    call_began.set(time.monotonic())
    try:
        yield
    finally:
        call_began.set(None)  # without a token: a coroutine that nobody ends is closed in another context


def seconds_for(asked: float | None, whole: float) -> float:
    """How long a round trip may take: as asked, else a ``whole`` deadline; of a shared one what is left."""
    began = call_began.get()
    if began is None:
        return asked or whole
    return min(asked or whole, max(began + whole - time.monotonic(), LEAST_SECONDS))


EVENTLET: Final = "eventlet has replaced this process's sockets, on which no deadline holds: use gevent, or threads"


def is_patched_by_eventlet() -> bool:
    """Whether eventlet has replaced the sockets: then a Redis that hangs would hang this process for ever."""
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("socket"))


KERNEL_WATCHES: Final = sys.platform == "linux"  # on other systems the option has another format


def _set_kernel_timeouts(sock: socket.socket, seconds: float) -> None:
    sock.settimeout(None)
    value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))  # a timeval
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)


class DeadlineSocket:
    """A socket whose blocking reads and writes also obey ``Deadline``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._unread = b""
        # gevent's sockets never block, so the kernel's timeouts have no effect on them.
        self._is_plain = KERNEL_WATCHES and type(sock) is socket.socket and isinstance(sock, _socket.socket)
        self._note_timeout(sock.gettimeout())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, timeout: float | None) -> None:
        self._note_timeout(timeout)
        self._socket.settimeout(timeout)

    def _note_timeout(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._near = NEARLY * timeout if timeout and self._is_plain else inf

    def unread(self, chunk: bytes) -> None:
        """Have ``chunk`` read once more."""
        self._unread = chunk

    def recv(self, size: int, *flags: int) -> bytes:
        if self._unread and not flags:
            chunk, self._unread = self._unread[:size], self._unread[size:]
            return chunk
        self._set_timeout(_to_read)
        return self._socket.recv(size, *flags)

    def recv_into(self, buffer: bytearray) -> int:  # hiredis' parser reads so
        chunk = self.recv(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def sendall(self, chunk: bytes, *flags: int) -> None:
        self._set_timeout(seconds_left)
        self._socket.sendall(chunk, *flags)

    def bare(self, left: float) -> socket.socket | None:
        """The socket itself, set so that the kernel ends reads and writes after its timeout.

        That saves the system calls by which Python waits with a timeout. None unless that timeout is about the seconds
        ``left``, the socket is a plain one, and no ``Deadline`` is around.
        """
        if left < self._near or left > self._timeout or _limit.get() is not None:  # type: ignore[operator]
            return None
        sock = self._socket
        if sock.gettimeout() is not None:
            _set_kernel_timeouts(sock, self._timeout)  # type: ignore[arg-type]
        return sock

    def _set_timeout(self, left: Callable[[float | None], float | None]) -> None:
        if self._timeout != 0:  # 0 asks whether something is there, and does not wait
            self._socket.settimeout(left(self._timeout))


class Certificates:
    """The TLS context of a client's connections, read once, by a thread: that may take longer than a deadline."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[int, ...], Future[ssl.SSLContext]] = {}

    def of(self, connection: Any, read: Callable[[], ssl.SSLContext]) -> Future[ssl.SSLContext]:
        """The context; read again where that failed, in a fork, and when a file has changed."""
        files = [Path(path) for path in (connection.ca_certs, connection.certfile, connection.keyfile) if path]
        state = (os.getpid(), *[path.stat().st_mtime_ns for path in files])
        context = self._contexts.get(state)
        if context is None or (context.done() and context.exception()):
            context = ThreadPoolExecutor(1).submit(read)
            self._contexts = {state: context}
        return context


Credentials = tuple[str] | tuple[str, str]  # a password, or a name and a password

MAX_CREDENTIALS_AGE: Final = 10.0  # seconds that credentials wait for a connection, after a caller has given up


class BoundedCredentials(CredentialProvider):
    """Credentials of a site's ``provider``, which may ask another service: no longer than a call may wait.

    A thread asks it. When a caller gives up, the next connection has what comes of it.
    """

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._pending: tuple[Future[Credentials], float] | None = None  # and when it was asked, in monotonic seconds

    def get_credentials(self) -> Credentials:
        """Return the credentials within the deadline around this call. Raise redis-py's errors where there are none."""
        future = self._ask()
        try:
            return self._take(future, future.result(seconds_left(MAX_CREDENTIALS_AGE)))
        except TimeoutError:
            raise RedisTimeoutError("the credential provider took longer than DEADLINE") from None

    async def get_credentials_async(self) -> Credentials:
        """Return them without blocking the event loop."""
        if type(self._provider).get_credentials_async is not CredentialProvider.get_credentials_async:
            return await self._provider.get_credentials_async()
        future = self._ask()
        return self._take(future, await asyncio.shield(asyncio.wrap_future(future)))

    def _ask(self) -> Future[Credentials]:
        with self._lock:
            now, pending = time.monotonic(), self._pending
            is_old = pending is not None and pending[0].done() and now - pending[1] > MAX_CREDENTIALS_AGE
            if pending is None or is_old or (pending[0].done() and pending[0].exception()):
                pending = self._pending = Future(), now
                Thread(target=self._answer, args=(pending[0],), name="django_throttle.credentials", daemon=True).start()
            return pending[0]

    def _answer(self, future: Future[Credentials]) -> None:
        try:
            future.set_result(self._provider.get_credentials())
        except Exception as error:  # noqa: BLE001 - the site's own code: a store that cannot be reached
            future.set_exception(
                RedisConnectionError(f"the credential provider raised {type(error).__name__}: {error}")
            )

    def _take(self, future: Future[Credentials], credentials: Credentials) -> Credentials:
        """Return the credentials, which no other connection gets."""
        with self._lock:
            if self._pending is not None and self._pending[0] is future:
                self._pending = None
        return credentials


def bounded(provider: CredentialProvider) -> CredentialProvider:
    """Return the provider with a limit on the time that it takes, unless it keeps its credentials by itself."""
    keeps = isinstance(provider, (UsernamePasswordCredentialProvider, BoundedCredentials))
    return provider if keeps or hasattr(provider, "on_next") else BoundedCredentials(provider)


def with_deadline(connection_class: type[AbstractConnection]) -> type[AbstractConnection]:
    """A subclass that obeys ``Deadline``, also while it connects."""
    certificates = Certificates()

    class DeadlineConnection(connection_class):  # type: ignore[misc, valid-type]
        def _connect(self) -> DeadlineSocket:
            process, self.socket_connect_timeout = os.getpid(), seconds_left(self.socket_timeout)
            sock = super()._connect()
            if os.getpid() != process:  # forked meanwhile, under gevent: the socket is the parent's
                sock.close()
                raise ConnectionAbortedError("this process was forked while it connected")
            return DeadlineSocket(sock)

        def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:  # of connections with TLS alone
            with_ocsp = self.ssl_validate_ocsp or self.ssl_validate_ocsp_stapled
            tls = not with_ocsp and certificates.of(self, self._read).result(seconds_left(sock.gettimeout()))
            sock.settimeout(seconds_left(sock.gettimeout()))
            return tls.wrap_socket(sock, server_hostname=self.host) if tls else super()._wrap_socket_with_ssl(sock)

        def _read(self) -> ssl.SSLContext:
            # redis-py makes a context for each connection; on a socket without a peer nothing is sent.
            with socket.socket() as sock, super()._wrap_socket_with_ssl(sock) as wrapped:
                return wrapped.context  # type: ignore[no-any-return]

    return DeadlineConnection


GRACE: Final = 0.02  # seconds for a blocked loop to read what has arrived


class LoopDeadline:
    """``async with``: raises TimeoutError at ``until`` on the loop's clock, LoopBlocked if the loop was busy."""

    __slots__ = ("_end", "_is_late", "_timeout", "_until")

    def __init__(self, until: float) -> None:
        self._until = until
        self._timeout = asyncio.timeout(None)
        self._is_late = False

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._end = asyncio.get_running_loop().call_at(self._until, self._run_out)

    async def __aexit__(self, *error: object) -> None:
        self._end.cancel()
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]
        except TimeoutError as late:
            if self._is_late:
                raise LoopBlocked(BLOCKED) from late
            raise

    def _run_out(self) -> None:
        now = asyncio.get_running_loop().time()
        self._is_late = now > self._until + LATE
        self._timeout.reschedule(now + GRACE * self._is_late)
