"""A version in the hands of a program: as Arrow, pandas and polars, batch by batch, and as files."""

import io
import json
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from gridmill.domain.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.errors import InputError, NotFoundError, StorageError, UnavailableError
from gridmill.sdk.loaded import Version

pandas = pytest.importorskip("pandas")

SPLITS = ["train"] * 600 + ["validation"] * 200 + ["test"] * 200
DATASET = pa.table({"x": np.arange(1000), "y": np.arange(1000) / 7, "split": SPLITS})


def version(root: Path, kind: str, uri: str, schema: pa.Schema | None = None, **more: object) -> Version:
    columns = tuple(Column(name=item.name, type=str(item.type)) for item in schema or ())
    output = Output(kind=ArtifactKind(kind), uri=uri, columns=columns, **more)
    artifact = Artifact(id="p/a@1", name="p/a", number=1, output=output, fingerprint="f")
    return Version(artifact=artifact, root=str(root))


def write(root: Path, table: pa.Table, kind: str = "dataset", files: int = 2) -> Version:
    folder = root / "a"
    folder.mkdir()
    step = -(-table.num_rows // files)
    for part in range(files):
        piece = table.slice(part * step, step)
        pq.write_table(piece, folder / f"part-{part:05}.parquet", row_group_size=max(1, step // 4))
    return version(root, kind, "a", table.schema)


@pytest.fixture
def dataset(tmp_path: Path) -> Version:
    return write(tmp_path, DATASET)


def test_the_rows_are_all_there_in_order(dataset: Version):
    assert dataset.columns == ("x", "y", "split")
    assert dataset.to_arrow().equals(DATASET)
    assert dataset.to_pandas().equals(DATASET.to_pandas())


def test_polars_has_them_too(dataset: Version):
    polars = pytest.importorskip("polars")
    assert dataset.to_polars(columns=["x"]).equals(polars.DataFrame({"x": np.arange(1000)}))


@pytest.mark.parametrize("columns", [["y", "x"], ["split"], "x"])
@pytest.mark.parametrize("split", [None, "test"])
def test_columns_and_a_split_can_be_chosen(dataset: Version, columns: list[str] | str, split: str | None):
    names = [columns] if isinstance(columns, str) else columns
    expected = DATASET.select(names).slice(800 if split else 0)
    assert dataset.to_arrow(columns=columns, split=split).equals(expected)
    batches = list(dataset.to_batches(columns=columns, split=split, rows=64))
    assert pa.Table.from_batches(batches).equals(expected)
    assert max(batch.num_rows for batch in batches) <= 64


def test_batches_hold_no_more_than_row_groups(tmp_path: Path):
    table = pa.table({"x": np.arange(1_000_000), "y": np.zeros(1_000_000)})
    found = write(tmp_path, table, files=10)
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in found.to_batches())
    assert most < 4_000_000  # of 16 MB


def test_a_sink_is_read_as_its_version_was(tmp_path: Path):
    for values in ([1, 2], [3]):
        write_deltalake(tmp_path / "s", pa.table({"x": values}), mode="append")
    outage = {"time": "x", "begins": "2024-01-01", "ends": "2024-01-02"}
    assert version(tmp_path, "sink", "s", table_version=0).to_arrow()["x"].to_pylist() == [1, 2]
    assert sorted(version(tmp_path, "sink", "s", table_version=1).to_arrow()["x"].to_pylist()) == [1, 2, 3]
    times = pa.array([datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2)])
    write_deltalake(tmp_path / "t", pa.table({"x": times}))
    found = version(tmp_path, "sink", "t", table_version=0, details={"outages": [outage]})
    assert found.to_arrow()["x"].to_pylist() == [datetime(2024, 1, 2, tzinfo=UTC)]
    assert [batch.num_rows for batch in found.to_batches()] == [1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda v: v.to_arrow(columns=["z"]), "p/a@1 has no column 'z'"),
        (lambda v: v.to_arrow(columns=["spilt"]), "did you mean `split`"),
        (lambda v: v.to_arrow(columns=5), "`columns` is a list of names, got 5"),
        (lambda v: v.to_arrow(columns=[]), "`columns` is a list of names"),
        (lambda v: v.to_pandas(split="tset"), "has no split 'tset'"),
        (lambda v: v.to_batches(rows=0), "`rows` must be 1 or more, got 0"),
        (lambda v: v.to_batches(rows="many"), "`rows` must be 1 or more, got 'many'"),
        (lambda v: v.predict([{"x": 1}]), "p/a@1 is a dataset, which has no model"),
        (lambda v: v.write("x.onnx"), "which has no graph"),
        (lambda v: v.write("x.xlsx"), "the format 'xlsx' cannot be written"),
        (lambda v: v.write("x"), "the format is missing"),
        (lambda v: v.write(io.BytesIO()), "the format is missing"),
        (lambda v: v.write("/nowhere/x.csv"), "cannot be written: No such file"),
    ],
)
def test_wrong_calls_are_clear_errors(dataset: Version, call: object, text: str):
    with pytest.raises(InputError, match=text):
        call(dataset)


