"""Converts records, events and numbers to rows of a SQL store with checksums, and converts rows back.

If a row does not match its checksum, it is damaged. Damaged rows are noted with all information that can be
read from them.

The checksum covers the complete row: class, key, version, parent, liveness and body. For an event, it also
covers the sequence number and the time. CRC-32 detects every error of up to 32 adjacent bits, and computing
it takes a microsecond.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, TypeAlias, get_args
from zlib import crc32

from gridmill.codec import decode, encode
from gridmill.domain.pod_protocol import Event, event_id
from gridmill.domain.run import JobRun
from gridmill.errors import InputError
from gridmill.ports.store import DamagedRecord, Delete, Noun, Put, Record, is_live, key_of, parent_of

Row: TypeAlias = Sequence[Any]
Values: TypeAlias = dict[str, Any]

RECORD = "position, noun, key, version, parent, live, body, checksum"
"""The columns of the table of records, in the order that `read_record` needs."""
RECORDS, EVENTS, COUNTERS, FILE = "record", "event", "counter", "file"
"""The names for the location of damage: a table, or the database file itself."""
_LONGEST = 200
"""The largest number of characters that are shown of a damaged value."""


def _checksum(*parts: str) -> int:
    return crc32("\0".join(parts).encode("utf-8", "surrogateescape"))


def record_checksum(noun: str, key: str, version: int, parent: str, live: int, body: bytes) -> int:
    """Returns the checksum of a record. The argument `live` is 0 or 1. Raises ValueError if a text is not
    valid Unicode."""
    return crc32(body, crc32(f"{noun}\0{key}\0{version}\0{parent}\0{+live}\0".encode()))


def event_checksum(values: Mapping[str, Any]) -> int:
    """Returns the checksum of the row of an event, over all its columns."""
    return _checksum(
        str(values["sequence"]),
        repr(float(values["time"])),
        values["type"],
        values["run_id"],
        values["job"],
        values["attempt_id"],
        values["pod_id"],
        str(values["number"]),
        values["body"],
    )


def counter_checksum(name: str, value: int) -> int:
    """Returns the checksum of the highest used number of ids."""
    return _checksum(name, str(value))


CLASSES: Mapping[str, type[Noun]] = {noun.__name__: noun for noun in get_args(Noun)}


def put_row(put: Put) -> Values:
    """Returns the values for a statement that puts a record: the new row, and either the key of a new record
    or the expected old row (`old_…`).

    The body is decoded immediately, because a value that cannot be read back must not be stored (JSON has no
    NaN, for example). Raises InputError.
    """
    noun, expected = put.noun, put.expected
    kind, key = type(noun), key_of(noun)
    try:
        body = encode(noun)
        decode(body, kind)
    except (InputError, ValueError, TypeError) as error:
        raise InputError(f"{kind.__name__} {key!r} cannot be stored: {error}") from error
    row: Values = _old(kind.__name__, key, expected) if expected else {"noun": kind.__name__, "key": key}
    row["version"] = expected + 1
    row["parent"] = parent_of(noun)
    row["live"] = kind is not JobRun and is_live(noun)
    row["body"] = body.decode()
    row["checksum"] = record_checksum(kind.__name__, key, expected + 1, row["parent"], row["live"], body)
    return row


def delete_row(delete: Delete) -> Values:
    """Returns the row that a delete expects."""
    return _old(delete.noun.__name__, delete.key, delete.expected)


def _old(name: str, key: str, version: int) -> Values:
    return {"old_noun": name, "old_key": key, "old_version": version}


def event_row(event: Event) -> Values:
    """Returns the row of an event. Raises InputError."""
    try:
        body = encode(event.body).decode()
    except (ValueError, TypeError) as error:
        raise InputError(f"an event of {event.run_id} cannot be stored: {error}") from error
    return {
        "sequence": 0,
        "time": event.time,
        "type": str(event.type),
        "run_id": event.run_id,
        "job": event.job,
        "attempt_id": event.attempt_id,
        "pod_id": event.pod_id,
        "number": event.number,
        "body": body,
    }


def to_event(row: Sequence[Any]) -> Event:
    """Returns the event in a row of the event table."""
    sequence, time, kind, run_id, job, attempt_id, pod_id, number, body = row
    return Event(
        id=event_id(sequence),
        time=time,
        type=kind,
        run_id=run_id,
        job=job,
        attempt_id=attempt_id,
        pod_id=pod_id,
        number=number,
        body=decode(body, dict[str, Any]),
    )


class DamagedRowError(Exception):
    """A row does not match its checksum or cannot be decoded."""


def read_record(row: Row) -> Record:
    """Returns the record in a row that has the columns RECORD. Raises DamagedRowError."""
    _, noun, key, version, parent, live, body, checksum = row
    try:
        data = body.encode()
        if record_checksum(noun, key, version, parent, live, data) != checksum:
            raise DamagedRowError("it does not match its checksum")
        return Record(noun=decode(data, CLASSES[noun]), version=version)
    except (InputError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedRowError(f"it cannot be read: {str(error)[:_LONGEST]}") from error


def check_event(columns: Sequence[str], row: Row, checksum: object) -> None:
    """Checks an event, and raises DamagedRowError if the row of the event does not match its checksum."""
    try:
        if event_checksum(dict(zip(columns, row, strict=True))) == checksum:
            return
    except (ValueError, TypeError):  # a damaged row can have a value of another type in a column
        pass
    raise DamagedRowError("it does not match its checksum")


def counter_rows(used: Mapping[str, int]) -> list[Values]:
    """Returns the rows that store the highest used number of ids for each name."""
    return [
        {"name": name, "value": value, "checksum": counter_checksum(name, value)}
        for name, value in used.items()
    ]


def is_counter(name: object, value: object, checksum: object) -> bool:
    """Returns whether a row with the highest used number of ids matches its checksum."""
    return isinstance(name, str) and isinstance(value, int) and counter_checksum(name, value) == checksum


def describe(row: Row, problem: str) -> DamagedRecord:
    """Describes a damaged row. The information comes from the body of the row if the body can be decoded,
    and otherwise from the columns of the row."""
    _, noun, key, version, parent, _, body, checksum = row
    with suppress(InputError, KeyError, ValueError, TypeError, AttributeError):
        meant = decode(body, CLASSES[noun])
        live = not isinstance(meant, JobRun) and is_live(meant)
        if record_checksum(noun, key_of(meant), version, parent_of(meant), live, body.encode()) == checksum:
            key, parent = key_of(meant), parent_of(meant)
    return DamagedRecord(noun=_shown(noun), key=_shown(key), parent=_shown(parent), problem=problem)


def describe_event(row: Row, problem: str) -> DamagedRecord:
    """Describes a damaged event. The key in the description is the sequence number of the event, and the
    parent is its run."""
    return DamagedRecord(noun="Event", key=_shown(row[0]), parent=_shown(row[3]), problem=problem)


def describe_counter(name: object) -> DamagedRecord:
    """Describes a damaged row with the highest number of ids."""
    return DamagedRecord(
        noun="Counter", key=_shown(name), parent="", problem="it does not match its checksum"
    )


def _shown(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    printable = text.encode("utf-8", "replace").decode().replace("\0", "?")
    return printable[:_LONGEST]


def is_damaged(row: Row) -> bool:
    """Returns whether a row with the columns RECORD is damaged."""
    try:
        read_record(row)
    except DamagedRowError:
        return True
    return False


class DamageNotes:
    """Collects the damaged rows that one process has found, each of them once. The class is thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, object], DamagedRecord] = {}
        self._fresh: list[DamagedRecord] = []
        self._lock = Lock()

    def add(self, table: str, place: object, record: DamagedRecord) -> None:
        """Notes a damaged row by its table and by its key in this table."""
        with self._lock:
            if (table, place) not in self._known:
                self._known[table, place] = record
                self._fresh.append(record)

    def take_new(self) -> tuple[DamagedRecord, ...]:
        """Returns the damaged rows that earlier calls have not returned."""
        if not self._fresh:
            return ()
        with self._lock:
            fresh, self._fresh = self._fresh, []
        return tuple(fresh)

    def all(self) -> tuple[DamagedRecord, ...]:
        """Returns the damaged rows that are still in their tables."""
        with self._lock:
            return tuple(self._known.values())

    def of_records(self) -> Mapping[object, DamagedRecord]:
        """Returns the positions of the damaged records. The next commit moves these records to the table of
        damaged records."""
        if not self._known:
            return {}
        with self._lock:
            return {place: one for (table, place), one in self._known.items() if table == RECORDS}

    def drop(self, positions: Sequence[object]) -> None:
        """Removes records from the collection that were moved to the table of damaged records or were
        repaired."""
        with self._lock:
            for position in positions:
                self._known.pop((RECORDS, position), None)
