"""A dataset read a row group at a time: the rows that Arrow's own scanner gives, and few of them held."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from gridmill.jobs.parquet_reader import RowGroupDataset, thrifty

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.float64())])
FILTER = ds.field("a") > 3


@pytest.fixture
def plain(tmp_path: Path) -> ds.FileSystemDataset:
    """Two files; the second is from before there was a column b."""
    pq.write_table(
        pa.table({"a": range(1000), "b": [1.0] * 1000}), tmp_path / "1.parquet", row_group_size=100
    )
    pq.write_table(pa.table({"a": range(1000, 1500)}), tmp_path / "2.parquet", row_group_size=100)
    return ds.dataset([str(tmp_path / f"{n}.parquet") for n in (1, 2)], format="parquet", schema=SCHEMA)


@pytest.mark.parametrize("columns", [None, ["b", "a"], ["b"], []])
@pytest.mark.parametrize(
    "which", [None, FILTER, (ds.field("a") > 950) & (ds.field("a") < 1020), ds.field("a") < 0]
)
def test_the_rows_are_those_of_arrows_own_scanner(plain: ds.FileSystemDataset, columns, which):
    expected = plain.scanner(columns=columns, filter=which).to_table()
    found = thrifty(plain).turns(columns, which).to_reader().read_all()
    assert found.num_rows == expected.num_rows
    assert found.equals(expected) or columns == []


def test_a_filter_of_its_own_stays(plain: ds.FileSystemDataset):
    table = thrifty(plain).filter(FILTER).filter(ds.field("a") < 1400)
    assert isinstance(table, RowGroupDataset)
    assert table.turns(["a"], ds.field("a") > 1390).to_reader().read_all()["a"].to_pylist() == [
        *range(1391, 1400)
    ]
    assert table.count_rows() == table.to_table().num_rows == 1396


def test_duckdb_reads_it_so(plain: ds.FileSystemDataset, monkeypatch: pytest.MonkeyPatch):
    asked = []
    turns = RowGroupDataset.turns
    monkeypatch.setattr(RowGroupDataset, "turns", lambda *given: asked.append(given[1]) or turns(*given))
    with duckdb.connect() as engine:
        engine.register("t", thrifty(plain).filter(FILTER))
        found = engine.sql("SELECT count(*), count(b), sum(a) FROM t WHERE a < 1200").fetchall()
    assert found == [(1196, 996, sum(range(4, 1200)))]
    assert asked


def test_files_are_opened_as_they_are_used(plain: ds.FileSystemDataset):
    read = []

    class Counted(RowGroupDataset):
        def get_fragments(self, filter=None):
            for fragment in super().get_fragments(filter=filter):
                read.append(fragment.path)
                yield fragment

    table = Counted(list(plain.get_fragments()), plain.schema, plain.format, plain.filesystem)
    reader = table.turns().to_reader()
    assert reader.read_next_batch().num_rows == 100
    assert len(read) == 1, "the second file is far from being used"
    assert reader.read_all().num_rows == 1400
    assert len(read) == 2
