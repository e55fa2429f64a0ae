from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from statistics import mean, stdev

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridmill.jobs.parquet import GROUP_ROWS, write_parquet
from gridmill.jobs.sink.column_stats import ColumnTally, extremes


def in_pieces(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def written(table: pa.Table, folder: Path, rows: int = 1000) -> list[Path]:
    return [part.path for part in write_parquet(in_pieces(table, rows), table.schema, folder, "a")]


PLAIN = pa.table(
    {
        "id": pa.array(range(5), pa.int64()),
        "at": pa.array(range(5), pa.timestamp("us", "UTC")),
        "day": pa.array(range(5), pa.date32()),
        "price.net": [1.5, nan, -0.0, None, 2.0],
        "text": ["a", "b", None, "b", ""],
        "bytes": [b"1", b"2", b"3", b"4", None],
        "late": [True, False, None, True, True],
        "nothing": pa.nulls(5, pa.string()),
    }
)
NESTED = PLAIN.add_column(0, "list", pa.array([[1], [], None, [2, 3], [4]])).add_column(
    2, "struct", pa.array([{"a": 1, "b": "x"}] * 5)
)


@pytest.mark.parametrize("table", [PLAIN, NESTED], ids=["plain", "nested"])
def test_what_is_written_is_read(table: pa.Table, tmp_path: Path) -> None:
    (path,) = written(table, tmp_path)
    again = pq.read_table(path)
    assert again.schema == table.schema
    assert str(again.to_pylist()) == str(table.to_pylist())  # NaN is not equal to itself


def test_whole_numbers_that_grow_take_next_to_no_space(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(GROUP_ROWS + 5), pa.int64())})
    (path,) = written(table, tmp_path)
    assert path.stat().st_size < table.nbytes / 20
    assert pq.read_table(path) == table


def test_texts_that_come_as_numbers_of_a_dictionary_are_texts(tmp_path: Path) -> None:
    pieces = [PLAIN.slice(start, 2) for start in range(0, 5, 2)]  # each gets a dictionary of its own
    coded = [piece.set_column(4, "text", piece["text"].dictionary_encode()) for piece in pieces]
    (part,) = write_parquet(coded, PLAIN.schema, tmp_path, "a")
    assert pq.read_schema(part.path) == PLAIN.schema
    assert str(pq.read_table(part.path).to_pylist()) == str(PLAIN.to_pylist())
    chunk = pq.read_metadata(part.path).row_group(0).column(4)
    assert (chunk.has_dictionary_page, chunk.statistics.min, chunk.statistics.max) == (True, "", "b")


@pytest.mark.parametrize("table", [PLAIN, NESTED], ids=["plain", "nested"])
def test_extremes_are_those_of_all_files(table: pa.Table, tmp_path: Path) -> None:
    first, second = written(table.slice(0, 2), tmp_path / "1"), written(table.slice(2), tmp_path / "2")
    found = extremes([*first, *second], table.schema)
    assert found["id"] == (0, 4)
    assert found["price.net"] == (0.0, 2.0)
    assert found["text"] == ("", "b")
    assert found["late"] == (False, True)
    assert [str(moment) for moment in found["day"]] == ["1970-01-01", "1970-01-05"]
    assert [moment.isoformat() for moment in found["at"]] == [
        "1970-01-01T00:00:00+00:00",
        "1970-01-01T00:00:00.000004+00:00",
    ]
    assert not {"nothing", "list", "struct"} & set(found)


def test_texts_too_long_for_a_footer_have_extremes(tmp_path: Path) -> None:
    table = pa.table({"text": ["b" * 10_000, "a", None]})
    assert extremes(written(table, tmp_path), table.schema)["text"] == ("a", "b" * 10_000)


def test_a_tally_of_batches_is_that_of_all() -> None:
    values = [1.0, nan, 2.5, None, inf, -4.0, 1e9, None]
    tally = ColumnTally()
    for start in range(0, len(values), 3):
        tally.see(pa.record_batch({"a": pa.array(values[start : start + 3], pa.float64())}))
    real = [1.0, 2.5, -4.0, 1e9]
    assert tally.of("a") == {"nulls": 2, "mean": pytest.approx(mean(real)), "std": pytest.approx(stdev(real))}


def test_large_whole_numbers_do_not_overflow() -> None:
    tally = ColumnTally()
    tally.see(pa.record_batch({"a": pa.array([2**62] * 8, pa.int64())}))
    assert tally.of("a") == {"nulls": 0, "mean": 2.0**62, "std": 0.0}
