"""A notification after a failure and a clean-up in any case, as real processes."""

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

PIPELINE = """
pipeline: nightly
jobs:
  load: {{command: "test -e {folder}/fixed"}}
  train: {{needs: [load], command: "echo model > $GRIDMILL_OUTPUT/model"}}
  notify:
    needs: [train]
    when: failure
    command: 'echo "failed: $GRIDMILL_FAILED" >> {folder}/told; test -d "$GRIDMILL_INPUT_TRAIN"'
  clean:
    needs: [train]
    when: always
    command: 'echo "cleaned, failed: [$GRIDMILL_FAILED]" >> {folder}/told'
"""


def test_a_failed_run_is_reported_and_cleaned_up_and_stays_failed(place: Place):
    file = place.write(PIPELINE.format(folder=place.folder))
    planned = place.gridmill("plan", file)
    assert "runs only after a failure" in planned.stdout
    assert "runs after success or failure" in planned.stdout

    assert place.gridmill("run", file).returncode == 1
    told = place.folder / "told"
    assert sorted(told.read_text().splitlines()) == ["cleaned, failed: [load]", "failed: load"]
    view = place.json("status", "nightly")
    assert view["run"]["state"] == "failed"
    assert {job["job"]["job"]["name"]: job["job"]["state"] for job in view["jobs"]} == {
        "load": "failed",
        "train": "skipped",
        "notify": "succeeded",
        "clean": "succeeded",
    }
    assert "failure" in place.gridmill("show", "job", "nightly-1/notify").stdout

    (place.folder / "fixed").touch()
    told.unlink()
    assert place.gridmill("resume", "nightly").returncode == 0
    assert told.read_text() == "cleaned, failed: []\n"
