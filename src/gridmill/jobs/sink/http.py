"""Downloads files by HTTP, completely or not at all. If the connection breaks, the download continues from
the same byte.

If the ETag or the modification time of a file is unchanged, the file is not downloaded again.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import HTTP, Source
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.parquet import storage_errors
from gridmill.jobs.secret_values import fill_in
from gridmill.jobs.sink.files import SourceFile, content_of, described, key_of
from gridmill.jobs.sink.source import SourceFiles, SourceRequest

ATTEMPTS = 4
"""The download fails after this number of consecutive attempts that return no byte."""
FIRST_PAUSE_SECONDS = 0.1


class TransferInterruptedError(Exception):
    """The error for a download whose connection failed. The cause may be temporary, so the download is tried
    again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBody:
    """The body of a response to an HTTP request. `chunks` begin at the byte `start` of the file.
    `size_bytes` is the size of the complete file, or None if it is unknown."""

    chunks: Iterator[bytes]
    start: int = 0
    size_bytes: int | None = None


Open = Callable[[int], HttpBody]
"""A function that requests the bytes of a file, beginning at the given position. The response may begin at
an earlier position. Raises TransferInterruptedError."""


def download(open_at: Open, path: Path, name: str, most_bytes: int | None = None) -> None:
    """Download to a temporary file, and rename this file to `path`.

    With `most_bytes`, download only about this number of bytes from the beginning of the file, in a single
    attempt. Raises UnavailableError if the connection breaks repeatedly, StorageError, and the permanent
    errors of `open_at`.
    """
    draft = path.with_name(f"{path.name}.partial")
    with storage_errors(path), draft.open("wb") as file:
        tries = 0
        while not (trouble := _go_on(open_at, file, most_bytes)).whole:
            tries = 1 if trouble.progressed else tries + 1
            if tries >= ATTEMPTS or most_bytes is not None:
                raise UnavailableError(f"cannot be fetched: {trouble.said}", place=name)
            time.sleep(FIRST_PAUSE_SECONDS * 2**tries)
    draft.rename(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HttpTry:
    whole: bool = False
    progressed: bool = False
    said: str = ""


def _go_on(open_at: Open, file: BinaryIO, most_bytes: int | None) -> _HttpTry:
    before = file.tell()
    try:
        body = open_at(before)
        file.seek(body.start)
        file.truncate()
        for chunk in body.chunks:
            file.write(chunk)
            if most_bytes is not None and file.tell() >= most_bytes:
                return _HttpTry(whole=True)
    except TransferInterruptedError as error:
        return _HttpTry(progressed=file.tell() > before, said=str(error))
    if body.size_bytes is not None and file.tell() != body.size_bytes:
        message = f"the download ended after {file.tell():,} of {body.size_bytes:,} bytes"
        return _HttpTry(progressed=file.tell() > before, said=message)
    return _HttpTry(whole=True)


TIMEOUT_SECONDS = 30.0
"""The longest time in seconds without any received byte. The download of a complete file may take longer
than this timeout."""
MOST_REDIRECTS = 10
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


def arrive(request: SourceRequest) -> SourceFiles:
    """Return the file of each URL. If a file was changed, it is downloaded; otherwise the result of the
    earlier download is returned.

    Raises DataError for a file that does not exist, InputError if access is denied, UnavailableError.
    """
    files: list[SourceFile] = []
    waiting: list[SourceFile] = []
    positions: dict[str, Any] = {}
    headers = {
        name: _sendable(fill_in(text, "source.headers"), name)
        for name, text in request.source.headers.items()
    }
    with httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
        for written in dict.fromkeys(request.source.paths):
            if written.startswith(HTTP):
                page = HttpFile(client=client, written=written, headers=headers)
                page.source = request.source
                try:
                    files.append(replace(_arrived(page, request, positions), written=written))
                except _TooRecentError:
                    waiting.append(_waiting(page, request, positions))
    return SourceFiles(files=tuple(files), positions=positions, waiting=tuple(waiting))


def _waiting(page: "HttpFile", request: SourceRequest, positions: dict[str, Any]) -> SourceFile:
    """Return the state that was recorded for a file that may still be incomplete (see the option
    `settled`)."""
    key = key_of(page.written)
    if key in request.positions:
        positions[key] = request.positions[key]
    file = described(
        request.source,
        path=_path(page, request),
        name=page.written,
        content="",
        size_bytes=0,
        fetch=_is_here,
    )
    return replace(file, written=page.written)


def _path(page: "HttpFile", request: SourceRequest) -> Path:
    """Return the path of the downloaded file."""
    name = urlsplit(page.written).path.rpartition("/")[2] or "index"
    return request.work / f"{key_of(page.written)}-{name}"


def _sendable(value: str, name: str) -> str:
    """Return the value if an HTTP header can contain it.

    The value is checked here because a later error would show the value, which may be a secret.
    """
    if not (value.isascii() and value.isprintable()) or value != value.strip():
        raise InputError(
            "the header's value contains a line break, a space at its end, or a character that is not ASCII",
            hint="Check whether the environment variable ends with a line break.",
            place=f"source.headers.{name}",
        )
    return value


def _arrived(page: "HttpFile", request: SourceRequest, positions: dict[str, Any]) -> SourceFile:
    key = key_of(page.written)
    details: Mapping[str, Any] = request.positions.get(key, {})
    path = _path(page, request)
    page.known = details
    try:
        download(page.open_at, path, page.written, request.most_bytes)
    except _NotModifiedError:
        positions[key] = details
        return described(
            request.source,
            path=path,
            name=page.written,
            content=details["content"],
            size_bytes=details["size_bytes"],
            fetch=_ForcedReload(written=page.written, headers=page.headers, content=details["content"]),
        )
    content, size = content_of(path, page.written), path.stat().st_size
    positions[key] = page.validators | {"content": content, "size_bytes": size}
    return described(
        request.source, path=path, name=page.written, content=content, size_bytes=size, fetch=_is_here
    )


def _is_here(path: Path) -> None:
    """Raise UnavailableError, because a file that was already downloaded does not exist any more. This
    function is called only if a file that was already downloaded is needed again."""
    raise UnavailableError("the downloaded file was deleted from the attempt's folder", place=str(path))


class _NotModifiedError(Exception):
    """The exception that is raised if the server reports that the file is unchanged."""


class _TooRecentError(Exception):
    """The exception that is raised if the file was changed so recently that it may be incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForcedReload:
    """Downloads an unchanged file again, because the table must be loaded again from the beginning."""

    written: str
    headers: Mapping[str, str]
    content: str

    def __call__(self, path: Path) -> None:
        with httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
            page = HttpFile(client=client, written=self.written, headers=self.headers)
            download(page.open_at, path, self.written)
        if content_of(path, self.written) != self.content:
            path.unlink()
            raise UnavailableError("the file changed while it was loaded", place=self.written)


@dataclass(slots=True, kw_only=True)
class HttpFile:
    """The file at a URL.

    `known` is the result of an earlier load. `validators` are the values that the server returns now. If
    `source` declares `settled` and the file may still be incomplete, the file is not downloaded.
    """

    client: httpx.Client
    written: str
    headers: Mapping[str, str]
    known: Mapping[str, Any] = field(default_factory=dict)
    validators: dict[str, str] = field(default_factory=dict)
    source: Source | None = None

    def open_at(self, start: int) -> HttpBody:
        """Return the bytes from `start` to the end if the file is unchanged. Otherwise return all bytes."""
        response = self._answer(self._conditions(start))
        if response.status_code == httpx.codes.NOT_MODIFIED and self.known:
            response.close()
            raise _NotModifiedError
        self._check(response)
        begin = start if response.status_code == httpx.codes.PARTIAL_CONTENT else 0
        if begin == 0:
            self.validators = _validators(response)
            if self.source is not None and self.source.waits(*_times(response)):
                response.close()
                raise _TooRecentError
        length = response.headers.get("content-length")
        plain = response.headers.get("content-encoding", "identity") == "identity"
        size = begin + int(length) if length and plain else None
        return HttpBody(chunks=_chunks(response, plain=plain), start=begin, size_bytes=size)

    def _conditions(self, start: int) -> dict[str, str]:
        if start:
            same = self.validators.get("etag", "") or self.validators.get("modified", "")
            strong = same and not same.startswith("W/")
            return {"Range": f"bytes={start}-", "If-Range": same} if strong else {}
        conditions = {
            "If-None-Match": self.known.get("etag"),
            "If-Modified-Since": self.known.get("modified"),
        }
        return {name: value for name, value in conditions.items() if value}

    def _answer(self, conditions: Mapping[str, str]) -> httpx.Response:
        """Return the response after redirects. The `headers` are sent only to the declared host."""
        url = self._url()
        home = (url.scheme, url.host, url.port)
        for _ in range(MOST_REDIRECTS):
            own = self.headers if (url.scheme, url.host, url.port) == home else {}
            request = self.client.build_request(
                "GET", url, headers={"Accept-Encoding": "identity", **own, **conditions}
            )
            with _broken_off():
                response = self.client.send(request, stream=True)
            if response.next_request is None:
                return response
            response.close()
            url = response.next_request.url
        raise DataError(f"the server redirects more than {MOST_REDIRECTS} times", place=self.written)

    def _url(self) -> httpx.URL:
        try:
            return httpx.URL(fill_in(self.written, "source.path", in_url=True))
        # the original error is not shown, because its text may contain a secret from the environment
        except httpx.InvalidURL as error:
            raise InputError("this is not a valid URL", place=self.written) from error

    def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            return
        response.close()
        text = f"the server answers {status} {response.reason_phrase}".strip()
        if status in _LATER:
            raise TransferInterruptedError(text)
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            hint = 'Give the source `headers`, for example {Authorization: "Bearer ${env:TOKEN}"}.'
            raise InputError(text, hint=hint, place=self.written)
        raise DataError(text, hint="Check that the URL works in a browser.", place=self.written)


def _validators(response: httpx.Response) -> dict[str, str]:
    validators = {"etag": response.headers.get("etag"), "modified": response.headers.get("last-modified")}
    return {name: value for name, value in validators.items() if value}


def _times(response: httpx.Response) -> tuple[int, float]:
    """Return the time of the last change of the file (nanoseconds since 1970, 0 if the server does not
    report it), and the current time of the server."""
    changed, now = (_moment(response.headers.get(name)) for name in ("last-modified", "date"))
    return int((changed or 0.0) * 1e9), now or time.time()


def _moment(written: str | None) -> float | None:
    try:
        return parsedate_to_datetime(written).timestamp() if written else None
    except ValueError:
        return None


def _chunks(response: httpx.Response, *, plain: bool) -> Iterator[bytes]:
    with _broken_off():
        try:
            yield from response.iter_raw() if plain else response.iter_bytes()
        finally:
            response.close()


@contextmanager
def _broken_off() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise TransferInterruptedError(f"no answer within {TIMEOUT_SECONDS:g} s") from error
    except httpx.TransportError as error:
        raise TransferInterruptedError(str(error) or type(error).__name__) from error
