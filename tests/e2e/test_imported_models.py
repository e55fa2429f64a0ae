"""An ONNX file becomes a version: the same files are one version, which serves and predicts."""

import pytest

from tests.e2e.conftest import Place
from tests.unit.jobs.training.test_imported import weighted

pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: days
jobs:
  rows:
    sink: {source: {path: days.csv}}
  features:
    dataset:
      basis: {table: rows, time: day}
  forecast:
    prediction: {dataset: features, models: [rain/model@1], split: null}
"""


def test_an_imported_model_is_served_and_predicts(place: Place) -> None:
    file = place.write("", "net.onnx")
    file.write_bytes(weighted())
    signature = place.write("features: [temp, wind]\nlabel: rain\n", "signature.yaml")
    samples = place.write("temp,wind\n1,2\n3,4\n", "samples.csv")
    given = (file, "--signature", signature, "--samples", samples)
    made = place.json("import", "model", "rain", *given)
    assert (made["version"], made["new"], made["features"]) == ("rain/model@1", True, ["temp", "wind"])
    again = place.json("import", "model", "rain", *given)
    assert (again["version"], again["new"]) == ("rain/model@1", False)
    file.write_bytes(b"no model")
    wrong = place.gridmill("import", "model", "rain", file)
    assert wrong.returncode == 1
    assert "error: net.onnx is not an ONNX file: " in wrong.stderr
    assert "pipeline" not in wrong.stderr

    view = place.json("start", "service", "rain", "--model", "rain/model")
    assert view["service"]["report"]["replicas"][0]["versions"] == [
        {"label": "rain/model@1", "verification": "verified", "differences": []}
    ]
    place.json("stop", "service", "rain")
    place.write("day,temp,wind\n2024-01-01,1,2\n2024-01-02,3,4\n", "days.csv")
    pipeline = place.write(PIPELINE)
    assert place.gridmill("run", pipeline).returncode == 0
    refused = place.gridmill("import", "model", "days", *given)
    assert "there is a pipeline 'days'" in refused.stderr
    assert place.gridmill("export", "days/forecast", "--to", "-").stdout.splitlines()[1:] == [
        "0,5",
        "1,11",
    ]
