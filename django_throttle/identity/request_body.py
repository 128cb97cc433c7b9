"""The body of a request, which functions of the site may read before the view does.

Django and REST framework parse a body once. Where that fails they raise, and have an empty form from then on. So a
function that fails, or that handles the error, would have the view run on nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from io import BytesIO
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.http import HttpRequest, UnreadablePostError
from django.http.multipartparser import MultiPartParserError

# What Django and REST framework note of a body that they have read.
READ: Final = ("_body", "_post", "_files", "_read_started", "_stream", "_upload_handlers")
READ_BY_REST: Final = ("_data", "_files", "_full_data", "_stream")
# Bytes that are kept, where Django has no limit of its own for what it reads at once.
MAX_CACHED_CHARGES: Final = 2_621_440
READ_AHEAD: Final = 131_072  # bytes that are read before Django notices that there is too much
_MISSING: Final = object()


def is_of_request(error: BaseException) -> bool:
    """Return whether an error is the request's own, as of a malformed body, and no mistake of the site's function."""
    rest = sys.modules.get("rest_framework.exceptions")
    errors = (MultiPartParserError, SuspiciousOperation, BadRequest, UnreadablePostError)
    return isinstance(error, errors) or (rest is not None and isinstance(error, rest.APIException))


class KeptBody:
    """Context manager around functions that may read the bodies of these requests; other subjects are left alone.

    Where one fails, or finds nothing in a body, each request is as unread as before: the view meets the same error.
    ``is_lost`` is True where that cannot be done, as of an upload that is too large to be kept.
    """

    def __init__(self, subjects: Iterable[Any]) -> None:
        self.is_lost = False
        self._kept: list[_Kept] = []
        for subject in subjects:
            request = getattr(subject, "_request", subject)
            if isinstance(request, HttpRequest):
                self._kept.append(_Kept(request, subject))

    def __enter__(self) -> KeptBody:
        for kept in self._kept:
            kept.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for kept in self._kept:
            self.is_lost = not kept.end(error is not None) or self.is_lost


class _Kept:
    """A request as it was, Django's and the one around it, and what has been read of its body since."""

    def __init__(self, request: HttpRequest, outer: Any) -> None:
        self._states: list[tuple[dict[str, Any], tuple[str, ...]]] = [(vars(request), READ)]
        if outer is not request:
            self._states.append((vars(outer), READ_BY_REST))
        self._request: Any = request

    def begin(self) -> None:
        self._before = [(state, {name: state.get(name, _MISSING) for name in names}) for state, names in self._states]
        stream = self._before[0][1]["_stream"]
        is_read = getattr(self._request, "_read_started", True) or stream is None
        self._tape = None if is_read else _Tape(stream)
        if self._tape is not None:
            self._request._stream = self._tape

    def end(self, has_failed: bool) -> bool:
        """Leave the request as it was where nothing has come of its body; return False where that is impossible."""
        tape = self._tape
        if has_failed or self._is_empty():
            if tape is not None and not tape.rewind():
                return False
            for state, before in self._before:
                for name, value in before.items():
                    if value is _MISSING:
                        state.pop(name, None)
                    else:
                        state[name] = value
            if tape is not None and tape.has_begun:
                self._request._stream = tape
        elif tape is not None:
            if not hasattr(self._request, "_body") and (body := self._body_on(tape)) is not None:
                self._request._body, self._request._stream = body, BytesIO(body)
            tape.let_go()
            if self._request._stream is tape:
                self._request._stream = tape.stream
        return True

    def _body_on(self, tape: _Tape) -> bytes | None:
        """Return the body that a form was parsed from as it came in, which Django does not keep; None if too large."""
        body, most = tape.content(), settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        return None if body is None or (most is not None and len(body) > most) else body

    def _is_empty(self) -> bool:
        """Return whether nothing has come of what was read meanwhile, as after an error that the function handled."""
        for state, before in self._before:
            for name in ("_post", "_full_data"):
                value = state.get(name, _MISSING)
                if value is not _MISSING and value is not before.get(name, value):
                    return not value and not state.get("_files")
        return self._tape is not None and self._tape.has_begun and not hasattr(self._request, "_body")


class _Tape:
    """A server's input that keeps what is read of it, and can be read once more from the beginning."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.has_begun = False
        self._is_closed = False
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        self._left = (MAX_CACHED_CHARGES if most is None else most) + READ_AHEAD
        self._parts: list[bytes] | None = []
        self._again = BytesIO()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def read(self, size: int | None = -1) -> bytes:
        part = self._again.read(size)
        missing = -1 if size is None or size < 0 else size - len(part)
        return part + self._keep(self.stream.read(missing)) if missing else part

    def readline(self, size: int | None = -1) -> bytes:
        line = self._again.readline(size)
        missing = -1 if size is None or size < 0 else size - len(line)
        return line if not missing or line.endswith(b"\n") else line + self._keep(self.stream.readline(missing))

    def close(self) -> None:
        """Close the input later: it may have to be read again."""
        self._is_closed = True

    def content(self) -> bytes | None:
        """Return all that was read; None where nothing or too much was."""
        return b"".join(self._parts) if self.has_begun and self._parts is not None else None

    def let_go(self) -> None:
        """Keep nothing more."""
        self._parts = None
        if self._is_closed:
            self.stream.close()

    def rewind(self) -> bool:
        """Go back to the beginning; return False where too much was read for that."""
        if self._parts is None:
            return False
        self._is_closed = False
        self._again = BytesIO(b"".join(self._parts))
        return True

    def _keep(self, part: bytes) -> bytes:
        self.has_begun = True
        self._left -= len(part)
        if self._parts is not None and self._left >= 0:
            self._parts.append(part)
        else:
            self._parts = None
        return part
