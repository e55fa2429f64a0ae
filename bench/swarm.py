"""A prediction job, start and stop of its process and workers included, against a bare predict loop."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from bench.measure import Result, Series, alternate, at_least, cpu_seconds, row, save
from gridmill.codec import encode as to_json
from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.jobs.features import encode, runs
from gridmill.jobs.model_files import load_card, load_model, predict_rows
from gridmill.jobs.parquet import write_parquet

AREA = "The swarm"
SHARE, LEAST_SECONDS, ROUNDS = 0.9, 62.0, 3
HOW = f"""
A prediction job in a process of its own, from starting the interpreter to its end: it reads the dataset,
makes one worker per core, predicts with an LSTM over 24 rows, writes every row once, checks and measures the
result. Against it: the same model in one process with one thread over inputs that lie ready in memory,
nothing read or written, on as many rows as it takes {LEAST_SECONDS:.0f} CPU seconds for. All take turns,
three rounds. CPU seconds of the job are those of all its processes together: they tell what it costs where
others keep the machine busy. Bare loops on all cores at once show what the machine itself allows: its cores
share caches, memory and power, and where that row is below 1 no program is as fast as one core times their
number.
"""


def main() -> None:
    with TemporaryDirectory() as folder:
        place, cores = Place(Path(folder)), len(os.sched_getaffinity(0))
        rows = place.rows_for(LEAST_SECONDS)
        cpu = {"swarm": Series(), "bare": Series()}
        acts = {
            "swarm": counted(place.swarm(rows, cores), resource.RUSAGE_CHILDREN, cpu["swarm"]),
            "bare": counted(bare(place.root, rows), resource.RUSAGE_SELF, cpu["bare"]),
            "at once": lambda: bare_at_once(place.root, rows // cores, cores),
        }
        measured = alternate(acts, rounds=ROUNDS, warm=False)
    save("swarm", list(results(measured, cpu, rows, cores)), how=HOW)


def counted(act: Callable[[], float], whose: int, cpu: Series) -> Callable[[], float]:
    """The same, with its CPU seconds put down."""

    def measured() -> float:
        before = cpu_seconds(whose)
        found = act()
        cpu.values.append(cpu_seconds(whose) - before)
        return found

    return measured


def bare_at_once(root: Path, rows: int, cores: int) -> float:
    """Seconds that bare loops over so many rows take, one on each core, the slowest's."""
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return max(pool.map(bare_alone, [root] * cores, [rows] * cores))


def bare(root: Path, rows: int) -> Callable[[], float]:
    """The loop over so many rows that lie ready in memory: its seconds."""
    random = np.random.default_rng(0)
    folder = root / "outputs/model"
    table = pa.table({f"x{number}": random.normal(size=rows) for number in range(8)})
    inputs, starts = encode(table, load_card(folder).encodings), runs(table, [])

    def act() -> float:
        predictor = load_model(folder, threads=1)
        begin = time.perf_counter()
        predict_rows(predictor, inputs, starts, np.arange(rows))
        return time.perf_counter() - begin

    return act


def bare_alone(root: Path, rows: int) -> float:
    """The bare loop's seconds, with inputs of its own."""
    return bare(root, rows)()


def results(wall: Mapping[str, Series], cpu: Mapping[str, Series], rows: int, cores: int) -> Iterator[Result]:
    """What is held against the target, and what it comes from."""
    walls = zip(wall["swarm"].values, wall["bare"].values, strict=True)
    speed = Series([bare / swarm / cores for swarm, bare in walls])
    costs = zip(cpu["swarm"].values, cpu["bare"].values, strict=True)
    cost = Series([swarm / bare for swarm, bare in costs])
    ideal = zip(wall["bare"].values, wall["at once"].values, strict=True)
    ceiling = Series([alone / together / cores for alone, together in ideal])
    reached = zip(wall["at once"].values, wall["swarm"].values, strict=True)
    of_ceiling = Series([together / swarm for together, swarm in reached])
    yield at_least(SHARE, AREA, "rows/s per core, of a bare loop's", speed.median, "", **speed.spread)
    yield row(AREA, "the same, of bare loops on all cores at once", ceiling.median, "", **ceiling.spread)
    yield row(AREA, "rows/s, of bare loops on all cores at once", of_ceiling.median, "x", **of_ceiling.spread)
    yield row(AREA, "CPU seconds, of a bare loop's", cost.median, "x", **cost.spread)
    for what, unit, by in (("", "s", wall), (", CPU", "CPU s", cpu)):
        yield row(AREA, f"bare loop over {rows:,} rows{what}", by["bare"].median, unit, **by["bare"].spread)
        yield row(AREA, f"swarm of {cores} workers{what}", by["swarm"].median, unit, **by["swarm"].spread)


