"""Gangs against torchrun: from the start to the first collective, and what a training step takes."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.contestants import environment, short_folder
from bench.grids import up
from bench.measure import ROUNDS, Result, Series, alternate, at_most, row, save
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.states import FINISHED_RUNS, RunState
from gridmill.ports.grid import Grid

AREA = "Gangs"
RANKS, STEPS = 2, int(os.environ.get("GRIDMILL_BENCH_STEPS", "2000"))
PER_STEP = {"step_seconds": "wall time", "step_cpu_seconds": "CPU time", "step_instructions": "instructions"}
"""What a run tells of its steps, and how the page calls it."""
ENDS_SECONDS = 300.0
SCRIPT = Path(__file__).with_name("gang_rank.py")
TORCHRUN, GRIDMILL = "torchrun", "Gridmill"
HOW = f"""
One PyTorch script (gloo, a network of 130,000 weights in DDP, {STEPS:,} steps) is started with {RANKS}
ranks by `torchrun` and as a job with `workers: {RANKS}` of a control node that is up with its pod warm,
in turn, {ROUNDS} rounds after one that does not count; a thread for each rank. Start: from the command,
or the request, to rank 0's return from its first all-reduce; most of it is Python loading PyTorch. Steps are
measured alone, after some that do not count and a barrier: the median of their wall times, and their mean CPU
time and instructions (outside the kernel) at rank 0, which a busy machine disturbs less or not at all.
Nobody asks the control node anything while they run. Values are medians of the rounds' ratios.
"""


def no_steps() -> dict[str, dict[str, Series]]:
    """Nothing measured yet."""
    return {measure: {TORCHRUN: Series(), GRIDMILL: Series()} for measure in PER_STEP}


@dataclass(slots=True, kw_only=True)
class Bench:
    """`steps` are collected as runs go: what each takes, by measure and by who started the run."""

    folder: Path
    env: Mapping[str, str]
    grid: Grid
    steps: dict[str, dict[str, Series]] = field(default_factory=no_steps)
    count: int = 0

    def _file(self) -> Path:
        self.count += 1
        return self.folder / f"told-{self.count}.json"

    def torchrun(self) -> float:
        """Seconds to the first collective."""
        file = self._file()
        argv = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
        began = time.time()
        subprocess.run(
            (*argv, str(SCRIPT), str(file), str(STEPS)), check=True, env=dict(self.env), capture_output=True
        )
        return self._read(TORCHRUN, file, began)

    def gridmill(self) -> float:
        """Seconds to the first collective."""
        file = self._file()
        command = CommandSpec(run=(sys.executable, str(SCRIPT), str(file), str(STEPS)), workers=RANKS)
        job = Job(name="j", command=command, cache=False)
        began = time.time()
        run = self.grid.start_run(Pipeline(name="gang", jobs=(job,))).run
        until = time.monotonic() + ENDS_SECONDS
        while not file.exists() and time.monotonic() < until:  # asking the control node would take its CPU
            time.sleep(0.2)
        while run.state not in FINISHED_RUNS:
            time.sleep(0.05)
            run = self.grid.run(run.id).run
        assert run.state is RunState.SUCCEEDED, run.message
        return self._read(GRIDMILL, file, began)

    def _read(self, who: str, file: Path, began: float) -> float:
        told = json.loads(file.read_text())
        if told["threads"] != 1:
            print(f"  {who} gives a rank {told['threads']} threads", flush=True)
        for measure, series in self.steps.items():
            if measure in told:
                series[who].values.append(told[measure])
        return float(told["met"]) - began


def main() -> None:
    with short_folder() as name:
        folder = Path(name)
        env = environment(folder, Path(sys.executable).parent, OMP_NUM_THREADS="1")
        with up(folder / "home", env) as node:
            bench = Bench(folder=folder, env=env, grid=node.grid)
            starts = alternate(
                {TORCHRUN: bench.torchrun, GRIDMILL: bench.gridmill},
                rounds=int(os.environ.get("GRIDMILL_BENCH_ROUNDS", ROUNDS)),
            )
        shutil.rmtree(folder / "home", ignore_errors=True)
    save("gangs", results(starts, bench), how=HOW)


def results(starts: Mapping[str, Series], bench: Bench) -> list[Result]:
    """The lines of the page."""
    ours, theirs = starts[GRIDMILL], starts[TORCHRUN]
    start = ratios(ours, theirs)
    found = [
        row(AREA, "start to first collective, torchrun", theirs.median, "s", **theirs.spread),
        row(AREA, "start to first collective, Gridmill", ours.median, "s", **ours.spread),
        at_most(1.2, AREA, "start to first collective, against torchrun", start.median, "x", **start.spread),
    ]
    wall = warm(bench.steps["step_seconds"][TORCHRUN])
    found.append(row(AREA, "a training step, torchrun", wall.median * 1000, "ms"))
    for measure, what in PER_STEP.items():
        by = bench.steps[measure]
        if by[GRIDMILL].values:
            step = warm(ratios(by[GRIDMILL], by[TORCHRUN]))
            said = f"a training step's {what}, against torchrun"
            if measure == "step_cpu_seconds":
                found.append(row(AREA, said, step.median, "x", **step.spread))
            else:
                found.append(at_most(1.02, AREA, said, step.median, "x", **step.spread))
    return found


def warm(series: Series) -> Series:
    """Without the round that does not count."""
    return Series(series.values[1:])


def ratios(ours: Series, theirs: Series) -> Series:
    """Ours over theirs, round by round."""
    pairs = list(zip(ours.values, theirs.values, strict=True))
    return Series([one / other for one, other in pairs])


if __name__ == "__main__":
    main()
