"""How long from submitting a job to its first line on a warm pod; and how many no-op jobs a second."""

import os
import tempfile
import time
from pathlib import Path

from bench.measure import Result, percentile, save
from gridmill.bootstrap import EmbeddedNode, embed
from gridmill.model.job import CommandSpec, Job
from gridmill.model.pipeline import Pipeline
from gridmill.model.state import FINISHED_RUNS, RunState
from gridmill.settings import read_settings

SUBMITS = 200
JOBS = 1000
WAITING = 100_000


def one(name: str, run: str = "echo here", **settings) -> Pipeline:
    job = Job(name="job", cache=False, command=CommandSpec(run=run), memory_bytes=2**25, **settings)
    return Pipeline(name=name, jobs=(job,))


def first_line(node: EmbeddedNode, pipeline: Pipeline) -> float:
    """Seconds from submit to the first line of output as a reader of the events sees it."""
    begin = time.perf_counter()
    run_id = node.grid.start_run(pipeline).run.id
    after = 0
    while True:
        events = node.grid.events(run_id, after=after, wait_seconds=5)
        if any(event.type == "log" for event in events):
            return time.perf_counter() - begin
        after = events[-1].sequence if events else after


def wait(node: EmbeddedNode, run_id: str) -> RunState:
    """The state a run ends in, read from its events."""
    after = 0
    while True:
        events = node.grid.events(run_id, after=after, wait_seconds=2)
        for event in events:
            if event.type == "state" and event.body["what"] == "run" and event.body["state"] in FINISHED_RUNS:
                return RunState(event.body["state"])
        after = events[-1].sequence if events else after


def warm_starts(node: EmbeddedNode) -> list[float]:
    wait(node, node.grid.start_run(one("warmup")).run.id)
    return [first_line(node, one("latency")) for _ in range(SUBMITS)]


def throughput(node: EmbeddedNode) -> float:
    jobs = tuple(
        Job(name=f"j{i}", cache=False, command=CommandSpec(run=("true",)), memory_bytes=2**25)
        for i in range(JOBS)
    )
    begin = time.perf_counter()
    run_id = node.grid.start_run(Pipeline(name="many", jobs=jobs)).run.id
    state = wait(node, run_id)
    assert state == RunState.SUCCEEDED, state
    return JOBS / (time.perf_counter() - begin)


def queued(node: EmbeddedNode) -> list[float]:
    """The same with many jobs waiting: they ask for a resource that never comes free."""
    blocker = one("blocker", "sleep 600")
    node.grid.start_run(blocker)
    behind = tuple(
        Job(
            name=f"j{i}", needs=("gate",), cache=False, command=CommandSpec(run=("true",)), memory_bytes=2**25
        )
        for i in range(WAITING)
    )
    gate = Job(name="gate", cache=False, command=CommandSpec(run="sleep 600"), memory_bytes=2**25)
    node.grid.start_run(Pipeline(name="behind", jobs=(gate, *behind)))
    return [first_line(node, one("ahead", priority=1)) for _ in range(50)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gridmill-bench-") as folder:
        settings = read_settings({**os.environ, "GRIDMILL_HOME": str(Path(folder) / "home")})
        node = embed(settings)
        try:
            results = _measure(node)
        finally:
            for run in node.grid.runs(limit=1000):
                if run.state not in FINISHED_RUNS:
                    node.grid.stop_run(run.id)
                    wait(node, run.id)
            node.close(tear_down=True)
    save("latency", results)


def _measure(node: EmbeddedNode) -> list[Result]:
    starts = warm_starts(node)
    rate = throughput(node)
    crowded = queued(node)
    p50, p99 = percentile(starts, 0.5) * 1000, percentile(starts, 0.99) * 1000
    late = percentile(crowded, 0.99) * 1000
    area = "starting jobs"
    return [
        Result(
            area=area,
            what="submit to first line, warm pod, p50",
            value=p50,
            unit="ms",
            target="<= 50 ms",
            met=p50 <= 50,
        ),
        Result(
            area=area,
            what="submit to first line, warm pod, p99",
            value=p99,
            unit="ms",
            target="<= 150 ms",
            met=p99 <= 150,
        ),
        Result(
            area=area,
            what="1,000 no-op jobs end to end",
            value=rate,
            unit="jobs/s",
            target=">= 50 jobs/s",
            met=rate >= 50,
        ),
        Result(
            area=area,
            what=f"the same p99 while {WAITING:,} jobs wait",
            value=late,
            unit="ms",
            target="<= 500 ms",
            met=late <= 500,
        ),
    ]


if __name__ == "__main__":
    main()
