"""Advice on workers against what so many workers then took: predictions whose law is known."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Result, at_most, row, save
from gridmill.domain.advice import Advice
from gridmill.sdk.client import Client, connect

AREA = "Advice on workers"
LIMIT, LIMIT_90 = 10.0, 25.0
SLOWER = 1.05
"""What two runs of one job may differ by."""
ROWS = 32_768
HOW = """
A prediction job whose model is a function of the project: for each row it sleeps (or computes) so long, to
load it takes a time that no number of workers shortens, a part of each shard may be done under a lock, and
each worker may become slower by the number of those beside it (the Universal Scalability Law). For each, two
probes on parts of the rows, and a third where the gain depends on it, make the advice; then the whole job
runs with 1 to 32 workers (those that compute: up to twice the cores) and with the advised number, and the
speed-up of each by its wall time, start and end included, is held against the one that was said.
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
import fcntl, os, time

ROW, LOAD, LOCKED, COMPUTE = {row!r}, {load!r}, {locked!r}, {compute!r}
CONTENTION, COHERENCE = {contention!r}, {coherence!r}
time.sleep(LOAD)


def fit(data):
    return {{}}


def spend(seconds):
    if not COMPUTE:
        return time.sleep(seconds)
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def pace():
    parent = os.getppid()
    with open(f"/proc/{{parent}}/task/{{parent}}/children") as children:
        workers = len(children.read().split())
    return 1 + CONTENTION * (workers - 1) + COHERENCE * workers * (workers - 1)


def predict(folder, inputs):
    seconds = len(inputs) * ROW * (pace() if CONTENTION or COHERENCE else 1)
    spend(seconds * (1 - LOCKED))
    if LOCKED:
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            spend(seconds * LOCKED)
    return inputs[:, 0]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`work_seconds` for one worker, `load_seconds` to load, and the part of the work under a lock;
    `contention` and `coherence` are shares of the work, as the Universal Scalability Law has them."""

    name: str
    work_seconds: float
    load_seconds: float
    locked: float = 0.0
    contention: float = 0.0
    coherence: float = 0.0
    compute: bool = False
    numbers: Sequence[int] = (1, 2, 4, 8, 16, 32)


CASES = (
    Case(name="sleeping, 0 % serial", work_seconds=30.0, load_seconds=0.0),
    Case(name="sleeping, 2 % serial", work_seconds=29.4, load_seconds=0.6),
    Case(name="sleeping, 10 % serial", work_seconds=27.0, load_seconds=3.0),
    Case(name="sleeping, 25 % serial", work_seconds=22.5, load_seconds=7.5),
    Case(name="sleeping, 40 % serial", work_seconds=18.0, load_seconds=12.0),
    Case(name="sleeping, 3 % under a lock", work_seconds=29.0, load_seconds=1.0, locked=0.03),
    Case(name="sleeping, 8 % under a lock", work_seconds=29.0, load_seconds=1.0, locked=0.08),
    Case(name="sleeping, 20 % under a lock", work_seconds=29.0, load_seconds=1.0, locked=0.2),
    Case(name="USL 0.05, 0.001", work_seconds=29.0, load_seconds=1.0, contention=0.05, coherence=0.001),
    Case(name="USL 0.02, 0.005", work_seconds=29.0, load_seconds=1.0, contention=0.02, coherence=0.005),
    Case(name="USL 0.1, 0.01", work_seconds=29.0, load_seconds=1.0, contention=0.1, coherence=0.01),
    Case(name="computing, 5 % serial", work_seconds=28.5, load_seconds=1.5, compute=True, numbers=(1, 2, 4)),
)


def main() -> None:
    results: list[Result] = []
    errors: list[float] = []
    slower: list[str] = []
    for case in CASES:
        advised, found = _measured(case)
        fastest = max(came for workers, _, came in found if workers <= advised)
        if fastest > SLOWER * next(came for workers, _, came in found if workers == advised):
            slower.append(case.name)
        for workers, said, came in found:
            if workers == 1:
                continue
            errors.append(abs(said / came - 1) * 100)
            note = f"said {said:.2f}, off by {abs(said / came - 1):.0%}"
            note += ", advised" if workers == advised else ""
            results.append(row(AREA, f"{case.name}: speed-up of {workers} workers", came, "x", note=note))
            print(f"  {results[-1].what}: {came:.2f}, {note}", flush=True)
    targets = [
        at_most(LIMIT, AREA, "speed-up said after probes, median error", statistics.median(errors), "%"),
        at_most(LIMIT_90, AREA, "the same, 90th percentile", statistics.quantiles(errors, n=10)[-1], "%"),
        at_most(0.0, AREA, "advised numbers slower than a smaller one", float(len(slower)), ""),
    ]
    save("advice", [*targets, *results], how=HOW)


def _measured(case: Case) -> tuple[int, list[tuple[int, float, float]]]:
    """The advised number; and for each number of workers the speed-up that was said, and that came."""
    with TemporaryDirectory(prefix="gridmill-advice-") as folder:
        file = _write(Path(folder) / "project", case)
        with connect(Path(folder) / "home") as client:
            client.run(file, only=("model",), check=True)
            client.apply(file)
            advice = client.advise("known/rest", probe=True)
            numbers = sorted({*case.numbers, advice.worth})
            took = {workers: _seconds(client, file, workers) for workers in numbers}
    return advice.worth, [(workers, _said(advice, workers), took[1] / took[workers]) for workers in numbers]


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
        row=case.work_seconds / ROWS,
        load=case.load_seconds,
        locked=case.locked,
        compute=case.compute,
        contention=case.contention,
        coherence=case.coherence,
    )
    (project / "code.py").write_text(code)
    path = project / "pipeline.yaml"
    path.write_text(PIPELINE.format(rows=ROWS + 48))
    return path


if __name__ == "__main__":
    main()