def test_a_prediction_has_no_splits_and_a_model_no_rows(tmp_path: Path):
    found = write(tmp_path, pa.table({"row": [0], "prediction": [1.0]}), "prediction", files=1)
    with pytest.raises(InputError, match="p/a@1 has no splits"):
        found.to_arrow(split="test")
    model = version(tmp_path, "model", "a")
    with pytest.raises(InputError, match="p/a@1 is a model, which has no rows"):
        model.to_pandas()
    with pytest.raises(InputError, match=r"can be written as \.onnx, not as \.csv"):
        model.write(tmp_path / "x.csv")


def test_where_the_files_are_not_is_said(dataset: Version, tmp_path: Path):
    with pytest.raises(UnavailableError, match="on the control node's machine, not on this machine"):
        _ = version(tmp_path / "elsewhere", "dataset", "a").path
    with pytest.raises(StorageError, match="the files of p/a@1 are deleted"):
        version(tmp_path, "dataset", "b").to_arrow()
    with pytest.raises(NotFoundError, match="p/a@1 has no files"):
        _ = version(tmp_path, "files", "").path
    (tmp_path / "a/part-00001.parquet").write_bytes(b"broken")
    with pytest.raises(StorageError, match="cannot be read"):
        dataset.to_arrow()


def test_what_is_not_installed_is_said(dataset: Version, monkeypatch: pytest.MonkeyPatch):
    for library in ("pandas", "polars"):
        monkeypatch.setitem(__import__("sys").modules, library, None)
        with pytest.raises(InputError, match=f"the library {library} is not installed") as caught:
            getattr(dataset, f"to_{library}")()
        assert caught.value.hint == f"Install it with `pip install {library}`, or use to_arrow()."


def test_the_files_of_a_command_are_named(tmp_path: Path):
    (tmp_path / "f/in").mkdir(parents=True)
    for name in ("b.txt", "in/a.txt"):
        (tmp_path / "f" / name).touch()
    found = version(tmp_path, "files", "f")
    assert found.files() == (tmp_path / "f/b.txt", tmp_path / "f/in/a.txt")
    with pytest.raises(InputError, match="p/a@1 is files of a command, which has no rows"):
        found.to_arrow()


MIXED = pa.table(
    {
        "text": ["plain", 'with "quotes", and\nlines', "", None],
        "number": [1.5, float("nan"), float("inf"), None],
        "whole": [2**53 + 1, None, -1, 0],
        "flag": [True, None, False, True],
        "day": [date(2024, 2, 29), None, date(1, 1, 1), date(9999, 12, 31)],
        "at": pa.array([datetime(2024, 1, 5, 15, 4, tzinfo=UTC), None] * 2, pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2024, 1, 5, 15, 4, 0, 250000), None] * 2, pa.timestamp("us")),
        "list": [[1.0, 2.0], [], None, [None]],
        "kind": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    }
)


@pytest.fixture
def mixed(tmp_path: Path) -> Version:
    return write(tmp_path, MIXED)


