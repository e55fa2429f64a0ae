"""Stores the records of the farm (tenants, invitations, deployments) in one SQLite file, which commands read
too."""

import sqlite3
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args
from zlib import crc32

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, StorageError
from gridmill.farm.deployment import AttemptRecord, TenantDeployment
from gridmill.farm.disk import TenantUse
from gridmill.farm.tenant import Invitation, LastContact, Tenant
from gridmill.farm.unix_users import UserCounter
from gridmill.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostResults:
    """Results that were not downloaded in time and were deleted. `time` is the Unix time at which the
    results were deleted."""

    deployment: str
    tenant: str
    time: float
    message: str


_TOLD_SECONDS, _TOLD_LOSSES = 30 * 86400.0, 100


def obsolete_losses(losses: Sequence[LostResults], now: float) -> tuple[LostResults, ...]:
    """Returns the losses that are not reported any more: losses that are older than a month, and all losses
    except the latest hundred."""
    latest = sorted(losses, key=lambda one: one.time)[-_TOLD_LOSSES:]
    return tuple(loss for loss in losses if loss not in latest or loss.time + _TOLD_SECONDS <= now)


Noun: TypeAlias = (
    Tenant
    | LastContact
    | Invitation
    | TenantDeployment
    | LostResults
    | UserCounter
    | AttemptRecord
    | TenantUse
)
_BUSY_SECONDS = 10.0
_COLUMNS = "kind, key, body, checksum"
_FORMAT = 2
"""The `user_version` of the SQLite file. Files that were made before the first release have no
`user_version`, and their records have other names."""


