import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.artifact import Output
from gridmill.domain.sink import Constraint, Retain
from gridmill.errors import InputError
from gridmill.jobs.sink import maintenance, write
from gridmill.jobs.sink.files_to_load import LoadedFile
from gridmill.jobs.sink.maintenance import MOST_SMALL, SMALL_BYTES, remove_unused, small_groups
from gridmill.jobs.sink.table import SinkTable, open_sink_table

DAY = 24 * 3600.0


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def many(case: SinkCase, first: int = 0, number: int = MOST_SMALL) -> None:
    for index in range(first, first + number):
        case.write(f"{index:03d}.csv", f"a,b\n{index},x\n{index},y\n")


def used(case: SinkCase) -> set[str]:
    return {entry.path for entry in open_sink_table(case.folder / "root" / TABLE).loaded}


def wanted(*indices: int) -> list[dict[str, object]]:
    return sorted(({"a": a, "b": b} for a in indices for b in "xy"), key=str)


def test_small_files_of_one_load_share_a_data_file_that_is_read_once(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 300
    many(case, number=number)
    case.write("empty.csv", "a,b\n")
    before = case.load()
    assert len(used(case)) == 1
    assert case.load().table_version == before.table_version  # nor is a file without rows read again
    reads: list[str] = []
    opened = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, **given: reads.append("") or opened(self, **given)
    )
    case.write("007.csv", "a,b\n7,z\n")
    (case.folder / "009.csv").rename(case.folder / "nine.csv")
    case.load()
    assert len(reads) < 10  # not one for each of the files
    rest = wanted(*(n for n in range(number) if n != 7))
    assert case.rows() == sorted([*rest, {"a": 7, "b": "z"}], key=str)
    assert case.rows(before.table_version) == wanted(*range(number))


def test_many_small_files_are_put_together_and_still_known_apart(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "LEAST_TOGETHER", 1000)
    many(case, number=MOST_SMALL - 1)
    before = case.load()
    assert len(used(case)) == MOST_SMALL - 1
    many(case, MOST_SMALL - 1, 1)
    output = case.load()
    assert len(used(case)) == 1
    assert case.rows(output.table_version) == wanted(*range(MOST_SMALL))
    assert case.rows(before.table_version) == wanted(*range(MOST_SMALL - 1))  # time goes back as far as ever
    assert (output.rows, output.details["rows_added"]) == (2 * MOST_SMALL, 2)
    assert case.load().table_version == output.table_version  # nothing is loaded again


def test_a_file_among_those_put_together_changes_or_goes(case: SinkCase) -> None:
    many(case)
    unique = (Constraint(unique=("a", "b")),)
    case.load(constraints=unique)
    case.write("007.csv", "a,b\n7,z\n7,x\n")
    (case.folder / "003.csv").unlink()
    output = case.load(constraints=unique)
    rest = [row for row in wanted(*range(MOST_SMALL)) if row["a"] != 7]
    assert case.rows() == sorted([*rest, {"a": 7, "b": "z"}, {"a": 7, "b": "x"}], key=str)
    assert output.details["vanished"] == 1
    assert output.details["columns"]["b"]["max"] == "z"
    assert case.load(constraints=unique).table_version == output.table_version
    case.write("100.csv", "a,b\n8.5,x\n")  # widens all of it
    case.load(constraints=unique)
    assert len(case.rows()) == 2 * MOST_SMALL + 1
    case.write("008.csv", "a,b\n8,w\n")
    case.load(constraints=unique)
    assert [row["b"] for row in case.rows() if row["a"] == 8] == ["w"]


def test_which_files_are_put_together() -> None:
    def loaded(size: int, rows: int, number: int) -> list[LoadedFile]:
        return [
            LoadedFile(path=f"{size}-{n}", size_bytes=size, rows=rows, key="k", content=f"{n}")
            for n in range(number)
        ]

    large = loaded(SMALL_BYTES, 10, 100)
    assert small_groups(large) == []
    assert small_groups([*large, *loaded(1, 10, MOST_SMALL - 1)]) == []
    (group,) = small_groups([*large, *loaded(1, 10, MOST_SMALL)])
    assert len(group.paths) == MOST_SMALL
    assert (
        len(small_groups(loaded(1, 1_000_000, MOST_SMALL))) == MOST_SMALL / 2
    )  # of at most two million rows


