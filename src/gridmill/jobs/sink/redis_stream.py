"""A Redis stream as the source of a sink: this module reads the entries after the position as lines of
JSON."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import redis

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import ENTRY_TIME, Format, StreamSource
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.parquet import storage_errors
from gridmill.jobs.secret_values import fill_in
from gridmill.jobs.sink.convert import TIMESTAMP
from gridmill.jobs.sink.files import SourceFile, described, key_of
from gridmill.jobs.sink.source import SourceFiles, SourceRequest

BATCH_ROWS = 5_000
TIMEOUT_SECONDS = 30.0
BEGINNING = "0-0"
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)
_EVERY = pa.schema([("entry_id", pa.string()), (ENTRY_TIME, TIMESTAMP)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEntry:
    """An entry of a Redis stream: its id (`MILLISECONDS-NUMBER`), and its fields with their values."""

    id: str
    fields: Sequence[tuple[bytes, bytes]]


def arrive(request: SourceRequest) -> SourceFiles:
    """Write the entries after the position, at most `max_rows` entries, to local files.

    Raises InputError for a wrong URL or stream, DataError for entries that cannot be read, UnavailableError
    if the server does not answer.
    """
    source = request.source.stream
    assert source is not None
    key, path = key_of(source.key), request.work / f"{uuid4().hex}.jsonl"
    low: str = request.positions.get(key, {}).get("id", BEGINNING)
    high = low
    with storage_errors(path), path.open("w", encoding="utf-8") as file, _connected(source) as server:
        _check_goes_on(server, source, low)
        for entry in _entries(server, source, low):
            file.write(_line(entry, source) + "\n")
            high = entry.id
    if high == BEGINNING:
        return SourceFiles(files=(_nothing_yet(request, source, key),), append=True)
    if high == low:
        return SourceFiles(files=(), append=True)
    loaded = described(
        request.source,
        path=path,
        name=f"{source.key} after {low}",
        content=key_of(f"{low} {high}"),
        size_bytes=path.stat().st_size,
    )
    loaded = replace(loaded, key=key, mtime_ns=path.stat().st_mtime_ns)
    return SourceFiles(files=(loaded,), positions={key: {"id": high}}, append=True)


def _nothing_yet(request: SourceRequest, source: StreamSource, key: str) -> SourceFile:
    """Return a file without rows. The file has the columns that every entry has and the columns that the
    declaration names.

    Because of this file, a sink makes a table even if the stream is empty.
    """
    named = [pa.field(name, pa.null()) for name in request.names if name not in _EVERY.names]
    schema = pa.schema([*_EVERY, *named])
    path = request.work / f"{uuid4().hex}.parquet"
    with storage_errors(path):
        pq.write_table(schema.empty_table(), path)
    told = replace(request.source, format=Format.PARQUET)
    file = described(told, path=path, name=source.key, content=key, size_bytes=path.stat().st_size)
    return replace(file, key=key, mtime_ns=path.stat().st_mtime_ns)


def _entries(server: redis.Redis, source: StreamSource, low: str) -> Iterator[StreamEntry]:
    """Yield the entries that exist now, at most `max_rows` entries. With `wait_seconds`, also yield the
    entries that arrive within this time."""
    until, left = monotonic() + source.wait_seconds, source.max_rows
    # redis-py would make a dict, which loses repeated fields
    server.set_response_callback("XRANGE", lambda found, **_: found)
    while left > 0:
        count = min(left, BATCH_ROWS)
        value: Any = server.xrange(source.key, min=f"({low}", max="+", count=count)
        for identity, fields in value:
            low = identity.decode()
            yield StreamEntry(id=low, fields=tuple(zip(fields[::2], fields[1::2], strict=True)))
        left -= len(value)
        rest = until - monotonic()
        if not value and rest <= 0:
            return
        if not value:
            block = max(1, int(min(rest, TIMEOUT_SECONDS / 2) * 1000))
            server.xread({source.key: low}, count=1, block=block)


def _check_goes_on(server: redis.Redis, source: StreamSource, low: str) -> None:
    try:
        about: Any = server.xinfo_stream(source.key)
    except redis.ResponseError as error:
        raise InputError(
            f"there is no stream {source.key!r}: {error}", hint="XADD makes it.", place="source.stream.key"
        ) from error
    newest = about["last-generated-id"].decode()
    if _number(newest) < _number(low):
        raise DataError(
            f"the stream ends at {newest}, but {low} was already loaded from it: the stream was deleted "
            "and made again",
            hint="Give the job another name to begin a new table.",
            place=source.key,
        )


def _number(identity: str) -> tuple[int, int]:
    moment, _, number = identity.partition("-")
    return int(moment), int(number)


def _line(entry: StreamEntry, source: StreamSource) -> str:
    """Return the entry as a JSON object: its fields as texts, or the object in the field that contains
    JSON."""
    place = f"{source.key} entry {entry.id}"
    values: dict[str, Any] = {"entry_id": entry.id, ENTRY_TIME: _time(entry.id, place).isoformat()}
    fields = _texts_of(entry, place)
    if source.json is not None:
        fields |= _object(fields.pop(source.json, ""), source.json, place)
    if taken := sorted(fields.keys() & values.keys()):
        raise DataError(
            f"the entry has a field {taken[0]!r}, which is the name of a column that every entry has",
            hint=f"Write the field under another name; XDEL {source.key} {entry.id} deletes the entry.",
            place=place,
        )
    return json.dumps(values | fields)


def _texts_of(entry: StreamEntry, place: str) -> dict[str, Any]:
    """Return the fields of the entry. Raises DataError if a field is repeated, because Redis allows repeated
    fields but a table can have only one value."""
    try:
        texts = [(name.decode(), value.decode()) for name, value in entry.fields]
    except UnicodeDecodeError as error:
        raise DataError("the entry contains bytes that are not text", place=place) from error
    fields: dict[str, Any] = dict(texts)
    if len(fields) < len(texts):
        twice = next(name for number, (name, _) in enumerate(texts) if name in dict(texts[:number]))
        raise DataError(f"the entry has the field {twice!r} more than once", place=place)
    return fields


def _time(identity: str, place: str) -> datetime:
    """Return the time at which the entry was added to the stream, to the millisecond."""
    try:
        return _ORIGIN + timedelta(milliseconds=_number(identity)[0])
    except OverflowError as error:
        raise DataError(
            "the id of the entry has a time after the year 9999",
            hint="XDEL deletes the entry; ids that Redis makes (XADD with *) contain the current time: "
            f"{identity}",
            place=place,
        ) from error


def _object(text: str, field: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"field {field!r} is not JSON: {error}", place=place) from error
    if not isinstance(value, dict):
        raise DataError(f"field {field!r} is not a JSON object", place=place)
    return value


@contextmanager
def _connected(source: StreamSource) -> Iterator[redis.Redis]:
    url = fill_in(source.url, "source.stream.url", in_url=True)
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=5) as server:
            yield server
    except ValueError as error:
        raise InputError("this is not a valid Redis URL", place="source.stream.url") from error
    except redis.AuthenticationError as error:
        raise InputError(f"the server refuses: {error}", place="source.stream.url") from error
    except redis.RedisError as error:
        raise UnavailableError(f"the server reports: {error}", place=source.key) from error
