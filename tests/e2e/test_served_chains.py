"""A service of a stacked model computes the whole chain of models for each request: its predictions are those
of the pipeline."""

import json
from datetime import date, timedelta
from typing import Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Place
from tests.e2e.test_services_with_features import call
from tests.kit.services import Load

pytestmark = pytest.mark.e2e
DAYS = 120
PIPELINE = """
pipeline: s
jobs:
  sales:
    sink: {source: {path: "rows.csv"}, columns: {day: timestamp, sold: float}}
  features:
    dataset:
      basis: {table: sales, time: day, entity: [shop]}
      lags: [{column: sold, steps: [1, 2]}]
      windows: [{column: sold, span: 7d, aggregates: [mean]}]
      label: {column: sold, steps: 1, name: next_sold}
      split: {validation: 0.2, test: 0.2}
  trees: {training: {dataset: features, model: gbdt, trees: 5, folds: 3}}
  line: {training: {dataset: features, model: linear, folds: 3}}
  trees_say: {prediction: {dataset: features, models: [trees], split: null}}
  line_says: {prediction: {dataset: features, models: [line], split: null}}
  second:
    dataset:
      basis: {table: sales, time: day, entity: [shop], columns: [sold]}
      joins:
        - {table: trees_say, on: [shop, day], prefix: trees_}
        - {table: line_says, on: [shop, day], prefix: line_}
      features: {apart: trees_prediction - line_prediction}
      required: [trees_prediction, line_prediction]
      label: {column: sold, steps: 1, name: next_sold}
      split: {validation: 0.2, test: 0.2}
  stacked: {training: {dataset: second, model: linear}}
  forecast: {prediction: {dataset: second, models: [stacked], split: test}}
"""


def csv_rows(days: int) -> str:
    lines = ["shop,day,sold,price"]
    for number in range(days):
        day = date(2024, 1, 1) + timedelta(days=number)
        for shop in (1, 2):
            lines.append(f"{shop},{day},{(number * 7 + shop * 3) % 11 + number % 7 * shop},{number % 5}")
    return "\n".join([*lines, ""])


def batch(place: Place, name: str) -> dict[tuple[int, str], float]:
    """The predictions of the pipeline by shop and day."""
    uri = place.json("show", "prediction", name)["output"]["uri"]
    rows = pq.read_table(place.home / "storage" / uri).to_pylist()
    return {(row["shop"], f"{row['day']:%Y-%m-%d}"): row["prediction"] for row in rows}


def requested(keys: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """The rows of the file with these keys, as a client sends them."""
    head, *lines = [line.split(",") for line in csv_rows(DAYS).split()]
    found = {(int(line[0]), line[1]): dict(zip(head, line, strict=True)) for line in lines}
    return [
        {"shop": key[0], "day": key[1], "sold": float(row["sold"]), "price": int(row["price"])}
        for key in keys
        for row in [found[key]]
    ]


def test_the_chain_of_a_stacked_model_predicts_what_the_pipeline_predicts(place: Place) -> None:
    file = place.write(PIPELINE)
    place.write(csv_rows(DAYS), "rows.csv")
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stderr
    settings = place.write("reach_back: all\n", "features.yaml")
    view = place.json("start", "service", "sales", "--model", "s/stacked@latest", "--features", settings)
    port = view["service"]["port"]
    shown = place.gridmill("show", "service", "sales").stdout
    assert "s/stacked@1 reads s/trees@1, s/line@1" in " ".join(shown.split())
    expected = {name: batch(place, f"s/{name}") for name in ("forecast", "trees_say", "line_says")}
    keys = list(expected["forecast"])
    assert len(keys) > 30

    def check(answer: dict[str, Any]) -> None:
        predictions = [one["prediction"] for one in answer["predictions"]]
        assert predictions == pytest.approx(list(expected["forecast"].values()), rel=1e-9)
        for name, table in (("trees_prediction", "trees_say"), ("line_prediction", "line_says")):
            computed = [one[name] for one in answer["features"]["values"]]
            assert computed == pytest.approx([expected[table][key] for key in keys], rel=1e-9)

    rows = requested(keys)
    status, answer = call(port, "/predict?features=values", {"rows": rows})
    assert status == 200, answer
    check(answer)
    assert {"sold_lag_1", "sold_mean_7d", "apart"} <= answer["features"]["values"][0].keys()

    # the outside has the columns that any stage reads, and an error names the row and the field
    document = json.load(urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=60))
    row = document["components"]["schemas"]["Row"]
    assert set(row["required"]) == {"shop", "sold", "price"}
    assert not {"trees_prediction", "line_prediction"} & row["properties"].keys()
    status, answer = call(port, "/predict", {"rows": [rows[0], {"shop": 1, "sold": 2.0}]})
    assert (status, answer["problems"][0]["row"], answer["problems"][0]["field"]) == (422, 1, "price")

    # versions of the chain cannot be removed
    refused = place.gridmill("remove", "artifact", "s/trees@1")
    assert (refused.returncode != 0, "sales" in refused.stderr) == (True, True), refused.stderr

    # another stage is a new version of the chain, which a rolling update serves
    place.write(PIPELINE.replace("trees: 5", "trees: 9"))
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stderr
    with Load(port, {"rows": rows[:3]}, clients=2, retries=0) as load:
        updated = place.json("update", "service", "sales", "--model", "s/stacked@2")
        load.wait_for_more(5)
    assert set(load.statuses) == {200}
    assert [one["version"] for one in updated["service"]["features"]["s/stacked@2"]["stages"]] == [
        "s/trees@2",
        "s/line@1",
    ]
    expected = {name: batch(place, f"s/{name}") for name in expected}
    status, answer = call(port, "/predict?features=values", {"rows": rows})
    assert (status, answer["version"]) == (200, "s/stacked@2")
    check(answer)
    assert place.json("stop", "service", "sales")["state"] == "stopped"
