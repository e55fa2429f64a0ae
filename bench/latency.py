"""From submitting a job to its first line on a warm pod, alone and in a crowd; no-op jobs a second."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.contestants import environment, short_folder
from bench.grids import clear, up
from bench.measure import Result, Series, at_least, at_most, percentile, row, save
from gridmill.domain.amounts import MIB
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.states import DONE_JOBS, FINISHED_RUNS, JobState
from gridmill.ports.grid import Grid

AREA = "Starting jobs"
SUBMITS, JOBS, BURSTS, WAITING = 200, 1000, 5, 100_000
PARTS = 10
"""The crowd comes as this many pipelines: a request may not be of any size."""
LIMIT_SECONDS = 300.0
HOW = f"""
Against `gridmill up` on a fresh home, through the same client over its Unix socket that every command uses,
in a process of its own. Submit to first line: from handing a one-job pipeline (`echo here`) to the client
until the client has the job's first line of output, {SUBMITS} one after another on a pod that is up. No-op
jobs: one pipeline of {JOBS:,} independent `true`, from submitting it until the client sees the run
succeeded, median of {BURSTS}. In a crowd: {WAITING:,} jobs are in state waiting (not blocked: they need
nothing) for a resource whose only deployment is held by one long job; then {SUBMITS} submits as before, to
another resource.
"""


def command(name: str, run: str | tuple[str, ...], **more: object) -> Job:
    """A command job that is never skipped as unchanged, and small."""
    return Job(name=name, cache=False, command=CommandSpec(run=run), memory_bytes=32 * MIB, **more)  # type: ignore[arg-type]


ECHO = Pipeline(name="latency", jobs=(command("job", "echo here"),))


def main() -> None:
    with short_folder() as folder, up(Path(folder) / "home", environment(Path(folder))) as node:
        alone = first_lines(node.grid)
        rates = Series([throughput(node.grid) for _ in range(BURSTS)])
        gather = crowd(node.grid)
        crowded = first_lines(node.grid)
        still = node.grid.control().waiting_jobs
        clear(node.grid)
    if still < WAITING:
        raise RuntimeError(f"only {still} jobs were left waiting")
    save("latency", _results(alone, rates, gather, crowded), how=HOW)


def _results(alone: Series, rates: Series, gather: float, crowded: Series) -> list[Result]:
    ms, what = "ms", "submit to first line, warm pod"
    return [
        at_most(50, AREA, f"{what}, p50", percentile(alone.values, 0.5), ms, **alone.spread),
        at_most(150, AREA, f"{what}, p99", percentile(alone.values, 0.99), ms, **alone.spread),
        at_least(50, AREA, f"{JOBS:,} no-op jobs, end to end", rates.median, "jobs/s", **rates.spread),
        row(
            AREA,
            f"submit to first line while {WAITING:,} jobs wait, p50",
            crowded.median,
            ms,
            **crowded.spread,
        ),
        at_most(
            500,
            AREA,
            f"submit to first line while {WAITING:,} jobs wait, p99",
            percentile(crowded.values, 0.99),
            ms,
            **crowded.spread,
        ),
        row(AREA, f"submitting those {WAITING:,} jobs, until all are waiting", gather, "s", runs=1),
    ]


def first_lines(grid: Grid) -> Series:
    """Milliseconds from submit to first line, after three that warm up."""
    for _ in range(3):
        first_line(grid)
    return Series([1000 * first_line(grid) for _ in range(SUBMITS)])


def first_line(grid: Grid) -> float:
    """Seconds from submit to the first line as a reader of the log sees it; the run ends before return."""
    begin = time.perf_counter()
    run_id = grid.start_run(ECHO).run.id
    while not grid.logs(run_id, wait_seconds=5):
        pass
    seconds = time.perf_counter() - begin
    finish(grid, run_id)
    return seconds


def throughput(grid: Grid) -> float:
    """Jobs a second: one pipeline of many independent no-ops."""
    jobs = tuple(command(f"j{number}", ("true",)) for number in range(JOBS))
    begin = time.perf_counter()
    run_id = grid.start_run(Pipeline(name="many", jobs=jobs)).run.id
    finish(grid, run_id)
    seconds = time.perf_counter() - begin
    view = grid.run(run_id)
    if any(state not in DONE_JOBS for state in view.states):
        raise RuntimeError(f"{run_id} {view.run.state}")
    return JOBS / seconds


def crowd(grid: Grid) -> float:
    """Many jobs wait for a resource that one long job holds; seconds until all are there."""
    resource = Resource(name="crowded", type=JobKind.COMMAND, cpus=0.5, memory_bytes=32 * MIB, workers=1)
    grid.configure_resource(resource)
    holder = Pipeline(name="holder", jobs=(command("job", "sleep 3600", resource="crowded"),))
    held = grid.start_run(holder).run.id
    _until(lambda: grid.run(held).jobs[0].job.state == JobState.RUNNING, "the holding job does not run")
    begin = time.perf_counter()
    jobs = tuple(command(f"j{number}", ("true",), resource="crowded") for number in range(WAITING // PARTS))
    for part in range(PARTS):
        run_id = grid.start_run(Pipeline(name=f"crowd{part}", jobs=jobs)).run.id
        _until_waiting(grid, run_id, len(jobs))
    return time.perf_counter() - begin


def _until_waiting(grid: Grid, run_id: str, count: int) -> None:
    """Until that many jobs of the run said that they are waiting: ready, and without a place."""
    waiting: set[object] = set()
    after, deadline = "", time.monotonic() + LIMIT_SECONDS
    while len(waiting) < count:
        events = grid.events(run_id, after=after, limit=10_000, wait_seconds=2)
        waiting |= {event.body["id"] for event in events if event.body.get("state") == JobState.WAITING}
        after = events[-1].id if events else after
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(waiting)} of {count} jobs of {run_id} wait")


def finish(grid: Grid, run_id: str) -> None:
    """Follow the run's events until one says that it has ended. Raises TimeoutError."""
    after, deadline = "", time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        events = grid.events(run_id, after=after, wait_seconds=2)
        if any(event.type == "state" and _ends(run_id, event.body) for event in events):
            return
        after = events[-1].id if events else after
    raise TimeoutError(f"{run_id} does not end")


def _ends(run_id: str, body: Mapping[str, object]) -> bool:
    return body["id"] == run_id and str(body["state"]) in FINISHED_RUNS


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
