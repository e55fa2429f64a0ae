"""Two pods on one machine do one job's parts: the files that one pod makes, and nothing left of the parts."""

import gzip
import json
import os
import signal
from contextlib import suppress
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.conftest import Place, eventually, files_below
from tests.e2e.test_training_resumed import pod_of

pytestmark = pytest.mark.e2e

PIPELINE = """
pipeline: parts
resources:
  two: {type: prediction, workers: 2, cpus: 1}
  pair: {type: dataset, workers: 2, cpus: 1}
jobs:
  raw: {sink: {source: raw.csv}}
  whole: {dataset: &features {basis: {table: raw, time: t, entity: e}, windows: WINDOWS, buckets: 4,
          label: {column: y, horizon: 1h}, split: {validation_from: 2026-01-05, test_from: 2026-01-06}}}
  parted: {resource: pair, dataset: *features}
  model: {training: {dataset: whole, model: linear}}
  one: {prediction: {dataset: whole, models: [model], split: null, shards: 5, workers: 2}}
  both: {resource: two, prediction: {dataset: whole, models: [model], split: null, shards: 5, workers: 2}}
""".replace("WINDOWS", "[{column: y, aggregates: [mean, max], span: 5h}]")


def job(view: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in view["jobs"] if one["job"]["job"]["name"] == name)
    return found


@pytest.mark.long
def test_parts_in_two_pods_make_what_one_pod_makes(place: Place):
    file = place.write(PIPELINE)
    days = [(day, hour, entity) for entity in "abcdefgh" for day in range(1, 8) for hour in range(24)]
    rows = "".join(f"2026-01-{day:02}T{hour:02}:00:00,{e},{(day * hour) % 7}\n" for day, hour, e in days)
    (file.parent / "raw.csv").write_text(f"t,e,y\n{rows}")
    view = place.json("run", file, timeout=300)
    assert view["run"]["state"] == "succeeded", [one["job"]["message"] for one in view["jobs"]]
    folders = {}
    for whole, parted in (("one", "both"), ("whole", "parted")):
        assert (len(job(view, whole)["parts"]), len(job(view, parted)["parts"])) == (0, 2)
        pods = {part["attempts"][0]["pod_id"] for part in job(view, parted)["parts"]}
        assert len(pods) == 2
        for name in (whole, parted):
            output = job(view, name)["artifacts"][0]["output"]
            folders[name] = place.home / "storage" / output["uri"]
        made = [
            {path.name: path.read_bytes() for path in folders[name].glob("*.parquet")}
            for name in (whole, parted)
        ]
        assert made[0] == made[1] != {}
        assert [path.name for path in folders[parted].parent.iterdir()] == [folders[parted].name]


LOADS = """
pipeline: NAME
resources:
  two: {type: sink, workers: 2, cpus: 1}
jobs:
  load:
    resource: two
    sink:
      source: {path: "raw-*.csv.gz"}
      parts: 2
      constraints: [{unique: [id]}, {column: y, max: 5}]
      metrics: {total: sum(id)}
"""
ROWS = 200_000
TRIES = 10
"""Until a pod was killed in the middle: with others on the machine it may have ended before it is found."""


def test_a_sink_is_loaded_in_two_pods_and_a_killed_one_costs_its_part_alone(place: Place):
    project = place.folder / "project"
    project.mkdir()
    for number in range(4):
        first = number * ROWS
        lines = (f"{first + row},{abs(row) % 7},text {row % 1000}\n" for row in range(-1, ROWS))
        with gzip.open(project / f"raw-{number}.csv.gz", "wt", compresslevel=1) as raw:
            raw.write("id,y,c\n")
            raw.writelines(lines)
    tries = (loaded_and_killed(place, f"loads{number}") for number in range(TRIES))
    loaded, attempts = next((one for one in tries if one[1] != [1, 1]), (None, []))
    assert loaded is not None, "it was never killed in the middle"
    assert attempts == [1, 2]
    output = loaded["artifacts"][0]["output"]
    table = DeltaTable(place.home / "storage" / output["uri"]).to_pyarrow_table(columns=["id", "y"])
    expected = {n * ROWS + row for n in range(4) for row in range(-1, ROWS) if abs(row) % 7 <= 5}
    assert sorted(table["id"].to_pylist()) == sorted(expected)
    assert output["details"]["rejects"]["rows"] == 4 * (ROWS + 1) - len(expected)
    assert int(output["details"]["metrics"]["values"]["total"]) == sum(expected)
    written = (place.home / "storage" / output["uri"]).parent
    assert sorted(path.name for path in written.iterdir()) == ["rejects", "table"]


def loaded_and_killed(place: Place, name: str) -> tuple[dict[str, Any], list[int]]:
    """A load of which a pod was killed when its part had begun to write; how many attempts each part had."""
    run = place.start("run", place.write(LOADS.replace("NAME", name), f"{name}.yaml"), "--json")
    written = place.home / "storage" / "sinks" / name / "load"
    begun: list[str] = []

    def has_begun() -> bool:
        found = {path.relative_to(written).parts[0] for path in files_below(written, "*")}
        begun[:] = sorted(one for one in found if one.startswith(f"{name}-1.load.p"))
        return bool(begun) or run.poll() is not None

    assert eventually(has_begun), "no part has begun"
    pod = pod_of(place, begun[0]) if begun else None
    if pod is not None:
        with suppress(ProcessLookupError):
            os.kill(pod, signal.SIGKILL)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    loaded = job(json.loads(out), "load")
    return loaded, sorted(len(part["attempts"]) for part in loaded["parts"])
