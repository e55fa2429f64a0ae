"""Looking into versions: previews and differences, with real tables."""

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from rich.console import Console, Group

from gridmill.cli.artifacts import _diff_lines
from gridmill.domain.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.domain.comparison import ArtifactQuery, Difference, VersionDiff, differences, key_of_rows
from gridmill.errors import InputError, StorageError
from gridmill.jobs.inspect_versions import compare_rows, preview
from gridmill.storage.inspect_process import ask

DAY = datetime(2026, 1, 2, tzinfo=UTC)


def version(number: int, uri: str, kind: ArtifactKind = ArtifactKind.DATASET, **output) -> Artifact:
    made = Output(kind=kind, uri=uri, **output)
    return Artifact(id=f"p/j@{number}", name="p/j", number=number, output=made, fingerprint=str(number))


def dataset(root: Path, number: int, rows: list[dict]) -> Artifact:
    folder = root / f"d{number}"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-00000.parquet")
    return version(number, folder.name)


def test_rows_are_counted_as_added_removed_and_changed(tmp_path: Path) -> None:
    old = dataset(tmp_path, 1, [{"k": n, "t": "x", "v": float(n), "gone": 1} for n in range(5)])
    new = dataset(tmp_path, 2, [{"k": n, "t": "x", "v": 9.0 if n == 2 else float(n)} for n in range(2, 7)])
    found = compare_rows(tmp_path, old, new, ("k", "t"))
    assert (found.added, found.removed, found.changed) == (2, 2, 1)


def test_missing_values_are_alike_and_keys_may_be_missing(tmp_path: Path) -> None:
    rows = [{"k": None, "v": 1.0}, {"k": 1, "v": None}]
    found = compare_rows(tmp_path, dataset(tmp_path, 1, rows), dataset(tmp_path, 2, rows), ("k",))
    assert (found.added, found.removed, found.changed) == (0, 0, 0)


def test_a_key_that_does_not_tell_rows_apart_is_refused(tmp_path: Path) -> None:
    one = dataset(tmp_path, 1, [{"k": 1, "v": 1}, {"k": 1, "v": 2}])
    with pytest.raises(InputError, match="same k"):
        compare_rows(tmp_path, one, one, ("k",))
    with pytest.raises(InputError, match="do not both have a column 'other'"):
        compare_rows(tmp_path, one, one, ("other",))


def test_a_table_is_previewed_at_its_own_version(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"day": [DAY], "text": ["x" * 500]}))
    write_deltalake(tmp_path / "t", pa.table({"day": [DAY], "text": ["y"]}), mode="append")
    first = version(1, "t", ArtifactKind.SINK, table_version=0)
    seen = preview(tmp_path, first, 10)
    assert (seen.total, len(seen.rows)) == (1, 1)
    day, text = seen.rows[0]
    assert (day, len(text)) == (DAY.isoformat(), 200)
    later = replace(first, output=replace(first.output, table_version=1))
    assert preview(tmp_path, later, 1).total == 2


def test_a_process_of_its_own_looks_and_says_what_is_wrong(tmp_path: Path) -> None:
    one = dataset(tmp_path, 1, [{"k": 1}])
    seen = ask(ArtifactQuery(root=str(tmp_path), artifact=one, rows=1))
    assert seen.preview is not None
    assert seen.preview.columns == (Column(name="k", type="int64"),)
    with pytest.raises(StorageError, match="cannot be read"):
        ask(ArtifactQuery(root=str(tmp_path), artifact=version(2, "gone"), rows=1))
    with pytest.raises(InputError, match="is outside the storage root"):
        ask(ArtifactQuery(root=str(tmp_path), artifact=version(3, "../../etc"), rows=1))


def test_records_are_compared_part_by_part() -> None:
    details = {
        "options": {"trees": 1},
        "seed": 0,
        "columns": {"a": {"mean": 1.0}},
        "packages": {"numpy": "1"},
    }
    old = version(1, "m", ArtifactKind.MODEL, metrics={"rmse": 2.0}, details=details, rows=1)
    changed = {
        **details,
        "options": {"trees": 2},
        "columns": {"a": {"mean": 1.5}},
        "packages": {"numpy": "2"},
    }
    columns = (Column(name="a", type="double"),)
    new = version(2, "m", ArtifactKind.MODEL, metrics={"rmse": 1.0}, details=changed, rows=1, columns=columns)
    found = [(one.part, one.name, one.before, one.after) for one in differences(old, new)]
    assert found == [
        ("columns", "a", None, "double"),
        ("statistics", "a.mean", 1.0, 1.5),
        ("metrics", "rmse", 2.0, 1.0),
        ("settings", "trees", 1, 2),
        ("settings", "package numpy", "1", "2"),
    ]
    assert list(differences(old, old)) == []


def test_datasets_and_predictions_know_what_tells_their_rows_apart() -> None:
    assert key_of_rows(version(1, "d", details={"entity": ["shop"], "time": "day"})) == ("shop", "day")
    columns = tuple(Column(name=name, type="string") for name in ("shop", "day", "row", "prediction"))
    assert key_of_rows(version(1, "p", ArtifactKind.PREDICTION, columns=columns)) == ("shop", "day")
    assert key_of_rows(version(1, "s", ArtifactKind.SINK)) == ()


def test_sizes_read_as_sizes() -> None:
    assert told(Difference(part="facts", name="size_bytes", before=2048, after=3 * 1024**2)) == (
        "size 2 KiB 3 MiB +153500.0%"
    )
    assert told(Difference(part="facts", name="rows", before=1000, after=2000)) == "rows 1,000 2,000 +100.0%"


def test_long_texts_are_shown_where_they_begin_to_differ() -> None:
    same = "select " + "a, " * 100
    line = told(Difference(part="settings", name="sql", before=f"{same}b", after=f"{same}\nc"))
    assert line.startswith("sql …")
    assert line.count(" b ") == 1
    assert line.endswith(" c")


def told(one: Difference) -> str:
    """Its line, in one space each."""
    file = StringIO()
    Console(file=file, width=300).print(
        Group(*_diff_lines(VersionDiff(before="m@1", after="m@2", differences=(one,))))
    )
    return " ".join(file.getvalue().splitlines()[2].split())