def test_old_rows_go_and_are_not_loaded_again(case: SinkCase) -> None:
    now = datetime.now(UTC)
    old, young = (now - timedelta(days=100)).isoformat(), (now - timedelta(days=1)).isoformat()
    case.write("1.csv", f"t,a\n{old},1\n{old},2\n")
    case.write("2.csv", f"t,a\n{old},3\n{young},4\n,5\n")
    retain = Retain(time="t", keep_seconds=90 * DAY)
    before = case.load()
    output = case.load(retain=retain)
    assert sorted(case.table()["a"].to_pylist()) == [4, 5]
    assert output.rows == 2
    assert case.load(retain=retain).table_version == output.table_version
    assert len(case.rows(before.table_version)) == 5
    (case.folder / "1.csv").unlink()
    assert case.load(retain=retain).details["vanished"] == 0  # no row of it is left to lose
    with pytest.raises(InputError, match="column 'a' holds no times"):
        case.load(retain=Retain(time="a", keep_seconds=1.0))


def test_rows_from_before_there_was_a_time_stay(case: SinkCase) -> None:
    case.write("1.csv", "a\n1\n")
    case.load()
    case.write("2.csv", "a,t\n2,2001-01-01T00:00:00\n3,\n")
    case.load(retain=Retain(time="t", keep_seconds=DAY))
    assert sorted(case.table()["a"].to_pylist()) == [1, 3]


def test_files_of_versions_that_are_referred_to_are_never_removed(case: SinkCase) -> None:
    many(case, number=3)
    outputs: list[Output] = [case.load()]
    for index in range(3):
        case.write(f"{index:03d}.csv", f"a,b\n{index},new\n")
        outputs.append(case.load())
    folder = case.folder / "root" / TABLE
    for path in folder.glob("*.parquet"):
        os.utime(path, (time.time() - 2 * DAY,) * 2)
    young = folder / "about-to-be-committed.parquet"
    young.touch()
    first, _, third, _ = (output.table_version or 0 for output in outputs)
    case.load(kept=(first, third))
    assert young.exists()
    assert case.rows(first) == wanted(0, 1, 2)
    assert len(case.rows(third)) == 4
    assert len(case.rows()) == 3
    assert len(list(folder.glob("*.parquet"))) == 3 + 3 + 1  # of the second version alone: none


def test_versions_are_not_opened_where_no_file_is_old(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(case, number=2)
    output = case.load()
    opened: list[int | None] = []

    def open_(path: Path, version: int | None = None) -> SinkTable:
        opened.append(version)
        return open_sink_table(path, version)

    monkeypatch.setattr(maintenance, "open_sink_table", open_)
    folder, versions = case.folder / "root" / TABLE, (output.table_version or 0,)
    assert remove_unused(folder, versions, time.time()) == 0
    assert opened == []
    assert remove_unused(folder, versions, time.time() + 2 * DAY) == 0
    assert opened == [None]


def test_rejects_that_no_version_refers_to_are_removed(case: SinkCase) -> None:
    positive = (Constraint(column="a", min=0),)
    case.write("1.csv", "a\n1\n-1\n")
    case.write("2.csv", "a\n2\n")
    first = case.load(constraints=positive).table_version or 0
    case.write("1.csv", "a\n1\n-2\n")
    second = case.load(constraints=positive).table_version or 0
    folder = case.folder / "root" / TABLE.replace("/table", "/rejects")
    left = folder / "left-by-an-attempt-that-was-killed.parquet"
    shutil.copy(next(folder.glob("*.parquet")), left)
    assert len(list(folder.glob("*.parquet"))) == 3
    case.load(constraints=positive, kept=(first, second))
    assert left.exists()  # it is young
    for path in folder.glob("*.parquet"):
        os.utime(path, (time.time() - 2 * DAY,) * 2)
    case.load(constraints=positive, kept=(first, second))
    assert len(list(folder.glob("*.parquet"))) == 2
    output = case.load(constraints=positive, kept=(second,))
    assert len(list(folder.glob("*.parquet"))) == 1
    assert [row["record"] for row in output.details["rejects"]["sample"]] == ['{"a": "-2"}']
