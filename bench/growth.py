"""Does `gridmill plan` foresee what growing data does? Twelve pipelines run on little data, then on 10 to 50
times as much: what `plan` says before the second run against what that run then does."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import duckdb
import yaml

from bench.contestants import GRIDMILL, gridmill_environment, short_folder
from bench.measure import Result, at_most, row, save
from gridmill.domain.amounts import MIB
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.ports.store import Store
from gridmill.stores.sql import make

_Noun = TypeVar("_Noun", Run, JobRun, Attempt)
WITHIN = 1.5
"""The largest factor between what is foreseen and what happens."""
_AT = "TIMESTAMP '2020-01-01' + to_seconds(i * 600) AS \"at\", (hash(i) % 50)::INT AS entity"
_VALUES = ", ".join(f"round((hash(i * {7 + k}) % 100000) / 1e3, 3) AS x{k}" for k in range(8))
_SPLIT = {"validation": 0.15, "test": 0.15}
_LABEL = {"column": "x0", "steps": 1, "name": "ahead"}
HOW = """
Twelve pipelines: sources of four forms, two kinds of dataset, four kinds of model, predictions and a command.
Each runs once on 4,000 to 40,000 rows, in a home of its own. Then its files are written anew with 10 to 50
times as many rows, `gridmill plan` is asked, and the pipeline runs. Memory: of each job that was run the size
that `plan` says against the size that it got; the larger one over the smaller one. Time: the same of the run,
from its first attempt to its last end, and of what `plan` expects.
Times are wall times on a busy machine (see the load average): what takes turns with others takes longer in
one of the two runs.
"""


def _pipelines() -> Mapping[str, tuple[str, int, int, Mapping[str, Any]]]:
    """By name: the form of the file, its rows at first, how many times as many later, jobs after `load`."""
    flat = {
        "dataset": {
            "basis": {"table": "load", "time": "at", "entity": ["entity"]},
            "label": _LABEL,
            "split": _SPLIT,
        }
    }
    windows = {
        "dataset": {
            **flat["dataset"],
            "lags": [{"column": "x1", "steps": [1, 2, 3]}],
            "windows": [{"column": "x2", "span": "7d", "aggregates": ["mean", "min", "max", "std"]}],
        }
    }
    days = {
        "dataset": {
            "tables": ["load"],
            "sql": "select entity, avg(x0) as m, count(*) as n from load group by all",
        }
    }
    same = {"dataset": {"tables": ["load"], "sql": "select * from load"}}

    def learn(model: str, **settings: Any) -> Mapping[str, Any]:
        return {"flat": flat, "train": {"training": {"dataset": "flat", "model": model, **settings}}}

    def predict(model: str, **settings: Any) -> Mapping[str, Any]:
        return {
            **learn(model, **settings),
            "guess": {"prediction": {"dataset": "flat", "models": ["train"], "split": None}},
        }

    quick = {"epochs": 2, "batch_size": 512}
    script = "import os, glob\nfolder = os.environ['GRIDMILL_INPUT_SAME']\n"
    script += "for f in glob.glob(folder + '/**/*.parquet', recursive=True): open(f, 'rb').read()"
    read = {"needs": ["same"], "command": ["python", "-c", script]}
    return {
        "csv": ("csv", 20_000, 50, {}),
        "parquet": ("parquet", 40_000, 25, {}),
        "jsonl": ("jsonl", 10_000, 20, {}),
        "gz": ("csv.gz", 20_000, 20, {"same": same}),
        "sql": ("csv", 40_000, 20, {"same": same, "days": days}),
        "features": ("parquet", 10_000, 50, {"flat": flat}),
        "windows": ("parquet", 10_000, 30, {"windows": windows}),
        "linear": ("csv", 10_000, 50, predict("linear")),
        "gbdt": ("parquet", 10_000, 40, predict("gbdt", trees=30)),
        "mlp": ("parquet", 10_000, 20, predict("mlp", **quick)),
        "lstm": ("parquet", 4_000, 10, learn("lstm", sequence=8, hidden=16, **quick)),
        "command": ("csv", 20_000, 30, {"same": same, "read": read}),
    }


_FORMS = {
    "csv": "FORMAT csv, HEADER",
    "csv.gz": "FORMAT csv, HEADER, COMPRESSION gzip",
    "jsonl": "FORMAT json",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}


def main() -> None:
    names = sys.argv[1:] or list(_pipelines())
    found = {name: _measured(name) for name in names}
    if len(found) == len(_pipelines()):
        save("growth", results(found), how=HOW)


def _measured(name: str) -> Mapping[str, float]:
    form, rows, times, jobs = _pipelines()[name]
    with short_folder() as text:
        folder = Path(text)
        file = folder / "pipeline.yaml"
        load = {"sink": {"source": {"path": f"data.{form}"}}}
        file.write_text(yaml.safe_dump({"pipeline": name, "jobs": {"load": load, **jobs}}, sort_keys=False))
        _write(folder, form, rows)
        _gridmill(folder, "run", file)
        _write(folder, form, rows * times)
        planned = json.loads(_gridmill(folder, "plan", file, "--json"))
        _gridmill(folder, "run", file)
        return _compared(name, planned, *_last_run(folder))


def _write(folder: Path, form: str, rows: int) -> None:
    query = f"SELECT i AS id, {_AT}, {_VALUES} FROM range({rows}) t(i)"
    duckdb.sql(f"COPY ({query}) TO '{folder / 'data'}.{form}' ({_FORMS[form]})")


def _gridmill(home: Path, *words: str | Path) -> str:
    command = (str(GRIDMILL), *map(str, words))
    done = subprocess.run(
        command, env=gridmill_environment(home), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    return done.stdout


def _last_run(home: Path) -> tuple[Mapping[str, list[Attempt]], float]:
    """The attempts of the last run by job, and its seconds."""
    (database,) = home.glob("**/store.db")
    with closing(make(database)) as store:
        last = max(all_of(store, Run), key=lambda run: run.created)
        jobs = {job_run.id: job_run.job.name for job_run in all_of(store, JobRun)}
        attempts: dict[str, list[Attempt]] = {}
        for attempt in all_of(store, Attempt):
            if attempt.run_id == last.id:
                attempts.setdefault(jobs[attempt.job_run_id], []).append(attempt)
    times = list(_times(attempts))
    return attempts, max(end for _, end in times) - min(start for start, _ in times)


def all_of(store: Store, kind: type[_Noun]) -> Iterator[_Noun]:
    for record in store.list(kind):
        assert isinstance(record.noun, kind)
        yield record.noun


def _times(attempts: Mapping[str, list[Attempt]]) -> Iterator[tuple[float, float]]:
    for each in attempts.values():
        for attempt in each:
            yield attempt.started or attempt.placed, attempt.ended or attempt.placed


def _compared(
    name: str, planned: Mapping[str, Any], attempts: Mapping[str, list[Attempt]], seconds: float
) -> Mapping[str, float]:
    factors = []
    for job in planned["jobs"]:
        said = job["sizing"]["amounts"]["memory_bytes"]
        got = [one.given.memory_bytes for one in attempts.get(job["job"], ())]
        wall = sum((one.use.wall_seconds if one.use else 0) for one in attempts.get(job["job"], ()))
        sizes = f"planned {said / MIB:6.0f}  given {[round(one / MIB) for one in got]} MiB"
        times = f"expected {job['sizing'].get('expected_seconds') or 0:6.2f}  took {wall:6.2f} s"
        print(f"{name:10} {job['job']:8} {sizes}  {times}", flush=True)
        factors += [_factor(said, got[-1])] if got else []
    expected = planned["expected_seconds"] or 0.0
    print(f"{name:10} run: expected {expected:6.2f}  took {seconds:6.2f} s", flush=True)
    return {"memory": max(factors), "seconds": _factor(expected, seconds)}


def _factor(said: float, was: float) -> float:
    return max(said / was, was / said) if said and was else float("inf")


def results(found: Mapping[str, Mapping[str, float]]) -> list[Result]:
    """How far off `plan` is, and where it is furthest."""
    lines = []
    for what in ("memory", "seconds"):
        factors = {name: one[what] for name, one in found.items()}
        worst = max(factors, key=lambda name: factors[name])
        values = list(factors.values())
        within = sum(value <= WITHIN for value in values)
        area = "Growth"
        lines += [
            at_most(
                WITHIN, area, f"{what}: largest factor between plan and run ({worst})", factors[worst], "x"
            ),
            row(area, f"{what}: median factor", median(values), "x"),
            row(area, f"{what}: pipelines within {WITHIN} x, of {len(values)}", within, ""),
        ]
    return lines


if __name__ == "__main__":
    main()
