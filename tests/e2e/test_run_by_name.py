"""What was run is known by its name to commands that follow, with real processes and a real store."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

FILE = """\
pipeline: seattle
jobs:
  first: {command: {run: "echo hello; exit ${code}"}}
parameters: {code: 0}
"""


def test_a_run_is_known_run_again_without_its_file_and_removed(place: Place) -> None:
    file = place.write(FILE)
    assert place.gridmill("run", file).returncode == 0
    (known,) = place.json("list", "pipelines")
    assert (known["file"], known["last_run"], known["applied"]) == (str(file), "seattle-1", False)
    again = place.gridmill("run", "seattle")
    assert f"pipeline seattle: read from {file}" in again.stderr
    assert place.gridmill("logs", "seattle-2", "first").stdout == "hello\n", (
        "of the run that made its version"
    )
    assert "seattle-1 made its version" in place.gridmill("logs", "seattle-2").stderr
    file.unlink()
    failed = place.gridmill("run", "seattle", "--set", "code=3")
    assert failed.returncode == 1
    assert f"{file} does not exist any more" in failed.stderr
    assert [run["id"] for run in place.json("list", "runs", "--state", "failed")] == ["seattle-3"]
    report = place.home / "reports" / "seattle-3.html"
    assert report.exists()
    assert "seattle-3 removed: 1 job, 1 attempt" in place.gridmill("remove", "run", "seattle-3").stdout
    assert not report.exists()
    assert not _mentioning(place.home / "storage", "seattle-3")
    assert place.gridmill("logs", "seattle-3").returncode == 4
    assert place.gridmill("remove", "run", "seattle-1").returncode == 0
    assert place.gridmill("show", "files", "seattle/first@1").returncode == 0
    assert place.json("run", "seattle")["run"]["id"] == "seattle-4"


def _mentioning(folder: Path, name: str) -> list[Path]:
    return [path for path in folder.rglob("*") if name in path.name]
