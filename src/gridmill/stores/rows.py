"""Nouns and events as rows of the tables, and back."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, get_args

from gridmill.codec import decode, encode
from gridmill.errors import InputError, StorageError
from gridmill.model.event import Event
from gridmill.model.run import JobRun
from gridmill.ports.keys import is_live, key_of, parent_of
from gridmill.ports.store import Delete, Noun, Put, Record

Values: TypeAlias = dict[str, Any]

_CLASSES: Mapping[str, type[Noun]] = {noun.__name__: noun for noun in get_args(Noun)}


def put_row(put: Put) -> Values:
    """What a put writes, and either whom it makes or what the row must have been (`old_…`).

    It is read back at once: what could not be (JSON has no NaN) must not get into the store.
    Raises InputError.
    """
    noun, name, key = put.noun, type(put.noun).__name__, key_of(put.noun)
    try:
        body = encode(noun).decode()
        decode(body, type(noun))
    except (InputError, ValueError, TypeError) as error:
        raise InputError(f"{name} {key!r} cannot be kept: {error}") from error
    row = {
        "version": put.expected + 1,
        "parent": parent_of(noun),
        "live": is_live(noun) and not isinstance(noun, JobRun),
        "body": body,
    }
    whom = {"noun": name, "key": key}
    return row | (_old(name, key, put.expected) if put.expected else whom)


def delete_row(delete: Delete) -> Values:
    """What a row to be deleted must be."""
    return _old(delete.noun.__name__, delete.key, delete.expected)


def _old(name: str, key: str, version: int) -> Values:
    return {"old_noun": name, "old_key": key, "old_version": version}


def event_row(event: Event) -> Values:
    """The row of an event. Raises InputError."""
    try:
        body = encode(event.body).decode()
    except (ValueError, TypeError) as error:
        raise InputError(f"an event of {event.run_id} cannot be kept: {error}") from error
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


def to_records(rows: Sequence[Sequence[Any]]) -> Sequence[Record]:
    """The records of (noun, version, body, ...). Raises StorageError when one cannot be read."""
    with _collector_paused():
        return [to_record(row) for row in rows]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Looking for cycles among a million new objects that have none takes longer than making them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def to_record(row: Sequence[Any]) -> Record:
    """The record of (noun, version, body, ...). Raises StorageError when it cannot be read."""
    name, version, body = row[:3]
    try:
        return Record(noun=decode(body, _CLASSES[name]), version=version)
    except (InputError, KeyError) as error:
        raise StorageError(
            f"a record of the store cannot be read: {name}: {error}: {body[:200]}",
            hint="It was changed by hand or by another version of Gridmill: put a backup in its place.",
        ) from error


def to_event(row: Sequence[Any]) -> Event:
    """The event of a row of the event table."""
    sequence, time, kind, run_id, job, attempt_id, pod_id, number, body = row
    return Event(
        sequence=sequence,
        time=time,
        type=kind,
        run_id=run_id,
        job=job,
        attempt_id=attempt_id,
        pod_id=pod_id,
        number=number,
        body=decode(body, dict[str, Any]),
    )
