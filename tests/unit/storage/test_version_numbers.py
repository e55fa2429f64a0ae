"""A number of a version, or of a run, is never given twice, also where the store that gave it is lost."""

from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.artifact import LATEST, Artifact, ArtifactKind, Output
from gridmill.domain.version_manifest import AliasMove
from gridmill.storage.manifests import keep_manifest, next_number, note_move, numbers_used
from gridmill.storage.root import runs_that_left_files

NAME = "weather/model"


def made(root: Path, number: int, attempt: str, *, files: bool = True) -> Artifact:
    """A version with its manifest and, maybe, its files."""
    version = Artifact(
        id=f"{NAME}@{number}",
        name=NAME,
        number=number,
        output=Output(kind=ArtifactKind.MODEL, uri=f"models/{NAME}/{attempt}"),
        fingerprint="f",
        attempt_id=attempt,
    )
    if files:
        (root / version.output.uri).mkdir(parents=True)
    keep_manifest(root, version, "")
    return version


def test_without_manifests_the_number_is_as_the_store_says(tmp_path: Path):
    assert next_number(tmp_path, NAME, 1, "a", first=True) == 1
    assert next_number(tmp_path, NAME, 4, "a", first=False) == 4


def test_a_version_that_the_store_does_not_know_keeps_its_number(tmp_path: Path):
    for number in (1, 2, 5):
        made(tmp_path, number, f"weather-{number}.model.1")
    assert next_number(tmp_path, NAME, 1, "weather-9.model.1", first=True) == 6
    assert next_number(tmp_path, NAME, 2, "weather-9.model.1", first=False) == 6  # an old backup
    assert next_number(tmp_path, NAME, 6, "weather-9.model.1", first=False) == 6


def test_a_version_that_was_not_committed_gives_its_number_to_the_next_try(tmp_path: Path):
    made(tmp_path, 1, "weather-1.model.1")
    made(tmp_path, 2, "weather-2.model.1", files=False)  # removed when its attempt was lost
    assert next_number(tmp_path, NAME, 2, "weather-2.model.2", first=False) == 2
    made(tmp_path, 2, "weather-2.model.2")
    assert next_number(tmp_path, NAME, 2, "weather-2.model.2", first=False) == 2  # the same end, again


def test_a_manifest_that_cannot_be_read_is_not_written_over(tmp_path: Path):
    made(tmp_path, 1, "weather-1.model.1")
    (tmp_path / f"manifests/{NAME}/1.json").write_bytes(b"\0")
    assert next_number(tmp_path, NAME, 1, "weather-1.model.1", first=True) == 2


def test_removed_versions_are_known_from_the_moves_of_aliases(tmp_path: Path):
    move = AliasMove(time=1.0, name=NAME, alias=LATEST, before="", after=f"{NAME}@7", by="weather-7")
    note_move(tmp_path, move)
    note_move(tmp_path, replace(move, alias="good", before=f"{NAME}@7", after="best by accuracy"))
    assert numbers_used(tmp_path, NAME) == {7}
    assert next_number(tmp_path, NAME, 1, "a", first=True) == 8


def test_runs_are_known_by_what_their_attempts_left(tmp_path: Path):
    for name in (
        "models/weather/model/weather-3.model.1",
        "files/weather/other/.weather-12.other.2.draft",
        "manifests/weather/model/.weather-7.model.1.draft",
        "models/weather/model/weather-x.model.1",
        "models/storm/model/storm-40.model.1",
    ):
        (tmp_path / name).mkdir(parents=True)
    assert sorted(runs_that_left_files(tmp_path, "weather")) == [3, 7, 12]
    assert [*runs_that_left_files(tmp_path, "new")] == []


def test_a_new_name_and_a_free_number_cost_one_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each small job asks, so the folder is listed and the moves are read only where something is there."""
    asked: list[str] = []
    monkeypatch.setattr("os.listdir", lambda path: asked.append(str(path)) or [])
    assert next_number(tmp_path, NAME, 1, "a", first=True) == 1
    assert next_number(tmp_path, NAME, 4, "a", first=False) == 4
    assert asked == []