class Place:
    """A storage root with a dataset and a model."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dataset = self._write("small", 4000)
        self._do(Job(name="model", training=TrainingSpec(
            dataset="d", model=ModelKind.LSTM, sequence=24, hidden=64, epochs=1
        )), {"d": self.dataset}, 1)  # fmt: skip
        self.model = Artifact(
            id="b/m@1", name="b/m", number=1, fingerprint="f",
            output=Output(kind=ArtifactKind.MODEL, uri="outputs/model"),
        )  # fmt: skip

    def rows_for(self, seconds: float) -> int:
        """How many rows the bare loop needs that long for."""
        probe = 40_000
        cpu = Series()
        act = counted(bare(self.root, probe), resource.RUSAGE_SELF, cpu)
        for _ in range(2):
            act()
        return int(seconds / min(cpu.values) * probe)

    def _write(self, name: str, rows: int) -> Artifact:
        random = np.random.default_rng(0)
        folder = self.root / "datasets" / name
        folder.mkdir(parents=True)
        columns = {f"x{number}": random.normal(size=rows) for number in range(8)}
        columns |= {
            "time": np.arange(rows).astype("datetime64[s]"),
            "label": np.roll(columns["x0"], 3) + 0.1 * columns["x1"],
            "split": np.where(np.arange(rows) < rows // 2, "train", "validation"),
        }
        table = pa.table(columns)
        write_parquet(iter([table]), table.schema, folder, "part")
        details = {
            "features": [f"x{number}" for number in range(8)], "label": "label", "time": "time", "entity": [],
        }  # fmt: skip
        output = Output(kind=ArtifactKind.DATASET, uri=f"datasets/{name}", details=details)
        return Artifact(id=f"b/{name}@1", name=f"b/{name}", number=1, output=output, fingerprint="f")

    def swarm(self, rows: int, workers: int) -> Callable[[], float]:
        dataset = self._write("large", rows)
        job = Job(
            name="swarm", prediction=PredictionSpec(dataset="d", models=("m",), split=None, workers=workers)
        )
        return lambda: self._do(job, {"d": dataset, "m": self.model}, workers)

    def _do(self, job: Job, inputs: dict[str, Artifact], cpus: int) -> float:
        """The job in its own process, as a pod starts it; wall seconds."""
        order = AttemptOrder(
            attempt_id="bench", token="", run_id="b", pipeline="b", job=job, root=str(self.root),
            output_uri=f"outputs/{job.name}", given=Amounts(cpus=cpus, memory_bytes=2**32),
            inputs=tuple(Input(name=name, artifact=artifact) for name, artifact in inputs.items()),
        )  # fmt: skip
        with TemporaryDirectory() as folder:
            (Path(folder) / "work").mkdir()
            (Path(folder) / "order.json").write_bytes(to_json(replace(order, workers=cpus)))
            begin = time.perf_counter()
            argv = (sys.executable, "-m", "gridmill.jobs.main", folder)
            done = subprocess.run(argv, check=False, stdout=subprocess.DEVNULL)
            if done.returncode != 0:
                raise SystemExit((Path(folder) / "outcome.json").read_text())
            return time.perf_counter() - begin


if __name__ == "__main__":
    main()
