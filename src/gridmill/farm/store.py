"""The farm's records (tenants, invitations, deployments) in one SQLite file, which commands read too."""

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
    """Results that were not downloaded in time and are deleted (`time`: since when, Unix)."""

    deployment: str
    tenant: str
    time: float
    message: str


_TOLD_SECONDS, _TOLD_LOSSES = 30 * 86400.0, 100


def obsolete_losses(losses: Sequence[LostResults], now: float) -> tuple[LostResults, ...]:
    """Those that were told for a month, and all but the latest hundred."""
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
"""The `user_version` of the file. Those of before the first release have none, and other names of records."""


class RecordStore:
    """The records of the farm by their keys. Safe to call from several threads and processes. Raises
    StorageError."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._decoded: dict[type[Any], tuple[Any, ...]] = {}
        self._seen_version = -1
        self.damaged: list[str] = []
        """Records that are not what was written, as far as they were met (`Tenant lab`)."""
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
        version = self._version()  # again: another process may have been first
        if version != _FORMAT and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._db.execute("ROLLBACK")
            self._db.close()
            whose = "a newer Gridmill" if version > _FORMAT else "a Gridmill before its first release"
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
        """All that is done inside, or nothing; nobody else writes meanwhile. Not within another."""
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
        """All nouns of a kind, by key: the same tuple as long as nothing has changed. Damaged ones are left
        out, and reported once."""
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
        """Read all records; those that are damaged."""
        for kind in get_args(Noun):
            self.all(kind)
        return self.damaged

    def _notice_others(self) -> None:
        """What another process has written, such as `gridmill farm invite`, is read again."""
        [(version,)] = self._db.execute("PRAGMA data_version")
        if version != self._seen_version:
            self._decoded.clear()
            self._seen_version = version

    def find(self, kind: type[T], key: str) -> T | None:
        """The noun of that key. Raises StorageError where it is damaged: it must not pass for one that is not
        there, as numbers of Unix users are among them."""
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
        """The noun of a row; None, and a warning the first time, where it is not what was written."""
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
        """Keep or replace them."""
        with self._lock, _explained():
            rows = [_row(noun) for noun in nouns]
            self._forget(nouns)
            self._db.executemany("INSERT OR REPLACE INTO nouns VALUES (?,?,?,?)", rows)

    def remove(self, *nouns: Noun) -> None:
        """Forget them; may be repeated."""
        with self._lock, _explained():
            rows = [(type(noun).__name__, key_of(noun)) for noun in nouns]
            self._forget(nouns)
            self._db.executemany("DELETE FROM nouns WHERE kind=? AND key=?", rows)

    def _forget(self, nouns: Iterable[Noun]) -> None:
        for kind in {type(noun) for noun in nouns}:
            self._decoded.pop(kind, None)

    def close(self) -> None:
        """May be repeated."""
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
    """What tells a noun from others of its kind."""
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
    """The farm's, in HOME/farm. Raises StorageError."""
    (settings.home / "farm").mkdir(parents=True, exist_ok=True, mode=0o700)
    return RecordStore(settings.home / "farm" / "records.db")
