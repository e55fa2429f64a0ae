"""Map jobs on a Ray site: a swarm, and a dataset in buckets, beside Ray tasks by hand and a pod of here.

`python -m bench.map swarm|dataset [--rows N]`; N is the number of rows or events.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.contestants import GRIDMILL, environment, short_folder
from bench.grids import up
from bench.measure import REPOSITORY, Result, Series, alternate, at_most, row, save
from gridmill.testing.ray_cluster import ray_cluster

AREA = "Map jobs"
HAND, RAY, LOCAL = "Ray tasks by hand", "Gridmill on Ray", "Gridmill local"
ROUNDS = 3
ROWS = {"swarm": 4_200_000, "dataset": 60_000_000}
"""What takes a minute or more on two cores."""
TRAINED = 4_000
USER_EVENTS, DAYS = 500, 730
RAY_AUTH = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
RAY_CPUS_PER_CORE = 2
"""One half is for pods, which keep theirs while they are up, the other for tasks beside them. They never work
at the same time."""
HOW = {
    "swarm": """
A prediction of all rows of a dataset with an LSTM over 24 rows, on a Ray cluster of one node with the CPUs
of this machine: by a pipeline at a Ray site (a pod of one CPU for each, a part in each), by a script that
does the same with Ray tasks (the same inference code, a file for each shard, every row looked for at the
end), and by the same pipeline in one pod of this machine. Pods and the cluster are up and warm; the
command's own start and end count. All take turns.
""",
    "dataset": """
The same for a dataset of events of many users: sum, count and mean of 7 and 30 days and a price as of each
event, in 8 buckets; by hand with the query of the benchmark of datasets for each bucket.
""",
}

SWARM_DATA = """
pipeline: data
jobs:
  points:
    dataset:
      sql: >
        select make_timestamp(i * 1000000) as time, {columns},
               sin(i / 7.0) + hash(i, 99) / 1.8446744073709552e19 as y,
               case when i < {trained} then 'train' when i < 2 * {trained} then 'validation' else 'test'
               end as split
        from range({rows}) as rows(i) order by i
      time: time
      label: {{column: y}}
  model: {{training: {{dataset: points, model: lstm, sequence: 24, hidden: 64, epochs: 1}}}}
"""
SWARM = """
pipeline: swarm-{where}
resources:
  swarm-{where}: {{type: prediction, site: {site}, cpus: {cpus}, workers: {pods}, keep: 30m}}
jobs:
  job:
    resource: swarm-{where}
    cache: false
    prediction: {{dataset: data/points, models: [data/model], split: null, workers: {workers}}}
"""
DATASET_DATA = """
pipeline: data
jobs:
  events: {sink: {source: "events/*.parquet"}}
  prices: {sink: {source: "prices/*.parquet"}}
"""
DATASET = """
pipeline: dataset-{where}
resources:
  dataset-{where}: {{type: dataset, site: {site}, cpus: {cpus}, workers: {pods}, keep: 30m}}
jobs:
  job:
    resource: dataset-{where}
    cache: false
    dataset:
      basis: {{table: data/events, time: time, entity: user}}
      buckets: 8
      windows:
        - {{column: amount, aggregates: [sum, count, mean], span: 7d}}
        - {{column: amount, aggregates: [sum, count, mean], span: 30d}}
      asof_joins: [{{table: data/prices, "on": user, known_at: known_at, columns: [price]}}]