class RecordStore:
    """Stores the records of the farm by their keys. This class can be used from several threads and
    processes. Raises StorageError."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._decoded: dict[type[Any], tuple[Any, ...]] = {}
        self._seen_version = -1
        self.damaged: list[str] = []
        """The names of damaged records that were found, for example `Tenant lab`."""
        try:
            self._db = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._prepare(path)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"the farm's records cannot be opened: {error}", place=str(path)) from error

    def _prepare(self, path: Path) -> None:
        if self._version() == _FORMAT:
            return
        self._db.execute("BEGIN IMMEDIATE")
        # read again under the lock, because another process may have created the tables first
        version = self._version()
        if version != _FORMAT and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._db.execute("ROLLBACK")
            self._db.close()
            whose = (
                "a newer Gridmill" if version > _FORMAT else "a version of Gridmill before its first release"
            )
            raise StorageError(
                f"the farm's records were written by {whose} (format {version}; this one reads {_FORMAT})",
                hint="Start the farm with that version, or set another GRIDMILL_HOME: tenants join again.",
                place=str(path),
            )
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS nouns "
            "(kind TEXT, key TEXT, body BLOB, checksum INTEGER, PRIMARY KEY (kind, key))"
        )
        self._db.execute(f"PRAGMA user_version = {_FORMAT}")
        self._db.execute("COMMIT")

    def _version(self) -> int:
        [(version,)] = self._db.execute("PRAGMA user_version")
        return int(version)

    @contextmanager
    def change(self) -> Iterator[None]:
        """Opens a transaction: either all changes in the `with` block are stored, or none. No other process
        writes during this time. Transactions cannot be nested."""
        with self._lock, _explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._decoded.clear()
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def all(self, kind: type[T]) -> tuple[T, ...]:
        """Returns all records of a type, sorted by key. The same tuple is returned until a record changes.
        Damaged records are skipped, and each of them is reported once."""
        with self._lock, _explained():
            self._notice_others()
            decoded: tuple[T, ...] | None = self._decoded.get(kind)
            if decoded is None:
                query = f"SELECT {_COLUMNS} FROM nouns WHERE kind=? ORDER BY key"
                rows = self._db.execute(query, (kind.__name__,))
                found = (self._read(row, kind) for row in rows)
                decoded = tuple(noun for noun in found if noun is not None)
                self._decoded[kind] = decoded
            return decoded

    def check(self) -> Sequence[str]:
        """Reads all records and returns the damaged records."""
        for kind in get_args(Noun):
            self.all(kind)
        return self.damaged

    def _notice_others(self) -> None:
        """Reads records again that another process has written, for example `gridmill farm invite`."""
        [(version,)] = self._db.execute("PRAGMA data_version")
        if version != self._seen_version:
            self._decoded.clear()
            self._seen_version = version

    def find(self, kind: type[T], key: str) -> T | None:
        """Returns the record with this key, or None if there is no such record. Raises StorageError if the
        record is damaged. A damaged record must not count as missing, because records contain, for example,
        the ids of Unix users."""
        with self._lock, _explained():
            query = f"SELECT {_COLUMNS} FROM nouns WHERE kind=? AND key=?"
            row = self._db.execute(query, (kind.__name__, key)).fetchone()
            noun = None if row is None else self._read(row, kind)
        if row is not None and noun is None:
            raise StorageError(
                f"the farm's record of {kind.__name__} {key} is damaged".rstrip(),
                hint="A tenant can join under another name (`gridmill farm invite`). Else restore "
                "farm/records.db from a backup.",
            )
        return noun

    def _read(self, row: Sequence[Any], kind: type[T]) -> T | None:
        """Returns the record in a row of the table. If the record does not match its checksum, the function
        returns None, and prints one warning for each such record."""
        _, key, body, checksum = row
        try:
            if _checksum(kind.__name__, key, body) == checksum:
                return decode(body, kind)
        except (InputError, TypeError, ValueError, AttributeError):
            pass
        name = f"{kind.__name__} {key}"
        if name not in self.damaged:
            self.damaged.append(name)
            print(f"gridmill: the farm's record of {name} is damaged and is skipped", file=sys.stderr)
        return None

    def put(self, *nouns: Noun) -> None:
        """Store or replace records."""
        with self._lock, _explained():
            rows = [_row(noun) for noun in nouns]
            self._forget(nouns)
            self._db.executemany("INSERT OR REPLACE INTO nouns VALUES (?,?,?,?)", rows)

    def remove(self, *nouns: Noun) -> None:
        """Delete records. Can be repeated."""
        with self._lock, _explained():
            rows = [(type(noun).__name__, key_of(noun)) for noun in nouns]
            self._forget(nouns)
            self._db.executemany("DELETE FROM nouns WHERE kind=? AND key=?", rows)

    def _forget(self, nouns: Iterable[Noun]) -> None:
        for kind in {type(noun) for noun in nouns}:
            self._decoded.pop(kind, None)

    def close(self) -> None:
        """Close the file. Can be repeated."""
        with self._lock:
            self._db.close()


def _row(noun: Noun) -> tuple[str, str, bytes, int]:
    kind, key, body = type(noun).__name__, key_of(noun), encode(noun)
    return kind, key, body, _checksum(kind, key, body)


def _checksum(kind: str, key: str, body: bytes) -> int:
    return crc32(body, crc32(f"{kind}\0{key}\0".encode()))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(f"the farm's records cannot be read or written: {error}") from error


def key_of(noun: Noun) -> str:
    """Returns the key that identifies the record among all records of its type."""
    match noun:
        case Tenant():
            return noun.name
        case LastContact() | TenantUse():
            return noun.tenant
        case Invitation():
            return noun.hash
        case TenantDeployment():
            return f"{noun.tenant}/{noun.id}"
        case AttemptRecord():
            return f"{noun.tenant}/{noun.attempt_id}"
        case UserCounter():
            return "users"
        case LostResults():
            return f"{noun.tenant}/{noun.deployment}"


def open_records(settings: Settings) -> RecordStore:
    """The records in HOME/farm. Raises StorageError."""
    (settings.home / "farm").mkdir(parents=True, exist_ok=True, mode=0o700)
    return RecordStore(settings.home / "farm" / "records.db")
