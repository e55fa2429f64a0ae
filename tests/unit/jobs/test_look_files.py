"""The files of a version: what must be carried for another machine to read it."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.errors import StorageError
from gridmill.jobs.inspect_versions import files_of, log_files


def sink(version: int) -> Output:
    return Output(kind=ArtifactKind.SINK, uri="t", table_version=version)


def carried(root: Path, version: int, to: Path) -> None:
    for name in files_of(root, sink(version)):
        target = to / "t" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((root / "t" / name).read_bytes())


@pytest.mark.parametrize("version", [0, 2, 3, 4, 5])
def test_its_files_alone_are_the_version(tmp_path: Path, version: int) -> None:
    for number in range(6):
        mode = "overwrite" if number == 2 else "append"
        write_deltalake(tmp_path / "a/t", pa.table({"x": [number]}), mode=mode)
        if number == 3:
            DeltaTable(tmp_path / "a/t").create_checkpoint()
    carried(tmp_path / "a", version, tmp_path / "b")
    there = DeltaTable(tmp_path / "b/t", version=version)
    here = DeltaTable(tmp_path / "a/t", version=version)
    assert there.to_pyarrow_table().sort_by("x") == here.to_pyarrow_table().sort_by("x")
    assert there.version() == version
    rows = sorted(path.name for path in (tmp_path / "b/t").glob("*.parquet"))
    assert len(rows) == len(here.file_uris())


def test_a_file_whose_name_must_be_quoted_is_one(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "a/t", pa.table({"x": [1, 2], "part": ["a b", "c%d"]}), partition_by=["part"])
    carried(tmp_path / "a", 0, tmp_path / "b")
    assert DeltaTable(tmp_path / "b/t").to_pyarrow_table().num_rows == 2


def test_a_checkpoint_of_which_files_lack_is_none(tmp_path: Path) -> None:
    names = [f"{n:020}.json" for n in range(4)]
    names += [f"{1:020}.checkpoint.parquet", f"{2:020}.checkpoint.{1:010}.{2:010}.parquet"]
    for name in (*names, "_last_checkpoint"):
        (tmp_path / name).touch()
    assert log_files(tmp_path, 3) == (names[4], *names[1:4])
    (tmp_path / f"{2:020}.checkpoint.{2:010}.{2:010}.parquet").touch()
    assert log_files(tmp_path, 3)[2:] == (names[2], names[3])
    assert log_files(tmp_path, 0) == (names[0],)


def test_a_version_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        files_of(tmp_path, sink(1))


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "m/code").mkdir(parents=True)
    for name in ("a", "code/b", ".hidden"):
        (tmp_path / "m" / name).touch()
    model = Output(kind=ArtifactKind.MODEL, uri="m")
    assert files_of(tmp_path, model) == (".hidden", "a", "code/b")
