"""Advice on workers against what so many workers then took: predictions whose serial share is known."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Result, at_most, row, save
from gridmill.domain.advice import Advice
from gridmill.sdk.client import Client, connect

AREA = "Advice on workers"
LIMIT = 10.0
ROWS = 32_768
HOW = """
A prediction job whose model is a function of the project: for each row it sleeps (or computes) so long, to
load it takes a time that no number of workers shortens, and in one case a part of each shard is done under a
lock. For each, two probes on parts of the rows make the advice; then the whole job runs with 1 to 32 workers
(those that compute: up to twice the cores), and the speed-up of each by its wall time, start and end
included, is held against the one that was said.
"""

PIPELINE = """
pipeline: known
parameters: {{workers: 1}}
jobs:
  points:
    dataset:
      sql: >
        select i as x, i as y,
               case when i < 40 then 'train' when i < 48 then 'validation' else 'rest' end as split
        from range({rows}) as rows(i) order by i
      label: {{column: y}}
  model:
    training: {{dataset: points, model: custom, script: "code.py:fit", predict: "code.py:predict"}}
  rest:
    prediction: {{dataset: points, models: [model], split: rest, workers: "${{workers}}", trust: true}}
"""
CODE = """
import fcntl, time

ROW, LOAD, LOCKED, COMPUTE = {row!r}, {load!r}, {locked!r}, {compute!r}
time.sleep(LOAD)


def fit(data):
    return {{}}


def spend(seconds):
    if not COMPUTE:
        return time.sleep(seconds)
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def predict(folder, inputs):
    seconds = len(inputs) * ROW
    spend(seconds * (1 - LOCKED))
    if LOCKED:
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            spend(seconds * LOCKED)
    return inputs[:, 0]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`work_seconds` for one worker, `load_seconds` to load, and the part of the work under a lock."""

    name: str
    work_seconds: float
    load_seconds: float
    locked: float = 0.0
    compute: bool = False
    numbers: Sequence[int] = (1, 2, 4, 8, 16, 32)


CASES = (
    Case(name="sleeping, 2 % serial", work_seconds=49.0, load_seconds=1.0),
    Case(name="sleeping, 10 % serial", work_seconds=45.0, load_seconds=5.0),
    Case(name="sleeping, 25 % serial", work_seconds=30.0, load_seconds=10.0),
    Case(name="sleeping, 5 % serial and 2 % under a lock", work_seconds=45.0, load_seconds=2.5, locked=0.02),
    Case(name="computing, 5 % serial", work_seconds=40.0, load_seconds=2.0, compute=True, numbers=(1, 2, 4)),
)


def main() -> None:
    results: list[Result] = []
    errors: list[float] = []
    for case in CASES:
        found = list(_measured(case))
        errors += [abs(said / came - 1) * 100 for _, said, came in found]
        for workers, said, came in found:
            note = f"said {said:.2f}, off by {abs(said / came - 1):.0%}"
            results.append(row(AREA, f"{case.name}: speed-up of {workers} workers", came, "x", note=note))
            print(f"  {results[-1].what}: {came:.2f}, {note}", flush=True)
    target = at_most(LIMIT, AREA, "speed-up said after two probes, median error", _median(errors), "%")
    save("advice", [target, *results], how=HOW)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _measured(case: Case) -> Iterator[tuple[int, float, float]]:
    """For each number of workers above one the speed-up that was said, and the one that came."""
    with TemporaryDirectory(prefix="gridmill-advice-") as folder:
        file = _write(Path(folder) / "project", case)
        with connect(Path(folder) / "home") as client:
            client.run(file, only=("model",), check=True)
            client.apply(file)
            advice = client.advise("known/rest", probe=True)
            took = {workers: _seconds(client, file, workers) for workers in case.numbers}
    for workers in case.numbers[1:]:
        yield workers, _said(advice, workers), took[1] / took[workers]


def _said(advice: Advice, workers: int) -> float:
    line = advice.forecast(workers)
    assert line is not None
    return line.speedup


def _seconds(client: Client, file: Path, workers: int) -> float:
    """Wall seconds of the whole job with so many workers."""
    view = client.run(file, set={"workers": workers}, only=("rest",), force=True, check=True)
    use = view.jobs[-1].attempts[-1].use
    assert use is not None
    print(f"  {workers} workers: {use.wall_seconds:.1f} s", flush=True)
    return use.wall_seconds


def _write(project: Path, case: Case) -> Path:
    project.mkdir()
    code = CODE.format(
        row=case.work_seconds / ROWS, load=case.load_seconds, locked=case.locked, compute=case.compute
    )
    (project / "code.py").write_text(code)
    path = project / "pipeline.yaml"
    path.write_text(PIPELINE.format(rows=ROWS + 48))
    return path


if __name__ == "__main__":
    main()