"""


@dataclass(slots=True, kw_only=True)
class Bench:
    """`made` is where the data for the jobs lies; `cpus` are CPU seconds by who used them, as runs go."""

    name: str
    folder: Path
    env: Mapping[str, str]
    address: str
    made: dict[str, Path] = field(default_factory=dict)
    cpus: dict[str, Series] = field(default_factory=dict)

    def acts(self, cores: int) -> dict[str, Callable[[], float]]:
        """What takes turns."""
        text = SWARM if self.name == "swarm" else DATASET
        there = self._write("ray", text.format(where="ray", site="lab", cpus=1, pods=cores, workers=cores))
        here = self._write(
            "local", text.format(where="local", site="local", cpus=cores, pods=1, workers=cores)
        )
        return {
            HAND: self.by_hand,
            RAY: partial(self.pipeline, RAY, there),
            LOCAL: partial(self.pipeline, LOCAL, here),
        }

    def _write(self, where: str, text: str) -> Path:
        file = self.folder / f"{where}.yaml"
        file.write_text(text)
        return file

    def prepare(self, rows: int) -> None:
        """What the jobs read."""
        if self.name == "swarm":
            columns = ", ".join(f"hash(i, {n}) / 1.8446744073709552e19 as x{n}" for n in range(8))
            text = SWARM_DATA.format(columns=columns, rows=rows, trained=min(TRAINED, rows // 4))
        else:
            write_events(self.folder, rows)
            text = DATASET_DATA
        storage = Path(self.env["GRIDMILL_HOME"]) / "storage"
        for job in self.run(self._write("data", text))["jobs"]:
            output = job["artifacts"][0]["output"]
            self.made[job["job"]["job"]["name"]] = storage / output["uri"]

    def run(self, file: Path) -> dict[str, Any]:
        """A run to its end. Raises SystemExit where it failed."""
        done = subprocess.run(
            (str(GRIDMILL), "run", str(file), "--json"),
            env=dict(self.env),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{file.name}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
        view: dict[str, Any] = json.loads(done.stdout)
        return view

    def pipeline(self, who: str, file: Path) -> float:
        """Wall seconds of a run."""
        began = time.perf_counter()
        view = self.run(file)
        seconds = time.perf_counter() - began
        self.cpus.setdefault(who, Series()).values.append(cpu_of(view))
        return seconds

    def by_hand(self) -> float:
        """Wall seconds of the script."""
        target = self.folder / "by-hand"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        words = ("-m", "bench.map_tasks", self.name, self.address, str(target), *map(str, self.sources()))
        began = time.perf_counter()
        done = subprocess.run(
            (sys.executable, *words),
            env=dict(self.env),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        seconds = time.perf_counter() - began
        self.cpus.setdefault(HAND, Series()).values.append(float(done.stdout.split()[-1]))
        return seconds

    def sources(self) -> tuple[Path, Path]:
        """What the script reads: what the jobs read."""
        if self.name == "dataset":
            return self.folder / "events", self.folder / "prices"
        return self.made["points"], self.made["model"]


def cpu_of(found: object, *, used: bool = False) -> float:
    """CPU seconds of all attempts in a view of a run."""
    if isinstance(found, list):
        return sum(cpu_of(one) for one in found)
    if not isinstance(found, dict):
        return 0.0
    if used:
        return float(found.get("cpu_seconds") or 0.0)
    return sum(cpu_of(one, used=name == "use") for name, one in found.items() if name != "told")


def write_events(folder: Path, count: int) -> None:
    """Events of many users, by time, and the prices they saw; in files of 5 M rows."""
    rng = np.random.default_rng(0)
    users, span = max(8, count // USER_EVENTS), DAYS * 86_400_000_000
    for name, rows, at, value in (
        ("events", count, "time", "amount"),
        ("prices", count // 10, "known_at", "price"),
    ):
        (folder / name).mkdir()
        times = np.sort(rng.integers(0, span, rows))
        for number, first in enumerate(range(0, rows, 5_000_000)):
            some = times[first : first + 5_000_000]
            columns = {
                "user": rng.integers(0, users, len(some)),
                at: pa.array(some, pa.timestamp("us", "UTC")),
                value: rng.gamma(2.0, 10.0, len(some)),
            }
            pq.write_table(pa.table(columns), folder / name / f"{number:03}.parquet")


def main(name: str, rows: int) -> None:
    cores = len(os.sched_getaffinity(0))
    with short_folder() as made:
        folder = Path(made)
        env = environment(folder, Path(sys.executable).parent, GRIDMILL_HOME=str(folder / "home"), **RAY_AUTH)
        words = (f"--num-cpus={RAY_CPUS_PER_CORE * cores}", "--object-store-memory=200000000")
        ray = ray_cluster(folder / "ray", _free_port(), {**os.environ, **RAY_AUTH}, *words)
        with ray as address, up(folder / "home", env):
            add = (str(GRIDMILL), "add", "site", "lab", "--kind", "ray", "--address", address)
            subprocess.run(add, env=env, check=True, capture_output=True)
            bench = Bench(name=name, folder=folder, env=env, address=address)
            bench.prepare(rows)
            acts = bench.acts(cores)
            for who in (RAY, LOCAL):  # pods come up
                print(f"  first {who}: {acts[who]():.3f}", flush=True)
            bench.cpus.clear()
            rounds = int(os.environ.get("GRIDMILL_BENCH_ROUNDS", ROUNDS))
            measured = alternate(acts, rounds=rounds, warm=False)
        shutil.rmtree(folder / "home", ignore_errors=True)
    save(f"map-{name}", results(name, rows, measured, bench.cpus), how=HOW[name])


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def results(name: str, rows: int, wall: Mapping[str, Series], cpu: Mapping[str, Series]) -> list[Result]:
    """The lines of the page."""
    found: list[Result] = []
    for limit, other in ((1.10, HAND), (1.25, LOCAL)):
        ratio = Series([a / b for a, b in zip(wall[RAY].values, wall[other].values, strict=True)])
        found.append(
            at_most(limit, AREA, f"{name} on Ray, against {other}", ratio.median, "x", **ratio.spread)
        )
        cost = Series([a / b for a, b in zip(cpu[RAY].values, cpu[other].values, strict=True)])
        found.append(row(AREA, f"{name} on Ray, CPU seconds of {other}'s", cost.median, "x", **cost.spread))
    for who, series in wall.items():
        found.append(row(AREA, f"{name} of {rows:,} rows: {who}", series.median, "s", **series.spread))
        found.append(row(AREA, f"{name}: {who}, CPU", cpu[who].median, "CPU s", **cpu[who].spread))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(ROWS))
    parser.add_argument("--rows", type=int)
    asked = parser.parse_args()
    main(asked.name, asked.rows or ROWS[asked.name])
