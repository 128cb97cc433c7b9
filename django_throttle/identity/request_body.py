"""Protection of a request's body from functions of the site that read it before the view.

Django and REST framework parse a body once. If parsing fails, they raise, and the form is empty from then on. After a
function of the site that fails, or handles the error, the view would run with an empty form.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import IO, Any, Final

from django.conf import settings
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.core.files import File
from django.http import HttpRequest, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.http.request import RawPostDataException
from django.utils.datastructures import MultiValueDict

#: Attributes in which Django and REST framework keep a body that they have read.
BODY_ATTRIBUTES: Final = ("_body", "_post", "_files", "_read_started", "_stream", "_upload_handlers")
REST_BODY_ATTRIBUTES: Final = ("_data", "_files", "_full_data", "_stream")
#: Error of the view that reads a lost body.
LOST: Final = "A function of a rule has read the body as a stream, so it cannot be read again; see the log."
#: Bytes that are kept if DATA_UPLOAD_MAX_MEMORY_SIZE is None.
MAX_KEPT_BYTES: Final = 2_621_440
#: Bytes that Django may read beyond its limit before it notices.
READ_AHEAD_BYTES: Final = 131_072
_MISSING: Final = object()


def is_request_error(error: BaseException) -> bool:
    """Return True for an error of the request, such as a malformed body. It is no fault of the site's function."""
    rest = sys.modules.get("rest_framework.exceptions")
    errors = (MultiPartParserError, SuspiciousOperation, BadRequest, UnreadablePostError)
    return isinstance(error, errors) or (rest is not None and isinstance(error, rest.APIException))


class StreamReadError(Exception):
    """Error of a function of the site that has read a body too large to be kept."""

    def __init__(self) -> None:
        super().__init__("reads the body as a stream, which the view then cannot read")


class KeptBody:
    """Context manager around functions that may read the bodies of the requests among the subjects.

    If a function fails, or gets an empty form, the requests are restored as unread, so the view meets the same error.
    If that is impossible, as for an upload that is too large to be kept, the view gets an error when it reads the body.
    If the function has read the stream itself, raise StreamReadError. Files that were read are rewound.
    """

    def __init__(self, subjects: Iterable[object]) -> None:
        self._backups: list[_RequestBackup] = []
        for subject in subjects:
            request = getattr(subject, "_request", subject)
            if isinstance(request, HttpRequest):
                self._backups.append(_RequestBackup(request, subject))

    def __enter__(self) -> KeptBody:
        for backup in self._backups:
            backup.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        lost = [backup for backup in self._backups if not backup.end(error)]
        if lost:
            raise StreamReadError from error


class _RequestBackup:
    """State of a request and of its REST framework wrapper, and a record of the body that is read."""

    def __init__(self, request: HttpRequest, outer: object) -> None:
        self._states: list[tuple[dict[str, Any], tuple[str, ...]]] = [(vars(request), BODY_ATTRIBUTES)]
        if outer is not request:
            self._states.append((vars(outer), REST_BODY_ATTRIBUTES))
        self._request: Any = request

    def begin(self) -> None:
        self._before = [(state, {name: state.get(name, _MISSING) for name in names}) for state, names in self._states]
        self._positions = {file: file.tell() for file in self._files() if file.seekable()}
        self._closed_files = {file for file in self._files() if file.closed}
        stream = self._before[0][1]["_stream"]
        is_read = getattr(self._request, "_read_started", True) or stream is None
        self._recorded = None if is_read else _RecordedInput(stream)
        if self._recorded is not None:
            self._request._stream = self._recorded

    def end(self, error: BaseException | None) -> bool:
        """Restore the request if its body was read without success. Return False if the function has read the stream.

        ``error`` is the function's.
        """
        recorded = self._recorded
        if isinstance(getattr(self._request, "_stream", None), _LostInput):
            return True
        is_empty, has_closed_files = self._is_empty(), not self._rewind_files()
        if error is not None or is_empty or has_closed_files:
            if recorded is None or recorded.rewind():
                self._restore()
                if recorded is not None and recorded.has_begun:
                    self._request._stream = recorded
                return True
            if is_empty:
                return self._lose(recorded, error)
        if recorded is not None:
            if not hasattr(self._request, "_body") and (body := self._body_on(recorded)) is not None:
                self._request._body, self._request._stream = body, BytesIO(body)
            recorded.stop_recording()
            if self._request._stream is recorded:
                self._request._stream = recorded.stream
        return True

    def _lose(self, recorded: _RecordedInput, error: BaseException | None) -> bool:
        """Let the view get an error when it reads the body. Return False if the function has read the stream."""
        is_parsed = any(
            state.get(name, _MISSING) is not before.get(name, _MISSING)
            for state, before in self._before
            for name in ("_upload_handlers", "_full_data")
        )
        recorded.stop_recording()
        self._restore()
        if error is None or not is_request_error(error):
            error = BadRequest("The body is malformed.") if is_parsed else RawPostDataException(LOST)
        self._request._stream = _LostInput(error)
        return is_parsed

    def _restore(self) -> None:
        for state, before in self._before:
            for name, value in before.items():
                if value is _MISSING:
                    state.pop(name, None)
                else:
                    state[name] = value

    def _files(self) -> Iterator[File[bytes]]:
        """Yield the files of the form, if it was parsed."""
        for state, _ in self._states:
            if isinstance(form := state.get("_files"), MultiValueDict):  # REST framework has a class in its place
                for _, files in form.lists():
                    yield from (file for file in files if isinstance(file, File))

    def _rewind_files(self) -> bool:
        """Rewind files that the function has read. Return False if it has closed a file."""
        for file in self._files():
            if file.seekable():
                file.seek(self._positions.get(file, 0))
            elif file.file is not None and file.closed and file not in self._closed_files:
                return False
        return True

    def _body_on(self, recorded: _RecordedInput) -> bytes | None:
        """Return the body from which a form was parsed, which Django does not keep. Return None if it is too large."""
        body, max_bytes = recorded.content(), settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        return None if body is None or (max_bytes is not None and len(body) > max_bytes) else body

    def _is_empty(self) -> bool:
        """Return True if the body was read without success, as after an error that the function handled."""
        for state, before in self._before:
            for name in ("_post", "_full_data"):
                value = state.get(name, _MISSING)
                if value is not _MISSING and value is not before.get(name, value):
                    return not value and not state.get("_files")
        return self._recorded is not None and self._recorded.has_begun and not hasattr(self._request, "_body")


class _LostInput(BytesIO):
    """Input that was read before the view, and cannot be read again."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def read(self, size: int | None = -1) -> bytes:
        raise self._error

    readline = read


class _RecordedInput:
    """Input stream of a server that records the bytes read, and can be rewound."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.has_begun = False
        self._is_closed = False
        max_bytes = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        self._left = (MAX_KEPT_BYTES if max_bytes is None else max_bytes) + READ_AHEAD_BYTES
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
        """Postpone the close of the input, because it may be read again."""
        self._is_closed = True

    def content(self) -> bytes | None:
        """Return all bytes read, or None if nothing or too much was read."""
        return b"".join(self._parts) if self.has_begun and self._parts is not None else None

    def stop_recording(self) -> None:
        """Discard the recorded bytes, and close the input if that was postponed."""
        self._parts = None
        if self._is_closed:
            self.stream.close()

    def rewind(self) -> bool:
        """Go back to the beginning. Return False if too much was read."""
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
