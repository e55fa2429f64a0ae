"""A service of a home whose model reads windows: it computes them from the sinks, follows the loads of the
sinks, and refuses to start if features cannot be computed by key."""

import http.client
import json
import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gridmill.serving.feature_processes import usable_cpus
from tests.e2e.conftest import Place, processes_mentioning
from tests.kit.services import wait_for

pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: w
parameters:
  file: rows.csv
jobs:
  rows:
    sink: {source: {path: "${file}"}}
  features:
    dataset:
      basis: {table: rows, time: day, entity: id}
      windows:
        - {column: x, aggregates: [mean, count], span: 2d}
      lags:
        - {column: x, steps: [1]}
      label: {column: y, steps: 1}
      split: {validation: 0.2, test: 0.2}
  m:
    training: {dataset: features, model: gbdt, trees: 2}
"""
AS_OF = "2024-05-01T12:00:00Z"


def csv_rows(days: int) -> str:
    rows = [
        f"{1 + day % 2},2024-{1 + day // 28:02}-{1 + day % 28:02},{day % 7},{day % 7 * 2}"
        for day in range(days)
    ]
    return "\n".join(["id,day,x,y", *rows, ""])


def call(port: int, path: str, body: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def asked(port: int) -> dict[str, Any]:
    row = {"id": 1, "x": 1.0, "y": 2.0, "day": AS_OF}
    status, answer = call(port, "/predict?features=values", {"rows": [row]})
    assert status == 200, answer
    about: dict[str, Any] = answer["features"]
    return about


def predicted(port: int, row: dict[str, Any]) -> Any:
    status, answer = call(port, "/predict", {"rows": [row]})
    assert status == 200, answer
    return answer["predictions"][0]


def check_large_request(place: Place, port: int) -> None:
    """A file with keys, and a version of the sink with all rows, get the predictions of the service."""
    times = ("2024-02-01", "2024-03-05T07:00:00Z", "2024-04-20", AS_OF)
    rows = [{"id": one, "x": 1, "y": 2, "day": at} for one in (1, 2, 9) for at in times]
    served = [predicted(port, row) for row in rows]
    data = place.write("\n".join(map(json.dumps, rows)), "asked.jsonl")
    target = data.with_name("answer.jsonl")
    words = ("predict", "rain", "--data", data, "--output", target, "--features", "status")
    done = place.gridmill(*words)
    assert done.returncode == 0, done.stderr
    assert "features computed by key from w/rows@2" in done.stdout
    assert "x_mean_2d: " in done.stdout
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [{"prediction": one["prediction"]} for one in answers] == served
    assert {one["x_mean_2d_status"] for one in answers} == {"present", "defaulted"}
    assert (answers[-1]["x_lag_1_status"], answers[-1]["x_count_2d_status"]) == ("missing", "present")

    target = data.with_name("answer.parquet")
    done = place.gridmill("predict", "rain", "--data", "w/rows@1", "--output", target)
    assert done.returncode == 0, done.stderr
    every = pq.read_table(target).to_pylist()
    assert len(every) == 112
    for row in every[::16]:
        sent = {**row, "day": row["day"].isoformat()}
        assert predicted(port, sent) == {"prediction": row["prediction"]}


def feature_processes(place: Place) -> list[int]:
    """The processes that compute features of a large request of this home."""
    found = []
    for pid in processes_mentioning(str(place.home)):
        with suppress(OSError):
            if b"gridmill.serving.feature_processes" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def check_several_processes(place: Place) -> None:
    """The features of many rows are computed by several processes, which end with an interrupted request."""
    row = {"x": 1, "y": 2, "day": "2024-03-05T07:00:00Z"}
    lines = [json.dumps({"id": one % 9, **row}) + "\n" for one in range(40_000)]
    data = place.write("".join(lines), "many.jsonl")
    more = place.write("".join(lines * 40), "more.jsonl")  # it is interrupted at its beginning
    target = data.with_name("many-answers.jsonl")
    words = ("predict", "rain", "--data", more, "--output", target)
    process = place.start(*words)
    assert process.stderr is not None
    assert any(line.startswith("checking rows: ") for line in process.stderr)
    wanted = usable_cpus() if usable_cpus() > 1 else 0
    wait_for("all processes", lambda: len(feature_processes(place)) == wanted)
    process.send_signal(signal.SIGINT)
    assert "stopped; no file was written" in process.stderr.read()
    assert process.wait() == 130
    wait_for("the end of the processes", lambda: not feature_processes(place))
    assert [one.name for one in data.parent.iterdir() if "many-answers" in one.name] == []

    done = place.gridmill("predict", "rain", "--data", data, "--output", target)
    assert done.returncode == 0, done.stderr
    with target.open() as written:
        answers = [json.loads(line) for line in written]
    assert [one["id"] for one in answers] == [one % 9 for one in range(40_000)]
    assert len({(one["id"], one["prediction"]) for one in answers}) == 9


def test_a_service_computes_windows_and_follows_the_loads_of_its_sinks(place: Place) -> None:
    file = place.write(PIPELINE)
    place.write(csv_rows(112), "rows.csv")
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stderr
    settings = place.write(
        "reach_back: all\nrules:\n  x_mean_2d: {max_age: 3d, default: -1}\n", "features.yaml"
    )
    view = place.json("start", "service", "rain", "--model", "w/m", "--features", settings)
    assert (view["state"], view["ready"]) == ("running", 1)
    port = view["service"]["port"]
    first = asked(port)
    assert set(first["view"]) == {"rows"}
    assert (first["values"][0]["x_count_2d"], first["values"][0]["x_mean_2d"]) == (0, -1.0)
    assert first["defaulted"] == {"x_mean_2d": [0]}

    # a row that is loaded later is visible to the next requests
    place.write("id,day,x,y\n1,2024-05-01,5,7\n", "more.csv")
    done = place.gridmill("run", file, "--set", "file=more.csv", "--only", "rows")
    assert done.returncode == 0, done.stderr
    about = wait_for("the new row", lambda: (one := asked(port))["view"] != first["view"] and one)
    assert about["values"][0]["x_count_2d"] == 1
    assert about["values"][0]["x_mean_2d"] == 5.0
    assert about["values"][0]["x_lag_1"] == 5.0
    assert "defaulted" not in about

    def report() -> dict[str, Any]:
        shown: dict[str, Any] = place.json("show", "service", "rain")["service"]["report"]["views"][0]
        return shown

    seen = wait_for("the report", lambda: (one := report())["held"] == {"rows": "w/rows@2"} and one)
    assert (seen["state"], seen["behind_since"]) == ("fresh", None)
    assert datetime.now(UTC) - datetime.fromisoformat(seen["checked_at"]) < timedelta(minutes=5)
    assert "w/rows@2" in place.gridmill("show", "service", "rain").stdout

    check_large_request(place, port)
    check_several_processes(place)

    # an update of the settings of features needs no restart by hand
    place.write("reach_back: all\nrules:\n  x_mean_2d: {default: -2}\n", "features.yaml")
    updated = place.json("update", "service", "rain", "--features", settings)
    assert updated["service"]["generation"] == 2
    status, answer = call(port, "/predict?features=values", {"rows": [{"id": 9, "x": 1.0, "y": 2.0}]})
    assert (status, answer["features"]["values"][0]["x_mean_2d"]) == (200, -2.0)
    assert place.json("stop", "service", "rain")["state"] == "stopped"


def test_a_start_is_refused_by_the_names_of_features_and_rules(place: Place) -> None:
    windows = "- {column: x, aggregates: [mean, count], span: 2d}"
    over_labels = "- {column: label, aggregates: [mean], span_rows: 3}"
    file = place.write(PIPELINE.replace(windows, over_labels))
    place.write(csv_rows(112), "rows.csv")
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stderr
    refused = place.gridmill("start", "service", "rain", "--model", "w/m")
    assert refused.returncode == 2
    assert "label_mean_3rows: it reads labels that are values of later rows" in refused.stderr
    assert "sent: [label_mean_3rows]" in refused.stderr
    settings = place.write("rules:\n  rain: {default: 1}\nsent: [label_mean_3rows]\n", "features.yaml")
    refused = place.gridmill("start", "service", "rain", "--model", "w/m", "--features", settings)
    assert refused.returncode == 2
    assert "'rain' is not a feature that is computed by key" in refused.stderr
    place.write("sent: [label_mean_3rows]\n", "features.yaml")
    view = place.json("start", "service", "rain", "--model", "w/m", "--features", settings)
    row = {"id": 1, "x": 1.0, "y": 2.0, "label_mean_3rows": 4.0, "day": AS_OF}
    port = view["service"]["port"]
    assert call(port, "/predict", {"rows": [row]})[0] == 422  # before the oldest as-of time
    del row["day"]
    assert call(port, "/predict", {"rows": [row]})[0] == 200
    del row["label_mean_3rows"]
    status, answer = call(port, "/predict", {"rows": [row]})
    assert (status, answer["problems"][0]["field"]) == (422, "label_mean_3rows")
    assert place.json("stop", "service", "rain")["state"] == "stopped"
