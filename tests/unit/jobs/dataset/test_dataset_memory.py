"""How the memory of a dataset job is divided, and what happens where the engine's part is too little."""

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Window
from gridmill.errors import StorageError
from gridmill.jobs import duckdb_engine
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.run import run
from gridmill.jobs.dataset.window_engine import bytes_for_chunks
from gridmill.jobs.duckdb_engine import (
    BASE_BYTES,
    LEAST_MEMORY_BYTES,
    MEMORY_SHARE,
    SMALL_SHARE,
    engine_bytes,
)
from gridmill.jobs.parquet import storage_errors

BASIS = Basis(table="rows", time="time", entity=("user",))
SPEC = DatasetSpec(
    basis=BASIS, windows=(Window(column="v", aggregates=(Aggregate.SUM,), span_seconds=86_400),)
)
ROWS, ENTITIES = 400_000, 300_000


def with_memory(context: JobContext, memory_bytes: int) -> JobContext:
    given = Amounts(cpus=2, memory_bytes=memory_bytes)
    return replace(context, order=replace(context.order, given=given))


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    return DatasetCase(tmp_path).context(SPEC)


def test_the_engine_has_what_chunks_leave_and_at_least_its_small_share(context: JobContext) -> None:
    def share(memory_bytes: int, beside: int) -> float:
        return engine_bytes(with_memory(context, memory_bytes), beside) / (memory_bytes - BASE_BYTES)

    beside = bytes_for_chunks(1)
    assert share(8 * GIB, 0) == pytest.approx(MEMORY_SHARE)
    assert share(8 * GIB, beside) == pytest.approx(MEMORY_SHARE), "chunks are never as large as that"
    assert share(2 * GIB, beside) == pytest.approx(SMALL_SHARE)
    assert SMALL_SHARE < share(4 * GIB, beside) < MEMORY_SHARE
    assert engine_bytes(with_memory(context, BASE_BYTES), beside) == LEAST_MEMORY_BYTES


def test_what_the_engine_takes_of_a_large_size_it_may_take_of_the_next(context: JobContext) -> None:
    """A size is learned from a peak, plus half: no run that was well needs twice the memory the next time."""
    first = engine_bytes(with_memory(context, 9 * GIB), bytes_for_chunks(2))
    learned = int(first * 1.5)  # had nothing been held beside it
    assert engine_bytes(with_memory(context, learned), bytes_for_chunks(2)) >= first


def test_an_engine_that_runs_out_while_rows_are_read_lacks_memory_and_not_disk(tmp_path: Path) -> None:
    """DuckDB says it through Arrow, as an OSError; one whose spill has filled the disk says that too."""
    with pytest.raises(MemoryError, match="allocate"), storage_errors(tmp_path):
        raise OSError("Out of Memory Error: could not allocate block of size 256.0 KiB")
    with pytest.raises(StorageError, match="disk is full"), storage_errors(tmp_path):
        raise OSError("Out of Memory Error: failed to offload: No space left on device")


def test_what_a_reader_says_is_what_is_understood(tmp_path: Path) -> None:
    with duckdb.connect(config={"memory_limit": "24MB", "threads": 1, "temp_directory": ""}) as connection:
        wide = "SELECT i, list(i) OVER (ORDER BY i ROWS 2000 PRECEDING) AS a FROM range(100000) AS t(i)"
        with pytest.raises((MemoryError, duckdb.OutOfMemoryException)), storage_errors(tmp_path):
            for _ in connection.sql(wide).to_arrow_reader(1000):
                pass


def test_an_engine_that_runs_out_beside_chunks_has_their_memory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, random = DatasetCase(tmp_path), np.random.default_rng(0)
    names = pa.array([f"a long name of the user {number:012d}" for number in range(ENTITIES)])
    times = np.sort(random.integers(0, 10**12, ROWS))
    case.give(
        "rows",
        {
            "user": names.take(pa.array(random.integers(0, ENTITIES, ROWS))),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "v": random.random(ROWS),
        },
    )
    expected = case.table(case.make(SPEC))
    monkeypatch.setattr(
        duckdb_engine, "LEAST_MEMORY_BYTES", MIB
    )  # rows by the million would take the test minutes
    capsys.readouterr()
    scarce = with_memory(case.context(SPEC, "scarce", cpus=2), BASE_BYTES + 80 * MIB)
    made = run(scarce).outputs[0]
    assert "computed again, with more memory for the engine" in capsys.readouterr().out
    keys = [("user", "ascending"), ("time", "ascending"), ("v", "ascending")]
    assert case.table(made).sort_by(keys).equals(expected.sort_by(keys))
    assert not list(tmp_path.rglob("*.draft"))
