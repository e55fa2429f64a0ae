"""Reads remote sources that answer within a few seconds: the columns of a database, or the first rows of
files.

If only the first bytes of a remote file are downloaded, the check uses the complete rows at the beginning of
the file.
"""

import codecs
import time
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from threading import Thread

from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import OBJECTS, REMOTE, Compression, Format
from gridmill.errors import DataError, GridmillError, InputError, UnavailableError
from gridmill.jobs.preflight.results import NotCheckableError, PreflightContext
from gridmill.jobs.sink.files import UTF16, SourceFile, open_file
from gridmill.jobs.sink.schema_evolution import ColumnMapping
from gridmill.jobs.sink.source import SourceRequest, list_source_files, load_readers

_PIECE_BYTES = 2**16
_QUOTE, _LINE_END = b'"', b"\n"


def begin(file: SourceFile, most_bytes: int) -> tuple[SourceFile, bool]:
    """Return the downloaded beginning of the file, and whether it is the complete file.

    Raises NotCheckableError if the beginning of such a file cannot be read without its end. Raises DataError
    and UnavailableError if the file cannot be downloaded.
    """
    path = file.local()
    if path.stat().st_size < most_bytes:
        return file, True
    if file.format not in (Format.CSV, Format.JSONL) or file.compression == Compression.ZIP:
        raise NotCheckableError(
            f"the first file of its source is larger than {show_bytes(most_bytes)} and cannot be read in part"
        )
    rows = _whole_rows(_text(file, most_bytes), quoted=file.format == Format.CSV)
    if not rows:
        raise NotCheckableError(
            f"the first {show_bytes(most_bytes)} of the first file of its source contain no complete row"
        )
    cut = path.with_name(f"{path.name}.beginning")
    cut.write_bytes(rows)
    return replace(file, path=cut, compression=Compression.NONE, size_bytes=len(rows)), False


def _text(file: SourceFile, most_bytes: int) -> bytes:
    """Return the decompressed text of the first bytes of the file, as far as it is complete."""
    text = bytearray()
    try:
        with open_file(replace(file, is_utf8=False)) as opened:
            while len(text) < most_bytes and (piece := opened.stream.read(_PIECE_BYTES)):
                text += piece
    except DataError:
        # no error: the compressed text has no end, because only the beginning of the file was downloaded
        pass
    return bytes(text)


def _whole_rows(text: bytes, *, quoted: bool) -> bytes:
    """Return the text up to the last line end that is not within quotes. The result is empty for text in
    UTF-16."""
    if text.startswith(UTF16) or text.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return b""
    end = text.rfind(_LINE_END)
    while quoted and end >= 0 and text.count(_QUOTE, 0, end) % 2:
        end = text.rfind(_LINE_END, 0, end)
    return text[: end + 1]


LONGEST_SECONDS = 2.0
"""The timeout, in seconds, for all remote sources of a pipeline together."""


MOST_BYTES = 2 * 2**20
"""The largest number of bytes of a file that are downloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFiles:
    """The downloaded files of a source. If `whole` is true, all files of the source were downloaded with all
    rows."""

    files: tuple[SourceFile, ...]
    whole: bool


@dataclass(slots=True)
class TimeBudget:
    """The time that remains for checks of remote sources."""

    left: float = LONGEST_SECONDS
    longest: float = field(init=False)

    def __post_init__(self) -> None:
        self.longest = self.left

    def wait_for(self, read: Callable[[], tuple[SourceFile, ...]]) -> tuple[SourceFile, ...]:
        """Run the function `read` and return its result. Raises the errors of `read`, and NotCheckableError
        if `read` takes too long.

        If `read` takes too long, it continues in a thread that ends with this process.
        """
        call, begin = _Call(read=read), time.monotonic()
        thread = Thread(target=call.run, daemon=True)
        thread.start()
        thread.join(max(0.0, self.left))
        self.left -= time.monotonic() - begin
        if thread.is_alive():
            raise NotCheckableError(f"its source did not answer within {self.longest:g} s")
        if call.error is not None:
            raise call.error
        return call.files


@dataclass(slots=True)
class _Call:
    read: Callable[[], tuple[SourceFile, ...]]
    files: tuple[SourceFile, ...] = field(default=(), init=False)
    error: Exception | None = field(default=None, init=False)

    def run(self) -> None:
        """Run the function `read`, and store its result."""
        try:
            self.files = self.read()
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            self.error = error


def fetch(scene: PreflightContext, spec: SinkSpec, patience: TimeBudget) -> FetchedFiles:
    """Download the beginning of the first file of a remote source, or the columns of a database.

    Raises the InputError or DataError with which a run would fail. Raises NotCheckableError if the source
    cannot be checked, for example if only the job can read a secret or reach the server.
    """
    source, layout = spec.source, ColumnMapping(spec=spec)
    if source.stream is not None:
        raise NotCheckableError(f"its source is a stream: {source.name}")
    elsewhere = [path for path in source.paths if path.startswith(REMOTE)]
    request = SourceRequest(
        source=replace(source, path=elsewhere[0], settled_seconds=None) if elsewhere else source,
        folder=scene.folder,
        work=scene.work,
        names=layout.named(),
        texts=layout.texts(),
        most_bytes=MOST_BYTES,
    )

    try:
        read = _reading(request)
        files = patience.wait_for(read)
        if source.sql is not None:
            return FetchedFiles(files=files, whole=False)
        beginning, whole = begin(files[0], MOST_BYTES)
        return FetchedFiles(files=(beginning,), whole=whole and len(files) == len(source.paths) == 1)
    except UnavailableError as error:
        raise NotCheckableError(f"its source does not answer: {error.message}") from error
    except ModuleNotFoundError as error:
        raise NotCheckableError(f"the package {error.name} is not installed here") from error
    except InputError as error:
        # not certain, because the job may have credentials that this process does not have
        refused = not isinstance(error, DataError)
        if _is_secret(spec) or (refused and any(path.startswith(OBJECTS) for path in source.paths)):
            raise NotCheckableError(f"its source cannot be read from here: {error.message}") from error
        raise
    except (GridmillError, NotCheckableError):
        raise
    except Exception as error:  # a database driver can raise any error
        raise NotCheckableError(f"its source cannot be read from here: {type(error).__name__}") from error


def _reading(request: SourceRequest) -> Callable[[], tuple[SourceFile, ...]]:
    """Return the function that downloads the columns of a database, or the first of the listed files.

    The libraries of the function are imported before the function runs, so that the time limit applies only
    to the server. Raises ModuleNotFoundError.
    """
    if request.source.sql is not None:
        # imported here, because it loads SQLAlchemy, which other sources do not need
        from gridmill.jobs.sink.sql import arrive_empty

        return partial(arrive_empty, request)
    load_readers(request.source)
    return partial(_first_fetched, request)


def _first_fetched(request: SourceRequest) -> tuple[SourceFile, ...]:
    files = list_source_files(request).files
    files[0].local()
    return files


def _is_secret(spec: SinkSpec) -> bool:
    """Return whether the source uses environment variables or secrets that only the job has."""
    url = spec.source.sql.url if spec.source.sql is not None else ""
    texts = (url, *spec.source.headers.values(), *spec.source.credentials.values(), *spec.source.paths)
    return any("${env:" in text or "${secret:" in text for text in texts)
