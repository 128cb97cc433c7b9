"""Deadlines for all I/O of a call, on blocking sockets and on event loops."""

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

CONNECT_SECONDS: Final = 2.0  # minimum time allowed for connecting
WATCHED_CONNECT_SECONDS: Final = 0.5  # the same for a primary under Sentinels, as another may take over meanwhile
SLOW_CONNECTING: Final = (
    "connecting to Redis took %.0f ms, longer than DEADLINE (%.0f ms); calls meanwhile were decided without Redis: "
    "raise DEADLINE, or find out what delays connections"
)

T = TypeVar("T")
logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()


def connect_seconds(deadline: float, *, is_watched: bool) -> float:
    """Return how long connecting may take, in the background of calls with this deadline."""
    return max(WATCHED_CONNECT_SECONDS if is_watched else CONNECT_SECONDS, deadline)


def log_slow_connecting(took: float, deadline: float) -> None:
    """Log a warning if connecting took longer than the deadline of a call."""
    if took > deadline and _log_throttle.try_acquire():
        logger.warning(SLOW_CONNECTING, took * 1000, deadline * 1000)


# If this share of the deadline is left, a kernel timeout of the whole deadline is precise enough.
MIN_KERNEL_SHARE: Final = 0.9
LAST_READ_SECONDS: Final = 0.001  # 0 would make the socket non-blocking


@dataclass(slots=True)
class _TimeLimit:
    """End of the I/O of a block, in monotonic seconds. ``read_late`` is True after a read past the end."""

    until: float
    read_late: bool = False


# A context variable, as under gevent one thread runs many contexts, even if it was patched after this import.
_current_limit: ContextVar[_TimeLimit | None] = ContextVar("django_throttle.deadline", default=None)


def seconds_left(default: T) -> float | T:
    """Return the seconds left, or ``default`` without a deadline. Raise TimeoutError if none are left."""
    limit = _current_limit.get()
    if limit is None:
        return default
    remaining_seconds = limit.until - time.monotonic()
    if remaining_seconds <= 0:
        raise TimeoutError("deadline passed")
    return remaining_seconds


def _seconds_to_read(default: float | None) -> float | None:
    """Return the seconds left for a read. After the deadline, one last short read gets what has arrived meanwhile."""
    limit = _current_limit.get()
    if limit is None or limit.read_late or limit.until > time.monotonic():
        return seconds_left(default)
    limit.read_late = True
    return LAST_READ_SECONDS


class Deadline:
    """Context manager that ends all Redis I/O of its block within ``seconds``, and within any outer deadline."""

    __slots__ = ("_seconds", "_token")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        outer, until = _current_limit.get(), time.monotonic() + self._seconds
        self._token = _current_limit.set(_TimeLimit(until if outer is None or until < outer.until else outer.until))

    def __exit__(self, kind: object, error: BaseException | None, _traceback: object) -> None:
        limit = _current_limit.get()
        _current_limit.reset(self._token)
        if limit is None or not isinstance(error, (TimeoutError, RedisTimeoutError)):
            return
        if time.monotonic() > limit.until + LATE_SECONDS and is_patched_by_gevent():
            raise LoopBlocked(BLOCKED_TEXT) from error


LATE_SECONDS: Final = 0.02  # a wait that ends this late was held up by a blocked loop
BLOCKED_TEXT: Final = "the event loop was busy with something else"


