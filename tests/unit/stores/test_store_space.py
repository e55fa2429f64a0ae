"""The store's file gives its free pages back to the file system, also one that was made without them."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.small_disks import fill as fill_disk
from tests.kit.small_disks import small_disk

from gridmill.domain.pod_protocol import Event
from gridmill.errors import StorageError
from gridmill.ports.store import Store
from gridmill.stores.sql import make
from gridmill.testing.store_samples import an_event

MIB = 2**20


def fill(store: Store, events: int = 3000) -> None:
    body = {"stream": "out", "text": "x" * 2000}
    for first in range(1, events, 500):
        store.commit([], [replace_body(number, body) for number in range(first, first + 500)])


def replace_body(number: int, body: dict[str, str]) -> Event:
    return replace(an_event(number), body=body)


def on_disk(path: Path) -> int:
    return sum(os.stat(name).st_blocks * 512 for name in path.parent.iterdir())


def test_what_was_deleted_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(make(path)) as store:
        fill(store)
        store.drop_events([an_event(1).run_id])
        before = store.space()
        assert before.free_bytes > 5 * MIB
        assert before.size_bytes == on_disk(path) - (tmp_path / "store.db-shm").stat().st_blocks * 512
        after = store.release_space()
        assert after.free_bytes == 0
        assert after.size_bytes < MIB
        assert on_disk(path) < MIB


def test_a_file_without_incremental_vacuum_is_rewritten_once_it_is_mostly_free(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        older.execute("PRAGMA journal_mode = DELETE")
        older.execute("PRAGMA auto_vacuum = NONE")
        older.execute("VACUUM")
    with closing(make(path)) as store:
        fill(store)
        assert store.space().note
        store.drop_events([an_event(1).run_id])
        assert store.release_space().size_bytes < MIB
        fill(store)
        store.drop_events([an_event(1).run_id])
        assert not store.space().note  # it has become one that gives pages back
        assert store.release_space().free_bytes == 0


def test_a_full_disk_is_named_whatever_sqlite_says() -> None:
    with small_disk(4 * MIB) as place:
        make(place / "store.db").close()
        fill_disk(place, left_bytes=0)
        with pytest.raises(StorageError, match="the disk is full"):
            make(place / "store.db").commit([], [an_event(1)])
