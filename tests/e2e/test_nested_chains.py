"""A service of a model whose stages are a chain and a model with its own code: canary, alias and rollback
between two versions of the chain, whose predictions are those of the pipeline."""

from typing import Any

import pytest

from tests.e2e.conftest import Place
from tests.e2e.test_served_chains import DAYS, batch, csv_rows, requested
from tests.e2e.test_services_with_features import call
from tests.kit.services import Load, wait_for

pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: s
jobs:
  sales:
    sink: {source: {path: "rows.csv"}, columns: {day: timestamp, sold: float}}
  features:
    dataset:
      basis: {table: sales, time: day, entity: [shop]}
      lags: [{column: sold, steps: [1, 2]}]
      label: {column: sold, steps: 1, name: next_sold}
      split: {validation: 0.2, test: 0.2}
  trees: {training: {dataset: features, model: gbdt, trees: 5}}
  own: {training: {dataset: features, model: custom, script: "own.py:fit", predict: "own.py:predict"}}
  trees_say: {prediction: {dataset: features, models: [trees], split: null}}
  own_says: {prediction: {dataset: features, models: [own], split: null, trust: true}}
  second:
    dataset:
      basis: {table: sales, time: day, entity: [shop], columns: [sold]}
      joins: [{table: trees_say, on: [shop, day], prefix: trees_}]
      required: [trees_prediction]
      label: {column: sold, steps: 1, name: next_sold}
      split: {validation: 0.2, test: 0.2}
  stacked: {training: {dataset: second, model: linear}}
  stacked_says: {prediction: {dataset: second, models: [stacked], split: null}}
  third:
    dataset:
      basis: {table: sales, time: day, entity: [shop], columns: [sold]}
      joins:
        - {table: stacked_says, on: [shop, day], prefix: stacked_}
        - {table: own_says, on: [shop, day], prefix: own_}
      required: [stacked_prediction, own_prediction]
      label: {column: sold, steps: 1, name: next_sold}
      split: {validation: 0.2, test: 0.2}
  top: {training: {dataset: third, model: linear}}
  forecast: {prediction: {dataset: third, models: [top], split: test}}
"""
OWN = """
import numpy as np

def fit(data):
    np.save(data.output / "mean.npy", np.nanmean(data.inputs[data.train]))

def predict(folder, inputs):
    return np.nan_to_num(inputs).sum(axis=1) / 3 + np.load(folder / "mean.npy")
"""


def test_versions_of_a_nested_chain_are_tried_followed_and_rolled_back(place: Place) -> None:
    file = place.write(PIPELINE)
    place.write(csv_rows(DAYS), "rows.csv")
    place.write(OWN, "own.py")
    settings = place.write("reach_back: all\n", "features.yaml")
    expected: dict[str, list[float]] = {}

    def run(version: str) -> list[tuple[int, str]]:
        done = place.gridmill("run", file)
        assert done.returncode == 0, done.stdout + done.stderr
        found = batch(place, "s/forecast")
        expected[version] = list(found.values())
        return list(found)

    def alias(number: int) -> None:
        set_ = place.gridmill("configure", "model", "s/top", "--alias", f"champion={number}")
        assert set_.returncode == 0, set_.stderr

    keys = run("s/top@1")
    alias(1)
    start = ("start", "service", "sales", "--model", "s/top@champion", "--features", settings)
    refused = place.gridmill(*start)
    assert (refused.returncode, "s/own@1 predicts with its own code" in refused.stderr) == (2, True)
    port = place.json(*start, "--trust")["service"]["port"]
    shown = " ".join(place.gridmill("show", "service", "sales").stdout.split())
    assert "s/top@1 reads s/stacked@1, s/own@1" in shown
    assert "s/stacked@1 reads s/trees@1" in shown
    rows = requested(keys)

    def check(answer: tuple[int, Any], version: str) -> None:
        assert (answer[0], answer[1].get("version")) == (200, version), answer
        predictions = [one["prediction"] for one in answer[1]["predictions"]]
        assert predictions == pytest.approx(expected[version], rel=1e-9)

    def served() -> str:
        return str(call(port, "/predict", {"rows": rows[:1]})[1].get("version"))

    def ask() -> tuple[int, Any]:
        return call(port, "/predict", {"rows": rows})

    check(ask(), "s/top@1")
    place.write(PIPELINE.replace("trees: 5", "trees: 9"))
    run("s/top@2")
    assert expected["s/top@1"] != pytest.approx(expected["s/top@2"])
    with Load(port, {"rows": rows[:3]}, clients=2, retries=0) as load:
        place.json("update", "service", "sales", "--canary", "s/top@2", "--weight", "50")
        answers = [ask() for _ in range(20)]
        for version in ("s/top@1", "s/top@2"):
            check(next(one for one in answers if one[1]["version"] == version), version)
        # the stage that both versions read is loaded once
        [replica] = place.json("show", "service", "sales")["service"]["report"]["replicas"]
        labels = [one["label"] for one in replica["versions"]]
        assert sorted(labels) == sorted(set(labels))
        assert {"s/own@1", "s/trees@1", "s/trees@2"} < set(labels)

        place.json("rollback", "service", "sales")
        assert {served() for _ in range(9)} == {"s/top@1"}
        alias(2)
        wait_for("the version of the alias", lambda: {served() for _ in range(9)} == {"s/top@2"})
        check(ask(), "s/top@2")
        place.json("rollback", "service", "sales")
        wait_for("the version before", lambda: {served() for _ in range(9)} == {"s/top@1"})
        check(ask(), "s/top@1")
        load.wait_for_more(5)
    assert set(load.statuses) == {200}
    assert place.json("stop", "service", "sales")["state"] == "stopped"