def is_patched_by_gevent() -> bool:
    """Return True if gevent has replaced this process' sockets, so that other greenlets may hold them up."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


MIN_ROUND_TRIP_SECONDS: Final = 0.02  # after the deadline, for undoing and for reading the state

# Start of the current call in monotonic seconds, if its commands share one deadline.
call_began: ContextVar[float | None] = ContextVar("django_throttle.call", default=None)


@contextmanager
def one_deadline() -> Iterator[None]:
    """Make all commands in the block share one deadline. After it, each has MIN_ROUND_TRIP_SECONDS."""
    call_began.set(time.monotonic())
    try:
        yield
    finally:
        call_began.set(None)  # not by a token: an abandoned coroutine is closed in another context


def seconds_for(seconds: float | None, deadline: float) -> float:
    """Return how long a round trip may take: ``seconds`` or a whole ``deadline``, at most the rest of a shared one."""
    started_at = call_began.get()
    if started_at is None:
        return seconds or deadline
    return min(seconds or deadline, max(started_at + deadline - time.monotonic(), MIN_ROUND_TRIP_SECONDS))


EVENTLET_FAULT: Final = "eventlet has replaced this process's sockets, which ignore deadlines: use gevent, or threads"


def is_patched_by_eventlet() -> bool:
    """Return True if eventlet has replaced the sockets. A Redis that hangs would then hang this process."""
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("socket"))


HAS_KERNEL_TIMEOUTS: Final = sys.platform == "linux"  # on other systems the option has another format


def _set_kernel_timeouts(sock: socket.socket, seconds: float) -> None:
    sock.settimeout(None)
    value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))  # a timeval
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)


class DeadlineSocket:
    """Socket whose blocking reads and writes also obey ``Deadline``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._unread = b""
        # gevent's sockets never block, so the kernel's timeouts have no effect on them.
        self._is_plain = HAS_KERNEL_TIMEOUTS and type(sock) is socket.socket and isinstance(sock, _socket.socket)
        self._note_timeout(sock.gettimeout())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, timeout: float | None) -> None:
        self._note_timeout(timeout)
        self._socket.settimeout(timeout)

    def _note_timeout(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._min_kernel_seconds = MIN_KERNEL_SHARE * timeout if timeout and self._is_plain else inf

    def push_back(self, chunk: bytes) -> None:
        """Make the next ``recv`` return ``chunk``."""
        self._unread = chunk

    def recv(self, size: int, *flags: int) -> bytes:
        if self._unread and not flags:
            chunk, self._unread = self._unread[:size], self._unread[size:]
            return chunk
        self._set_timeout(_seconds_to_read)
        return self._socket.recv(size, *flags)

    def recv_into(self, buffer: bytearray) -> int:  # hiredis' parser reads so
        chunk = self.recv(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def sendall(self, chunk: bytes, *flags: int) -> None:
        self._set_timeout(seconds_left)
        self._socket.sendall(chunk, *flags)

    def kernel_timed_socket(self, seconds: float) -> socket.socket | None:
        """Return the plain socket with kernel timeouts, which save the system calls of Python's timeouts.

        Return None if its timeout differs from ``seconds``, inside a ``Deadline``, and for other sockets.
        """
        if seconds < self._min_kernel_seconds or seconds > self._timeout or _current_limit.get() is not None:  # type: ignore[operator]
            return None
        sock = self._socket
        if sock.gettimeout() is not None:
            _set_kernel_timeouts(sock, self._timeout)  # type: ignore[arg-type]
        return sock

    def _set_timeout(self, limit_seconds: Callable[[float | None], float | None]) -> None:
        if self._timeout != 0:  # 0 polls without waiting
            self._socket.settimeout(limit_seconds(self._timeout))


class Certificates:
    """Cache of the TLS context of a client's connections. A thread reads it, as that may outlast a deadline."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[int, ...], Future[ssl.SSLContext]] = {}

    def of(self, connection: Any, read: Callable[[], ssl.SSLContext]) -> Future[ssl.SSLContext]:
        """Return the context. Read it again after a failure, in a fork, and if a file has changed."""
        files = [Path(path) for path in (connection.ca_certs, connection.certfile, connection.keyfile) if path]
        state = (os.getpid(), *[path.stat().st_mtime_ns for path in files])
        context = self._contexts.get(state)
        if context is None or (context.done() and context.exception()):
            context = ThreadPoolExecutor(1).submit(read)
            self._contexts = {state: context}
        return context


Credentials = tuple[str] | tuple[str, str]  # a password, or a name and a password

MAX_CREDENTIALS_AGE_SECONDS: Final = 10.0  # of credentials whose caller has given up


class BoundedCredentials(CredentialProvider):
    """Credential provider that calls a site's ``provider`` in a thread, within the deadline of a call.

    If a caller gives up, the next connection gets the credentials.
    """

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._pending: tuple[Future[Credentials], float] | None = None  # with the start in monotonic seconds

    def get_credentials(self) -> Credentials:
        """Return the credentials within the current deadline. Raise redis-py's errors if the provider fails."""
        future = self._ask()
        try:
            return self._take(future, future.result(seconds_left(MAX_CREDENTIALS_AGE_SECONDS)))
        except TimeoutError:
            raise RedisTimeoutError("the credential provider took longer than DEADLINE") from None

    async def get_credentials_async(self) -> Credentials:
        """Return the credentials without blocking the event loop."""
        if type(self._provider).get_credentials_async is not CredentialProvider.get_credentials_async:
            return await self._provider.get_credentials_async()
        future = self._ask()
        return self._take(future, await asyncio.shield(asyncio.wrap_future(future)))

    def _ask(self) -> Future[Credentials]:
        with self._lock:
            now, pending = time.monotonic(), self._pending
            is_old = pending is not None and pending[0].done() and now - pending[1] > MAX_CREDENTIALS_AGE_SECONDS
            if pending is None or is_old or (pending[0].done() and pending[0].exception()):
                pending = self._pending = Future(), now
                Thread(target=self._answer, args=(pending[0],), name="django_throttle.credentials", daemon=True).start()
            return pending[0]

    def _answer(self, future: Future[Credentials]) -> None:
        try:
            future.set_result(self._provider.get_credentials())
        except Exception as error:  # noqa: BLE001 - code of the site
            future.set_exception(
                RedisConnectionError(f"the credential provider raised {type(error).__name__}: {error}")
            )

    def _take(self, future: Future[Credentials], credentials: Credentials) -> Credentials:
        """Return the credentials, and give them to no other connection."""
        with self._lock:
            if self._pending is not None and self._pending[0] is future:
                self._pending = None
        return credentials


def bounded(provider: CredentialProvider) -> CredentialProvider:
    """Return the provider with a time limit, unless it caches its credentials itself."""
    keeps = isinstance(provider, (UsernamePasswordCredentialProvider, BoundedCredentials))
    return provider if keeps or hasattr(provider, "on_next") else BoundedCredentials(provider)


def with_deadline(connection_class: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return a subclass that obeys ``Deadline``, also while it connects."""
    certificates = Certificates()

    class DeadlineConnection(connection_class):  # type: ignore[misc, valid-type]
        def _connect(self) -> DeadlineSocket:
            process, self.socket_connect_timeout = os.getpid(), seconds_left(self.socket_timeout)
            sock = super()._connect()
            if os.getpid() != process:  # forked meanwhile, under gevent: the socket is the parent's
                sock.close()
                raise ConnectionAbortedError("this process was forked while it connected")
            return DeadlineSocket(sock)

        def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:  # called for TLS connections only
            with_ocsp = self.ssl_validate_ocsp or self.ssl_validate_ocsp_stapled
            tls = not with_ocsp and certificates.of(self, self._read).result(seconds_left(sock.gettimeout()))
            sock.settimeout(seconds_left(sock.gettimeout()))
            return tls.wrap_socket(sock, server_hostname=self.host) if tls else super()._wrap_socket_with_ssl(sock)

        def _read(self) -> ssl.SSLContext:
            # redis-py makes the context while it wraps a socket. This socket has no peer, so nothing is sent.
            with socket.socket() as sock, super()._wrap_socket_with_ssl(sock) as wrapped:
                return wrapped.context  # type: ignore[no-any-return]

    return DeadlineConnection


GRACE_SECONDS: Final = 0.02  # in which a blocked loop may read what has arrived


class LoopDeadline:
    """Async context manager: raises TimeoutError at ``until`` on the loop's clock, LoopBlocked if the loop was busy."""

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
                raise LoopBlocked(BLOCKED_TEXT) from late
            raise

    def _run_out(self) -> None:
        now = asyncio.get_running_loop().time()
        self._is_late = now > self._until + LATE_SECONDS
        self._timeout.reschedule(now + GRACE_SECONDS * self._is_late)
