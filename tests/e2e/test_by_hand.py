"""The script that the demo is measured against does the same work: the same rows, and models as good."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

WEATHER = Path(__file__).resolve().parents[2] / "examples" / "weather"
EPOCHS = 1
CLOSE = {"lstm": 1e-4, "gbdt": 0.02, "naive": 1e-6}
"""The script has the pipeline's columns in the same order, draws its batches alike and begins with the same
weights. Trees of the same rows are alike too; but means and deviations of windows are added up in another
order, and where two splits are nearly as good the last digit (1e-13) chooses."""
BY_HAND = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(WEATHER)!r})
import by_hand
by_hand.EPOCHS = {EPOCHS}
folder = Path(sys.argv[1])
by_hand.load(folder)
by_hand.make_features(folder)
found = {{name: train(folder) for name, (train, _) in by_hand.MODELS.items()}}
data = by_hand.read_arrays(folder)
rows = {{split: len(by_hand.rows_of(data, split)) for split in ("train", "validation", "test")}}
(folder / "found.json").write_text(json.dumps({{"metrics": found, "rows": rows}}))
"""


@pytest.mark.long
def test_the_weather_by_hand_is_the_weather_pipeline(tmp_path: Path, place: Place):
    subprocess.run([sys.executable, "-c", BY_HAND, str(tmp_path)], check=True, capture_output=True)
    by_hand = json.loads((tmp_path / "found.json").read_text())
    done = place.gridmill("run", WEATHER / "pipeline.yaml", "--set", f"epochs={EPOCHS}", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    view = json.loads(place.gridmill("status", "weather", "--json").stdout)
    jobs = {job["job"]["job"]["name"]: job for job in view["jobs"]}
    for name, metrics in by_hand["metrics"].items():
        for split in ("validation", "test"):
            assert jobs[name]["metrics"][f"{split}_rmse"] == pytest.approx(
                metrics[f"{split}_rmse"], rel=CLOSE[name]
            )
    details = jobs["features"]["artifacts"][0]["output"]["details"]
    assert {split: details["splits"][split] for split in by_hand["rows"]} == by_hand["rows"]
