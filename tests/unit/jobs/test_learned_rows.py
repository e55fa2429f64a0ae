"""Rows are known again by a hash, whatever their columns' types; of very many rows by a sample."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.training import ModelKind, Objective
from gridmill.errors import StorageError
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.training_rows import FILE, dataset_hashes, note_learned, row_hashes, seen_rows


def card(**more: object) -> ModelCard:
    known = {"kind": ModelKind.LINEAR, "objective": Objective.REGRESSION, "labels": ("y",), "encodings": ()}
    return ModelCard(**{**known, "dataset": "p/d@1", "content": "old", **more})


def dataset(folder: Path, table: pa.Table, name: str = "p/d") -> tuple[Artifact, Partitions]:
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet", row_group_size=100)
    output = Output(kind=ArtifactKind.DATASET, uri="d")
    return Artifact(id=f"{name}@2", name=name, number=2, output=output, fingerprint="new"), open_partitions(
        folder
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, 2, None, -7], pa.int32()), pa.array([1.0, 2.0, None, -7.0])),
        (pa.array(["a", "", None, "a"]), pa.array(["a", "", None, "a"]).dictionary_encode()),
        (pa.array(["a", "b"], pa.string()), pa.array(["a", "b"], pa.large_string())),
        (pa.array([0, 86_400_000_000], pa.timestamp("us")), pa.array([0, 1], pa.date32())),
        (pa.array([5, None], pa.timestamp("us", "UTC")), pa.array([5000, None], pa.timestamp("ns"))),
    ],
)
def test_equal_values_have_equal_hashes_whatever_their_type(one, other):
    hashes = [row_hashes(pa.table({"k": pa.chunked_array([some])}), ["k"]) for some in (one, other)]
    assert hashes[0].tolist() == hashes[1].tolist()
    assert len(set(hashes[0].tolist())) == len(set(one.to_pylist()))


def test_a_hash_depends_on_every_column_and_its_place():
    table = pa.table({"a": [1, 2, 1, 2, None], "b": [2, 1, 1, 2, 0], "c": [0.1, 0.2, 0.3, 0.4, 0.1]})
    for columns in (["a", "b"], ["a", "b", "c"], ["c", "a"]):
        assert len(set(row_hashes(table, columns).tolist())) == 5
    swapped = pa.table({"a": table["b"], "b": table["a"]})
    assert row_hashes(table, ["a", "b"])[0] != row_hashes(swapped, ["a", "b"])[0]


def test_a_million_rows_have_a_million_hashes():
    hour = np.arange(1_000_000)
    table = pa.table({"city": hour % 100, "time": pa.array(hour // 100 * 3_600_000_000, pa.timestamp("us"))})
    assert len(np.unique(row_hashes(table, ["city", "time"]))) == 1_000_000


def test_the_rows_of_a_file_are_found_whatever_their_groups(tmp_path):
    table = pa.table({"k": np.arange(1000)})
    _, parts = dataset(tmp_path / "d", table)
    rows = np.array([0, 99, 100, 101, 555, 999])
    np.testing.assert_array_equal(dataset_hashes(parts, ["k"], rows), row_hashes(table, ["k"])[rows])
    assert len(dataset_hashes(parts, ["k"], rows[:0])) == 0


@pytest.mark.parametrize("most", [10_000, 300])
def test_of_very_many_rows_a_sample_is_known_exactly(tmp_path, most):
    time = pa.array(np.arange(2000), pa.timestamp("us"))
    artifact, parts = dataset(tmp_path / "d", pa.table({"time": time}))
    hashes = dataset_hashes(parts, ["time"])
    learned = note_learned(tmp_path, hashes, ["time"], np.arange(1000), np.arange(1000, 1500), most)
    found = seen_rows(tmp_path, card(time="time", learned=learned), artifact, parts, np.arange(2000))
    assert learned.train + learned.validation == min(most, 1500)
    number = np.arange(2000)
    np.testing.assert_array_equal(found.train[found.known], (number < 1000)[found.known])
    np.testing.assert_array_equal(
        found.validation[found.known], ((number >= 1000) & (number < 1500))[found.known]
    )
    assert found.known.sum() == 2000 if most > 1500 else 350 < found.known.sum() < 450


def test_numbers_without_a_time_are_the_rows_of_the_same_dataset_only(tmp_path):
    ours, parts = dataset(tmp_path / "d", pa.table({"id": np.arange(50)}))
    theirs, others = dataset(tmp_path / "e", pa.table({"id": np.arange(50)}), name="p/e")
    learned = note_learned(tmp_path, dataset_hashes(parts, ["id"]), ["id"], np.arange(30), np.arange(0))
    model = card(entity=("id",), learned=learned)
    assert seen_rows(tmp_path, model, ours, parts, np.arange(50)).train.sum() == 30
    found = seen_rows(tmp_path, model, theirs, others, np.arange(50))
    assert not found.known.any()
    assert not found.train.any()


def test_of_a_model_that_keeps_none_nothing_is_known(tmp_path):
    artifact, parts = dataset(tmp_path / "d", pa.table({"time": pa.array(np.arange(9), pa.timestamp("us"))}))
    assert not seen_rows(tmp_path, card(), artifact, parts, np.arange(9)).known.any()


def test_hashes_that_cannot_be_read_are_an_error(tmp_path):
    artifact, parts = dataset(tmp_path / "d", pa.table({"time": pa.array(np.arange(9), pa.timestamp("us"))}))
    hashes = dataset_hashes(parts, ["time"])
    learned = note_learned(tmp_path, hashes, ["time"], np.arange(3), np.arange(0))
    (tmp_path / FILE).write_bytes(b"short")
    with pytest.raises(StorageError, match="cannot be read"):
        seen_rows(tmp_path, card(time="time", learned=learned), artifact, parts, np.arange(9))


def test_the_hash_of_a_text_depends_on_nothing_but_the_text():
    random = np.random.default_rng(0)
    lengths = [*range(70), 200, *random.integers(0, 70, 300)]
    texts = ["".join(random.choice(list("ab\0é"), n)) for n in lengths]
    texts = [*dict.fromkeys([*texts, "a", "a\0", "a" * 8, "a" * 8 + "\0"])]
    together = row_hashes(pa.table({"k": texts}), ["k"])
    alone = [row_hashes(pa.table({"k": [text]}), ["k"])[0] for text in texts]
    assert together.tolist() == alone
    assert len(set(alone)) == len(texts)
    sliced = row_hashes(pa.table({"k": pa.array([None, *texts]).slice(5)}), ["k"])
    assert sliced.tolist() == alone[4:]


def test_hashes_stay_what_they_are():
    """Models keep them: another hash would make them know no row again."""
    table = pa.table({"a": ["x", None, "y" * 80], "n": [1, 2, 3], "f": [0.5, 1.0, None]})
    found = row_hashes(table, ["a", "n", "f"]).tolist()
    assert found == [7690783221951456930, 9129088256085860849, 1005546448967536262]
