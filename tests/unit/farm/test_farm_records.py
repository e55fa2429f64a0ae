"""The file of a farm's records: what another version wrote is refused, and stays as it was."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gridmill.errors import StorageError
from gridmill.farm.store import RecordStore
from gridmill.farm.tenant import Invitation


@pytest.mark.parametrize(
    ("version", "whose"), [(0, "a version of Gridmill before its first release"), (99, "a newer Gridmill")]
)
def test_records_of_another_version_are_refused_and_kept(tmp_path: Path, version: int, whose: str) -> None:
    """Read as they are, a farm would have no tenants, and say nothing of it."""
    path = tmp_path / "records.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE nouns (kind TEXT, key TEXT, body BLOB, PRIMARY KEY (kind, key))")
        db.execute("INSERT INTO nouns VALUES ('Source', 'lab', '{}')")
        db.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StorageError, match=rf"written by {whose} \(format {version}; this one reads 2\)"):
        RecordStore(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT kind, key FROM nouns").fetchall() == [("Source", "lab")]


def test_two_processes_may_open_new_records(tmp_path: Path) -> None:
    first, second = RecordStore(tmp_path / "records.db"), RecordStore(tmp_path / "records.db")
    first.put(Invitation(hash="a", expires=1.0))
    assert [one.hash for one in second.all(Invitation)] == ["a"]
    first.close()
    second.close()


def fail_after_removing(records: RecordStore, invitation: Invitation) -> None:
    with records.change():
        records.remove(invitation)
        assert invitation not in records.all(Invitation)
        raise ZeroDivisionError


def test_what_another_process_writes_is_read(tmp_path: Path) -> None:
    mine, other = RecordStore(tmp_path / "records.db"), RecordStore(tmp_path / "records.db")
    one, two = (Invitation(hash=name, expires=1.0) for name in ("a", "b"))
    mine.put(one)
    assert mine.all(Invitation) is mine.all(Invitation)  # nothing is decoded again
    other.put(two)
    assert mine.all(Invitation) == (one, two)
    with pytest.raises(ZeroDivisionError):
        fail_after_removing(mine, one)
    assert mine.all(Invitation) == (one, two)
    other.remove(one)
    assert mine.all(Invitation) == (two,)
    mine.close()
    other.close()


def test_a_damaged_record_is_left_out_and_never_taken_for_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = RecordStore(tmp_path / "records.db")
    one, two = (Invitation(hash=name, expires=1.0) for name in ("a", "b"))
    records.put(one, two)
    with closing(sqlite3.connect(tmp_path / "records.db")) as db, db:
        db.execute("UPDATE nouns SET body = CAST(replace(body, '1.0', '9.0') AS BLOB) WHERE key = 'a'")
    assert records.check() == ["Invitation a"]
    assert records.all(Invitation) == (two,)
    with pytest.raises(StorageError, match="record of Invitation a is damaged"):
        records.find(Invitation, "a")
    assert capsys.readouterr().err.count("Invitation a is damaged") == 1
    records.put(one)
    assert records.all(Invitation) == (one, two)
    records.close()
