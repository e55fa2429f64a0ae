"""Two pods on one machine do one job's parts: the files that one pod makes, and nothing left of the parts."""

from typing import Any

import pytest

from tests.e2e.conftest import Place

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
