"""The next job at a farm: how late it starts after the job before it, with and without an early transfer."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from bench.contestants import GRIDMILL, environment, short_folder
from bench.farm import add, controller, events
from bench.grids import up
from bench.measure import Result, Series, alternate, at_most, row, save
from gridmill.domain.amounts import MIB
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.ports.grid import Grid

AREA = "The next job at a farm"
DATA_MIB, RATE_MIB, RUNS_SECONDS = 100, 20, 10
MOST_SECONDS = 2.0
HOW = f"""
A farm and a home on this machine, joined over mutual TLS, with the setting `rate={RATE_MIB}MiB`, as a line of
that rate. A resource with one pod, on which a job runs for {RUNS_SECONDS} s. Meanwhile another job at home
writes {DATA_MIB} MiB of random bytes, which the next job at the farm reads. From the end of the command of
the first job to the first line of the next job, by the clock of the machine; with `early=no`, the transfer
begins after the first job. Three rounds.
"""


def main() -> None:
    with short_folder() as made:
        folder = Path(made)
        env = environment(folder)
        at_home = {**env, "GRIDMILL_HOME": str(folder / "home")}
        with controller(folder / "farm", env) as (port, words), up(folder / "home", env) as node:
            add(f"127.0.0.1:{port}", words, at_home)
            _configure(at_home, f"rate={RATE_MIB}MiB")
            wanted = Resource(
                name="far", type=JobKind.COMMAND, site="far", cpus=1, memory_bytes=256 * MIB, workers=1
            )
            node.grid.configure_resource(wanted)
            _gap(node.grid, at_home, "yes")  # the pod comes up
            acts = {one: lambda one=one: _gap(node.grid, at_home, one) for one in ("yes", "no")}
            save("early", _results(alternate(acts, rounds=3, warm=False)), how=HOW)


def _results(gaps: Mapping[str, Series]) -> list[Result]:
    early, late = gaps["yes"], gaps["no"]
    what = f"to the first line of the next job, which reads {DATA_MIB} MiB"
    return [
        at_most(MOST_SECONDS, AREA, f"with the early transfer: {what}", early.median, "s", **early.spread),
        row(AREA, f"without: {what}", late.median, "s", **late.spread),
    ]


def _configure(at_home: Mapping[str, str], setting: str) -> None:
    words = (str(GRIDMILL), "configure", "site", "far", "--set", setting)
    subprocess.run(words, env=at_home, check=True, capture_output=True)


def _gap(grid: Grid, at_home: Mapping[str, str], early: str) -> float:
    """Seconds from the last line of the first job to the first line of the next."""
    _configure(at_home, f"early={early}")
    run = grid.start_run(_pipeline()).run.id
    times = [(line.partition(" ")[0], float(line.partition(" ")[2])) for _, line in events(grid, run)]
    said = dict(times)
    return said["next"] - said["first"]


def _pipeline() -> Pipeline:
    write = f'head -c {DATA_MIB * MIB} /dev/urandom > "$GRIDMILL_OUTPUT/data"'
    clock = "$(date +%s.%N)"
    data = Job(name="data", cache=False, command=CommandSpec(run=write))
    first = _far("first", f'sleep {RUNS_SECONDS}; echo "first {clock}"', ())
    following = _far("next", f'echo "next {clock}"; test -s "$GRIDMILL_INPUT_DATA/data"', ("data",))
    return Pipeline(name=f"early{time.monotonic_ns()}", jobs=(data, first, following))


def _far(name: str, run: str, needs: tuple[str, ...]) -> Job:
    command = CommandSpec(run=run)
    return Job(
        name=name, needs=needs, resource="far", cache=False, command=command, memory_bytes=200 * MIB, cpus=1.0
    )


if __name__ == "__main__":
    main()
