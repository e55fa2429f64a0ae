"""This module declares sources, from which sinks load raw data: files, object storage, SQL databases, and
streams."""

import re
from codecs import lookup
from collections.abc import Mapping
from dataclasses import field, fields
from datetime import datetime
from enum import StrEnum

from gridmill.domain.amounts import show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.sql_statement import TIMES, Given, pasted, stretch
from gridmill.errors import InputError

UNIX_UNITS = ("unix_s", "unix_ms", "unix_us", "unix_ns")
"""The values of `timestamp_format` in addition to patterns: units of numbers that count the time since
1970."""
DATE_DIGITS = ("%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
"""The patterns of numbers whose digits are a date."""
HTTP = ("http://", "https://")
OBJECTS = ("s3://", "gs://")
SERVICE_LOG = "service://"
"""The prefix of the path that names the logged rows of a service."""
REMOTE = (*HTTP, *OBJECTS)
"""The prefixes of paths that the job itself downloads."""

_SECRET_IN_URL = re.compile(r"^[^/]*//[^/@:]*:(?P<password>.+)@")
_SECRET_IN_HTTP = re.compile(r"^https?://[^/@:]*:(?P<password>[^/@]+)@")
_SECRET_IN_OPTIONS = re.compile(r"[?&](?:password|sslpassword)=(?P<password>[^&]*)", re.IGNORECASE)
_SECRET_HEADER = re.compile(r"auth|cookie|token|secret|password|credential|api-?key|-key$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(bearer|basic|token|digest)\s", re.IGNORECASE)
_SQLITE_FILE = re.compile(r"sqlite(?:\+\w+)?:///(?!:memory:)(?P<file>[^?]+)")
_REFERENCE = re.compile(r"\$\{(?:env|secret):[^}]+\}")
CREDENTIALS = {
    "s3": ("access_key_id", "secret_access_key", "session_token"),
    "gs": ("service_account_key",),
}
"""The credentials that a source can name, by the scheme of its paths."""


class Format(StrEnum):
    """The file formats that a source can have. With the format `files`, each file is one row that contains
    the bytes of the file."""

    CSV = "csv"
    PARQUET = "parquet"
    JSONL = "jsonl"
    XLSX = "xlsx"
    FILES = "files"


class Compression(StrEnum):
    """The compression of a source file."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZIP = "zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSource:
    """A source that reads the rows of an SQL database: a `table` (`schema.table`), or a `query`.

    `url` is an SQLAlchemy URL, for example `postgresql+psycopg://user:${env:PASSWORD}@host/database` or
    `sqlite:///shop.db` (relative to the folder of the pipeline file). `${env:NAME}` is replaced by the value
    in the environment in which the job runs, and `${secret:NAME}` by the value of a secret. `cursor` is a
    column whose values only grow (a number, a time, a text): each load takes the rows after the last row of
    the previous load. Without `cursor`, every load takes all rows, and the table is replaced if the rows
    differ. A row may appear late, with a cursor value below a value that was already loaded. The next load
    takes such a row if its cursor value differs by at most `lag` from the newest loaded value. For times,
    `lag` is a number of seconds. Rows that have no cursor value are not loaded.

    Parameters in a `query` are bound as values, also within quotes, as in `where at >= '${from}' and at <
    '${to}'`. If a query refers to both bounds, or to `${due_before}` and `${due}`, it loads the rows of that
    range of time: these rows replace the rows that were loaded for the same range, and the rows of other
    ranges are kept. `parameters` are the values of the parameters in the query.
    """

    url: str
    table: str | None = None
    query: str | None = None
    cursor: str | None = None
    lag: float | None = None
    parameters: Mapping[str, Given] = field(default_factory=dict)

    @property
    def stretch(self) -> tuple[datetime, datetime] | None:
        """The range of time that the query loads, or None if the query has no range of time. Raises
        InputError."""
        return stretch(self.query, self.parameters) if self.query and self.parameters else None

    @property
    def lasting_query(self) -> str:
        """The parts of the query that determine which rows are in the table. The bounds of a range of time
        are left out, because they do not determine which rows are in the table."""
        if not self.parameters:
            return self.query or ""
        left = TIMES if self.stretch is not None else frozenset()
        kept = {name: one for name, one in self.parameters.items() if name.partition(":")[0] not in left}
        return pasted(self.query or "", kept)

    def check(self) -> None:
        """Raise InputError if a URL is invalid or contains a password, if the lag is invalid, or if time
        bounds are used together with a cursor."""
        if self.stretch is not None and self.cursor is not None:
            raise InputError(
                "the query has a time range and a `cursor`; a cursor continues where the last load ended",
                hint="Leave out the cursor, or the bounds of the range.",
                place="sql.cursor",
            )
        if "://" not in self.url and not _REFERENCE.fullmatch(self.url):
            raise InputError(
                "this is not a database URL",
                hint="Write for example postgresql+psycopg://user@host/database, or sqlite:///shop.db.",
                place="sql.url",
            )
        check_no_secret(self.url, "sql.url")
        if self.lag is not None and (self.cursor is None or self.lag < 0):
            raise InputError("`lag` must be 0 or more, and needs a `cursor`", place="sql.lag")


ENTRY_TIME = "entry_time"
"""The name of the column with the time of a stream's entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """A source that reads the entries of a Redis stream (`key`), each once, with their id and time as
    `entry_id` and `entry_time`.

    `url` is, for example, `redis://:${env:PASSWORD}@host:6379/0` (`rediss://` for TLS). The fields of an
    entry are text unless `columns` declares another type. `json` names a field that contains a JSON object,
    whose members become columns. One load takes at most `max_rows` entries, and waits at most `wait` for
    more entries.
    """

    url: str
    key: str
    json: str | None = None
    max_rows: int = 1_000_000
    wait_seconds: float = 0.0

    def check(self) -> None:
        """Raise InputError if a URL is not a Redis URL or contains a password, or if `max_rows` is zero."""
        if not self.url.startswith(("redis://", "rediss://", "unix://", "${env:", "${secret:")):
            raise InputError("this is not a Redis URL", hint="redis://HOST:6379/0", place="stream.url")
        check_no_secret(self.url, "stream.url")
        if self.max_rows < 1:
            raise InputError("`max_rows` must be more than 0", place="stream.max_rows")
        if self.wait_seconds < 0:
            raise InputError("`wait` must not be negative", place="stream.wait_seconds")


def check_no_secret(url: str, place: str) -> None:
    """Raise InputError if a password is not read from the environment."""
    in_front = _SECRET_IN_HTTP if url.startswith(HTTP) else _SECRET_IN_URL
    secret = in_front.match(url) or _SECRET_IN_OPTIONS.search(url)
    if secret and not _REFERENCE.fullmatch(secret["password"]):
        raise InputError(
            "the URL contains a password",
            hint="Write ${secret:NAME} in place of the password, and run `gridmill add secret NAME`. For a "
            "variable of the environment where the job runs, write ${env:NAME}.",
            place=place,
        )


def check_credential(name: str, value: str | None, place: str) -> None:
    """Raise InputError if a credential of an object storage is written down instead of a reference to it."""
    if value and name != "access_key_id" and not _REFERENCE.fullmatch(value):
        raise InputError(
            f"the value of {name} is written down, where everyone who reads the declaration sees it",
            hint=f"Run `gridmill add secret NAME`, and write ${{secret:NAME}} as the value of {name}.",
            place=place,
        )


def _check_url(path: str) -> None:
    """Raise InputError if a URL has no host name, bucket or object, or if it contains a password."""
    scheme, _, rest = path.partition("://")
    host, _, inside = rest.partition("/")
    if path.startswith(HTTP):
        if not host:
            raise InputError(f"{path!r} has no host name", hint=f"{scheme}://HOST/PATH", place="source.path")
        check_no_secret(path, "source.path")
    elif path.startswith(OBJECTS) and not (host and inside):
        raise InputError(f"{path!r} has no object name", hint=f"{scheme}://BUCKET/PATH", place="source.path")


def _check_no_secret_header(name: str, value: str) -> None:
    secret = _SECRET_HEADER.search(name) or _SECRET_VALUE.match(value)
    if secret and not _REFERENCE.search(value):
        scheme = value.partition(" ")[0] + " " if _SECRET_VALUE.match(value) else ""
        raise InputError(
            "the header contains a secret, which everyone who can read the pipeline would see",
            hint=f'Write {{{name}: "{scheme}${{secret:NAME}}"}}, and run `gridmill add secret NAME`. For a '
            "variable of the environment where the job runs, write ${env:NAME}.",
            place=f"source.headers.{name}",
        )


def waiting_text(count: int, settled_seconds: float) -> str:
    """Return a text such as `waiting: 2 files changed less than 30s ago`."""
    return f"waiting: {show_count(count, 'file')} changed less than {settled_seconds:g}s ago"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The place from which a sink loads rows: files (`path`: a path, a URL, a glob or several), a database
    (`sql`), or a stream (`stream`).

    Relative paths begin at the folder of the pipeline file. `package://NAME/PATH` is a file of an installed
    Python package. `service://NAME` means the logged rows of a service (`gridmill update service NAME
    --log-requests 1 --log-bodies`). A path with `http://` or `https://` names one file. A path with
    `s3://BUCKET/PATH` or `gs://BUCKET/PATH` names one object or a glob of objects, at `endpoint` if the
    object storage is not AWS or Google. `headers` are HTTP headers that are sent with HTTP requests.
    `credentials` are the keys of an object storage: `access_key_id`, `secret_access_key` and `session_token`
    for S3, `service_account_key` (the JSON text) for Google. Without `credentials`, they are read from the
    environment in which the job runs. Passwords and keys must be written as `{secret: NAME}`, as
    `${secret:NAME}` inside a text, or as `${env:NAME}` for a variable of the environment in which the job
    runs.

    If format and compression are not set, they follow from the name of the file (a ZIP file must contain
    exactly one file). `delimiter` (default: a comma, or a tab for `.tsv`), `nulls` (texts that mean a
    missing value) and `encoding` are for CSV files. `decimal` is the decimal separator of numbers in texts.
    If `decimal` is `.`, a comma groups thousands; if `decimal` is `,`, a point groups thousands.
    `timestamp_format` is for columns that are declared as `timestamp` or `date`: a strptime pattern, or the
    unit of numbers that count the time since 1970 (`unix_s`, `unix_ms`, `unix_us`, `unix_ns`).
    `timestamp_format` can also be a mapping from the names of columns to such formats. These columns are
    then declared as times. Without `timestamp_format`, common formats of times are recognized. Times without
    a time zone are in UTC. `sheet` is the name of the sheet of an Excel file.

    A file is loaded only after it has not changed for the time `settled`, so that no file is loaded while it
    is being written. If the server does not report when a file changed, the file is loaded immediately.
    """

    path: str | tuple[str, ...] = ()
    format: Format | None = None
    compression: Compression | None = None
    delimiter: str | None = None
    nulls: tuple[str, ...] = ("", "NA", "NaN", "null")
    encoding: str = "utf-8"
    timestamp_format: str | Mapping[str, str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    settled_seconds: float | None = None
    decimal: str | None = None
    sheet: str | None = None
    sql: SqlSource | None = None
    stream: StreamSource | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths and globs of the source as they are declared."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def name(self) -> str:
        """The name of the source in messages."""
        if self.sql:
            return self.sql.table or "query"
        return self.stream.key if self.stream else ", ".join(self.paths)

    @property
    def secret_fields(self) -> Mapping[str, str]:
        """The texts of the source that may refer to secrets, by the path of their field in the source."""
        fields = {f"headers.{name}": text for name, text in self.headers.items()}
        fields |= {f"credentials.{name}": text for name, text in self.credentials.items()}
        fields |= {"sql.url": self.sql.url} if self.sql else {}
        fields |= {"stream.url": self.stream.url} if self.stream else {}
        paths = {"path": self.path} if isinstance(self.path, str) else {}
        return {**fields, **paths, **{f"path[{number}]": one for number, one in enumerate(self.paths)}}

    @property
    def local_paths(self) -> tuple[str, ...]:
        """The paths of the source that are in the file system of the machine."""
        return tuple(path for path in self.paths if not path.startswith(REMOTE))

    @property
    def project_paths(self) -> tuple[str, ...]:
        """The paths and patterns of files that may be in the folder of the pipeline, including the file of a
        SQLite database."""
        database = _SQLITE_FILE.match(self.sql.url) if self.sql is not None else None
        if database is not None:
            file = database["file"]
            return (file, f"{file}-wal", f"{file}-shm", f"{file}-journal")
        return tuple(path for path in self.local_paths if "://" not in path)

    @property
    def splits(self) -> bool:
        """Whether the source may have several files or objects, which can be read in separate parts."""
        if self.sql or self.stream or self.format == Format.FILES:
            return False
        if any(path.startswith(HTTP) for path in self.paths):
            return False
        return len(self.paths) > 1 or any(sign in path for path in self.paths for sign in "*?[")

    @property
    def live(self) -> bool:
        """Whether only the job itself can find out if the source has new data, so that the job runs every
        time to check the source."""
        return bool(self.sql or self.stream) or len(self.local_paths) < len(self.paths)

    def time_format(self, column: str) -> str | None:
        """Return the format of times in a column of the table. The result is None if the format is not
        declared."""
        if isinstance(self.timestamp_format, Mapping):
            return self.timestamp_format.get(column)
        return self.timestamp_format

    def waits(self, changed_ns: int, now: float) -> bool:
        """Return whether a file that last changed at `changed_ns` (since 1970; 0: unknown) is not yet
        settled at `now`."""
        return bool(self.settled_seconds and changed_ns) and now - changed_ns / 1e9 < (
            self.settled_seconds or 0.0
        )

    def waiting_text(self, count: int) -> str:
        """Return a text such as `waiting: 2 files changed less than 30s ago`; empty if no file is
        waiting."""
        return waiting_text(count, self.settled_seconds or 0.0) if count else ""

    def check(self) -> None:
        """Raise InputError if the source has none or two of `path`, `sql` and `stream`, if the delimiter has
        several characters, or if the encoding is unknown."""
        kind = "sql" if self.sql else "stream" if self.stream else None
        if kind is not None:
            self._check_alone(kind)
        elif not self.paths or not all(self.paths):
            raise InputError("a source needs a path, `sql` or `stream`", place="source.path")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise InputError(
                f"the delimiter must be one character, not {self.delimiter!r}", place="source.delimiter"
            )
        if self.decimal not in (None, ".", ","):
            raise InputError(f"`decimal` must be '.' or ',', not {self.decimal!r}", place="source.decimal")
        if self.endpoint is not None and not self.endpoint.startswith(HTTP):
            raise InputError("an endpoint must begin with http:// or https://", place="source.endpoint")
        self._check_formats()
        for path in self.paths:
            _check_url(path)
        self._check_of_urls()
        for name, value in self.headers.items():
            _check_no_secret_header(name, value)
        self._check_credentials()
        try:
            lookup(self.encoding)
        except LookupError as error:
            raise InputError(
                f"unknown encoding {self.encoding!r}",
                hint="Common encodings are utf-8, latin-1, cp1252 and utf-16.",
                place="source.encoding",
            ) from error

    def _check_credentials(self) -> None:
        """Raise InputError for unknown credentials, and for credentials that are not references."""
        schemes = {path.partition("://")[0] for path in self.paths if path.startswith(OBJECTS)}
        known = [name for scheme in sorted(schemes) for name in CREDENTIALS[scheme]]
        for name, value in self.credentials.items():
            if name not in known:
                raise InputError(
                    f"there is no credential {name!r} for {' and '.join(f'{one}://' for one in schemes)}",
                    hint=f"The credentials are {', '.join(known)}.",
                    place=f"source.credentials.{name}",
                )
            check_credential(name, value, f"source.credentials.{name}")

    def _check_formats(self) -> None:
        given = self.timestamp_format
        formats = given.values() if isinstance(given, Mapping) else (given,)
        for pattern in formats:
            if pattern is not None and pattern not in UNIX_UNITS and "%" not in pattern:
                raise InputError(
                    f"{pattern!r} is neither a pattern for times nor a unit",
                    hint=f"Write a pattern such as '%d.%m.%Y %H:%M', or one of {', '.join(UNIX_UNITS)}.",
                    place="source.timestamp_format",
                )

    def _check_of_urls(self) -> None:
        """Raise InputError if `headers` or `endpoint` is set but no path of the source can use this
        field."""
        for name, there, scheme in (
            ("headers", self.headers, HTTP),
            ("endpoint", self.endpoint, OBJECTS),
            ("credentials", self.credentials, OBJECTS),
        ):
            if there and not any(path.startswith(scheme) for path in self.paths):
                raise InputError(f"`{name}` is only for {' and '.join(scheme)}", place=f"source.{name}")

    def _check_alone(self, kind: str) -> None:
        """Raise InputError if options of files are set for a source that is a database or a stream."""
        plain = Source()
        for item in fields(self):
            if item.name != kind and getattr(self, item.name) != getattr(plain, item.name):
                raise InputError(
                    f"`{item.name}` cannot be used together with `{kind}`", place=f"source.{item.name}"
                )