def test_parquet_keeps_everything(mixed: Version, tmp_path: Path):
    assert mixed.write(tmp_path / "x.parquet") == 4
    found = pq.read_table(tmp_path / "x.parquet")
    assert repr(found.cast(MIXED.schema).to_pylist()) == repr(MIXED.to_pylist())  # NaN is not equal to NaN
    assert not list(tmp_path.glob(".x*"))


def test_csv_is_what_other_programs_read(mixed: Version, tmp_path: Path):
    assert mixed.write(tmp_path / "x.csv") == 4
    lines = (tmp_path / "x.csv").read_text()
    assert lines.startswith('"text","number","whole","flag","day","at","local","list","kind"\n"plain",1.5,')
    assert '"2024-01-05T15:04:00Z","2024-01-05T15:04:00.250000","[1.0, 2.0]","a"' in lines
    read = f"read_csv('{tmp_path / 'x.csv'}', header=true, allow_quoted_nulls=false)"
    found = duckdb.sql(f"select text, whole from {read}").fetchall()
    assert [row[0] for row in found] == ["plain", 'with "quotes", and\nlines', "", None]
    assert [row[1] for row in found] == [2**53 + 1, None, -1, 0]
    again = pandas.read_csv(tmp_path / "x.csv")
    assert again["flag"].tolist()[::2] == [True, False]


def test_json_lines_hold_what_json_can(mixed: Version):
    file = io.BytesIO()
    assert mixed.write(file, format="jsonl") == 4
    rows = [json.loads(line) for line in file.getvalue().decode().splitlines()]
    assert [row["number"] for row in rows] == [1.5, None, None, None]
    assert rows[0]["at"] == "2024-01-05T15:04:00Z"
    assert rows[0]["list"] == [1.0, 2.0]
    assert rows[2]["day"] == "0001-01-01"


def test_bytes_go_into_parquet_alone(tmp_path: Path):
    found = write(tmp_path, pa.table({"name": ["a"], "image": [b"\x00\xff"]}), files=1)
    for ending in ("csv", "jsonl"):
        with pytest.raises(InputError, match="cannot store the binary values of column 'image'"):
            found.write(tmp_path / f"x.{ending}")
    assert not list(tmp_path.glob("*x.*"))
    assert found.write(tmp_path / "x.csv", columns="name") == 1
    assert found.write(tmp_path / "x.parquet") == 1


def test_a_file_is_replaced_only_where_that_is_said(dataset: Version, tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text("mine")
    with pytest.raises(InputError, match="the file exists already"):
        dataset.write(path)
    assert path.read_text() == "mine"
    assert dataset.write(path, replace=True, split="test") == 200


def test_what_is_no_ordinary_file_is_written_into_and_stays(dataset: Version, tmp_path: Path):
    link, target = tmp_path / "link.csv", tmp_path / "target.csv"
    target.touch()
    link.symlink_to(target)
    assert dataset.write(link, replace=True, split="test") == 200
    assert link.is_symlink()
    assert target.read_text().count("\n") == 201
    device = Path("/dev/null")
    assert dataset.write(device, format="csv") == 1000
    assert device.is_char_device()
    with pytest.raises(InputError, match="Is a directory"):
        dataset.write(tmp_path, format="csv")


def test_a_full_disk_is_said(dataset: Version):
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        dataset.write("/dev/full", format="csv")
    assert Path("/dev/full").is_char_device()


def test_a_file_is_not_there_in_part(tmp_path: Path):
    found = write(tmp_path, DATASET)
    (tmp_path / "a/part-00001.parquet").write_bytes(pq_with_a_hole(tmp_path / "a/part-00001.parquet"))
    with pytest.raises(StorageError, match="cannot be read"):
        found.write(tmp_path / "x.csv")
    assert not list(tmp_path.glob("*x.csv*"))


def pq_with_a_hole(path: Path) -> bytes:
    """The file with a page overwritten."""
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    return bytes(content)


def test_other_libraries_take_the_folder_as_a_table(dataset: Version):
    assert len(pandas.read_parquet(dataset.path)) == 1000
    assert duckdb.sql(f"select count(*) from '{dataset.path}/*.parquet'").fetchall() == [(1000,)]
    polars = pytest.importorskip("polars")
    assert polars.read_parquet(dataset.path).height == 1000
