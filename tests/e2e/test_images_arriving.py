"""Images that arrive block by block, while earlier blocks are being learned from: the example, watched."""

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from gridmill.domain.run import JobRun
from gridmill.domain.states import JobState
from gridmill.stores.sql import make
from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"
BLOCKS = 3
HELD = """
  hold:
    needs: [pixels]
    cache: false
    memory: 64MiB
    command: "until [ -e FOLDER/go-$GRIDMILL_RUN ]; do sleep 0.1; done"
"""
"""What comes after a block's load is not over before the next block is loaded."""


def attempts(place: Place, run: str, job: str) -> list[dict]:
    view = place.json("status", run)
    return next(each["attempts"] for each in view["jobs"] if each["job"]["job"]["name"] == job)


def is_done(place: Place, run: str, job: str) -> bool:
    """Read from the records themselves: the next block is to come at once."""
    with closing(make(place.home / "store.db")) as store:
        jobs = [record.noun for record in store.list(JobRun, parent=run)]
    return any(one.job.name == job and one.state == JobState.SUCCEEDED for one in jobs)


@pytest.mark.long
def test_each_image_is_loaded_once_while_earlier_ones_are_learned_from(place: Place):
    project, arriving, made = (place.folder / name for name in ("project", "project/arriving", "made"))
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("arriving"))
    subprocess.run([sys.executable, project / "make_images.py", made], check=True)
    pipeline = project / "pipeline.yaml"
    text = pipeline.read_text().replace("trees: 150", "trees: 30")  # there are others as good
    text = text.replace("    prediction: {", "    needs: [hold]\n    prediction: {")
    pipeline.write_text(text + HELD.replace("FOLDER", str(place.folder)))
    images = sorted(path.relative_to(made) for path in made.rglob("*.pgm"))
    up = place.start("up", "--listen", "off", GRIDMILL_CPUS="8")
    assert eventually(lambda: place.gridmill("show", "control").returncode == 0)
    assert place.gridmill("apply", "-f", pipeline).returncode == 0

    for number in range(BLOCKS):  # the next block comes as soon as this one is loaded
        for path in images[number::BLOCKS]:
            (arriving / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).rename(arriving / path)
        assert eventually(lambda run=f"digits-{number + 1}": is_done(place, run, "images"))
        (place.folder / f"go-digits-{number}").touch()
    (place.folder / f"go-digits-{BLOCKS}").touch()
    assert eventually(lambda: is_done(place, f"digits-{BLOCKS}", "read"), 300)

    for number in range(1, BLOCKS):
        (loaded,) = attempts(place, f"digits-{number + 1}", "images")
        (read,) = attempts(place, f"digits-{number}", "read")
        assert loaded["started"] < read["ended"], "the next block was loaded beside what came after"

    (log,) = (place.home / "storage" / "sinks" / "digits").rglob("_delta_log")
    rows = DeltaTable(log.parent).to_pyarrow_table(columns=["path"])["path"].to_pylist()
    assert sorted(Path(row).relative_to("arriving") for row in rows) == images, "each image once"
    (read,) = attempts(place, f"digits-{BLOCKS}", "read")
    assert read["metrics"]["test_accuracy"] >= 0.93
    up.terminate()
    assert up.wait(timeout=PATIENCE_SECONDS) == 0
