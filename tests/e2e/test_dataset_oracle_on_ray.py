"""Random datasets, each in two pods of a Ray cluster, against one that is computed row by row."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from gridmill.codec import from_builtins, to_builtins
from gridmill.domain.artifact import Output
from tests.e2e.conftest import Place
from tests.kit.ray import ENVIRONMENT, needs_ray, ray_cluster, remove_homes_on_nodes
from tests.oracles.dataset_cases import WAYS, Dataset, Expected, as_arrow
from tests.oracles.dataset_draws import Drawn, draw_case

pytestmark = [pytest.mark.e2e, needs_ray]
CASES = 4


def draw_cases(count: int) -> Iterator[tuple[Drawn, Expected]]:
    """Cases that can be cut into parts, and have something to learn."""
    for number in range(1000):
        drawn = draw_case(Random(f"on ray {number}"))
        if count and WAYS["parted"].fits(drawn.spec) and drawn.spec.windows:
            expected = Expected(drawn)
            if expected.can_be_learned:
                count -= 1
                yield drawn, expected


def declared(value: Any, number: int) -> Any:
    """A noun as a pipeline file has it: durations as texts, tables by the names of this case's sinks."""
    if isinstance(value, list | tuple):
        return [declared(one, number) for one in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, one in value.items():
        if one in (None, "", (), [], {}):
            continue
        if name.endswith("_seconds"):
            texts = [f"{int(part)}s" for part in (one if isinstance(one, list | tuple) else [one])]
            found[name.removesuffix("_seconds")] = texts if isinstance(one, list | tuple) else texts[0]
        else:
            found[name] = f"{one}{number}" if name == "table" else declared(one, number)
    return found


def pipeline(cases: list[tuple[Drawn, Expected]], folder: Path) -> str:
    """One pipeline of all cases; their tables are files in the folder."""
    jobs: dict[str, Any] = {}
    for number, (drawn, _) in enumerate(cases):
        for table in drawn.spec.references():
            pq.write_table(as_arrow(table, drawn.tables[table]), folder / f"{table}{number}.parquet")
            jobs[f"{table}{number}"] = {"sink": {"source": {"path": f"{table}{number}.parquet"}}}
        spec = {**declared(to_builtins(drawn.spec), number), "buckets": 4}
        jobs[f"made{number}"] = {"resource": "pair", "dataset": spec}
    pair = {"type": "dataset", "site": "lab", "workers": 2, "cpus": 1, "memory": "1GiB"}
    return json.dumps({"pipeline": "drawn", "resources": {"pair": pair}, "jobs": jobs})


@pytest.fixture
def place() -> Iterator[Place]:
    """With a short path, for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gmr"))
    place = Place(folder)
    yield place
    remove_homes_on_nodes(place.home)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_two_pods_on_ray_make_the_rows_that_the_documentation_says(place: Place) -> None:
    cases = list(draw_cases(CASES))
    file = place.write("")
    file.write_text(pipeline(cases, file.parent))
    with ray_cluster(place.folder / "ray", cpus=2) as address:
        words = ("add", "site", "lab", "--kind", "ray", "--address", address)
        added = place.gridmill(*words, **ENVIRONMENT)
        assert added.returncode == 0, added.stderr
        view = place.json("run", file, timeout=400, **ENVIRONMENT)
    assert "jobs" in view, view["message"]
    jobs = {one["job"]["job"]["name"]: one for one in view["jobs"]}
    messages = {name: one["job"]["message"] for name, one in jobs.items()}
    assert view["run"]["state"] == "succeeded", messages
    pods = set[str]()
    for number, (_, expected) in enumerate(cases):
        made = jobs[f"made{number}"]
        assert len(made["parts"]) == 2
        pods |= {part["attempts"][0]["pod_id"] for part in made["parts"]}
        output = from_builtins(made["artifacts"][0]["output"], Output)
        files = sorted(str(path) for path in (place.home / "storage" / output.uri).glob("*.parquet"))
        rows = ds.dataset(files).to_table().to_pylist()
        assert not list(expected.problems(Dataset(rows=rows, output=output)))
    assert len(pods) == 2
