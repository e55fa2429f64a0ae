"""How long a plan takes: 1 k, 10 k and 100 k waiting jobs on 10,000 nodes, and small changes in between.

    python bench/planner.py [--json] [--rounds 5] [--nodes 10000] [--jobs 1000 10000 100000]

The jobs ask for 20 resources with 500 pods each (one pod a node). `one class`: all ask for the same;
`400 classes`: 20 sizes per resource; `all different`: no two ask for the same. `cold` has no pod up, so that
deployments are brought up instead. `10 projects` have shares and quotas, each has jobs at every resource.
`change + plan` is what the control node does all day: 200 jobs end, 200 new ones come, and the next 200
starts are planned while all the others wait.
"""

import argparse
import gc
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from math import log2
from time import perf_counter, process_time

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.job import Job, JobKind
from gridmill.domain.plan import StartJob
from gridmill.domain.project import DEFAULT, Project
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import AttemptState, DeploymentState, JobState, PodState, RunState
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot

RESOURCES = 20
RUN_JOBS = 100
NOW = 1000.0
NODE = Amounts(cpus=8.0, memory_bytes=32 * GIB)
BATCH = 200
PROJECTS = 10
COMMAND = CommandSpec(run="true")

SIZES: dict[str, Callable[[int], int]] = {
    "one class": lambda _: GIB,
    "400 classes": lambda number: (number // RESOURCES % 20 + 1) * 200 * MIB,  # the rest says the resource
    "all different": lambda number: GIB + number * 1000,
}


def grid(nodes: int, *, cold: bool) -> Snapshot:
    snapshot = Snapshot()
    snapshot.put(
        Site(
            name="local",
            kind=SiteKind.SIMULATED,
            nodes=tuple(Node(name=f"n{k:05}", capacity=NODE) for k in range(nodes)),
        )
    )
    for number in range(RESOURCES):
        resource = Resource(name=f"r{number:02}", type=JobKind.COMMAND)
        snapshot.put(resource)
        if not cold:
            snapshot.put(deployment(resource, range(number, nodes, RESOURCES)))
    return snapshot


def deployment(resource: Resource, nodes: range) -> Deployment:
    key = f"{resource.name}-1"
    return Deployment(
        id=key,
        resource=resource.name,
        type=resource.type,
        site="local",
        state=DeploymentState.UP,
        sizing=Sizing(amounts=NODE, workers=len(nodes)),
        pods=tuple(Pod(id=f"{key}.{k}", node=f"n{k:05}", capacity=NODE, state=PodState.UP) for k in nodes),
        keep_seconds=300.0,
        created=0.0,
    )


def share(snapshot: Snapshot, count: int) -> None:
    """So many projects, with shares from 1 to 3 and quotas that all of them together just use up."""
    for number in range(count):
        project = Project(
            name=f"project{number}",
            share=1.0 + number % 3,
            cpus=9_000.0,
            memory_bytes=60_000 * GIB,
            gpus=100,
            used_seconds=3600.0 * number,
            used_at=NOW,
        )
        snapshot.put(project)


def submit(snapshot: Snapshot, numbers: range, memory: Callable[[int], int], projects: int = 0) -> None:
    for number in numbers:
        run_id = f"p-{number // RUN_JOBS}"
        if run_id not in snapshot.runs:
            order = number // RUN_JOBS
            snapshot.put(Run(id=run_id, pipeline="p", order=order, state=RunState.ACTIVE, created=0.0))
        name = f"j{number}"
        snapshot.put(
            JobRun(
                id=f"{run_id}/{name}",
                run_id=run_id,
                pipeline="p",
                job=Job(name=name, command=COMMAND),
                order=number % RUN_JOBS,
                state=JobState.WAITING,
                resource=f"r{number * 7 % RESOURCES:02}",
                sizing=Sizing(amounts=Amounts(cpus=1.0, memory_bytes=memory(number))),
                ready=NOW - 60.0,
                project=f"project{number // 400 % projects}" if projects else DEFAULT,
            )
        )


def start(snapshot: Snapshot, starts: tuple[StartJob, ...]) -> None:
    for wanted in starts:
        job_run = snapshot.job_runs[wanted.job_run_id]
        snapshot.put(replace(job_run, state=JobState.RUNNING))
        snapshot.put(
            Attempt(
                id=f"{job_run.run_id}.{job_run.job.name}.1",
                run_id=job_run.run_id,
                job_run_id=job_run.id,
                token="",
                deployment_id=wanted.deployment_id,
                pod_id=wanted.pod_id,
                state=AttemptState.PLACED,
                given=wanted.given,
                placed=NOW,
            )
        )


def seconds(act: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds: they differ where the machine is shared."""
    began, began_cpu = perf_counter(), process_time()
    act()
    return perf_counter() - began, process_time() - began_cpu


def full_plan(
    shape: str, jobs: int, nodes: int, rounds: int, *, cold: bool = False, projects: int = 0
) -> dict[str, object]:
    snapshot = grid(nodes, cold=cold)
    share(snapshot, projects)
    loading, _ = seconds(lambda: submit(snapshot, range(jobs), SIZES[shape], projects))
    gc.collect()
    gc.freeze()  # as a long-lived control node does: what stays is not looked at again by every collection
    took = [seconds(lambda: plan(snapshot, NOW)) for _ in range(rounds)]
    made = plan(snapshot, NOW)
    gc.unfreeze()
    return {
        "case": f"plan, {shape}{', cold' if cold else ''}{f', {projects} projects' if projects else ''}",
        "jobs": jobs,
        "median_ms": statistics.median(wall for wall, _ in took) * 1000,
        "worst_ms": max(wall for wall, _ in took) * 1000,
        "cpu_ms": statistics.median(cpu for _, cpu in took) * 1000,
        "starts": len(made.starts),
        "bring_ups": len(made.bring_ups),
        "put_us": loading / jobs * 1e6,
    }


def changes(shape: str, jobs: int, nodes: int, rounds: int) -> dict[str, object]:
    """All pods full; each round 200 jobs end, 200 come, and 200 starts are planned."""
    snapshot = grid(nodes, cold=False)
    submit(snapshot, range(jobs), SIZES[shape])
    start(snapshot, plan(snapshot, NOW).starts)
    chance, took, planning, cpu, number, started = random.Random(1), [], [], [], jobs, 0
    gc.collect()
    gc.freeze()
    for _ in range(rounds * 4):
        ending = [snapshot.attempts[key] for key in chance.sample(sorted(snapshot.attempts), BATCH)]
        began, began_cpu = perf_counter(), process_time()
        for attempt in ending:
            snapshot.put(replace(attempt, state=AttemptState.SUCCEEDED))
            snapshot.put(replace(snapshot.job_runs[attempt.job_run_id], state=JobState.SUCCEEDED))
        submit(snapshot, range(number, number + BATCH), SIZES[shape])
        planned = perf_counter()
        made = plan(snapshot, NOW, limit=BATCH)
        ended = perf_counter()
        start(snapshot, made.starts)
        took.append(perf_counter() - began)
        cpu.append(process_time() - began_cpu)
        planning.append(ended - planned)
        number += BATCH
        started += len(made.starts)
    gc.unfreeze()
    return {
        "case": f"change + plan, {shape}",
        "jobs": jobs,
        "median_ms": statistics.median(took) * 1000,
        "worst_ms": max(took) * 1000,
        "cpu_ms": statistics.median(cpu) * 1000,
        "starts": started // len(took),
        "plan_alone_ms": statistics.median(planning) * 1000,
    }


def growth(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Time per n log n at the largest size, relative to the smallest: at most about 1 is no worse."""
    found = []
    for case in dict.fromkeys(str(row["case"]) for row in rows):
        same = [row for row in rows if row["case"] == case]
        if len(same) > 1 and case.startswith("plan"):
            unit = [float(str(row["cpu_ms"])) / _n_log_n(int(str(row["jobs"]))) for row in same]
            found.append({"case": case, "growth_to_n_log_n": unit[-1] / unit[0]})
    return found


def _n_log_n(count: int) -> float:
    return count * log2(count)


def show(rows: list[dict[str, object]]) -> None:
    print(
        f"{'case':32}{'jobs':>9}{'median ms':>11}{'worst ms':>10}{'CPU ms':>9}"
        f"{'starts':>9}{'bring-ups':>10}  remarks"
    )
    for row in rows:
        remarks = f"put {row['put_us']:.0f} us" if "put_us" in row else f"plan {row['plan_alone_ms']:.1f} ms"
        print(
            f"{row['case']:32}{row['jobs']:>9,}{row['median_ms']:>11.1f}{row['worst_ms']:>10.1f}"
            f"{row['cpu_ms']:>9.1f}{row['starts']:>9,}{row.get('bring_ups', 0):>10,}  {remarks}"
        )
    for row in growth(rows):
        print(f"{row['case']}: {row['growth_to_n_log_n']:.2f} x what n log n would grow by")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    chosen = parser.parse_args(arguments)
    rows = [full_plan(shape, jobs, chosen.nodes, chosen.rounds) for shape in SIZES for jobs in chosen.jobs]
    rows += [full_plan("400 classes", jobs, chosen.nodes, chosen.rounds, cold=True) for jobs in chosen.jobs]
    most = max(chosen.jobs)
    rows += [full_plan(shape, most, chosen.nodes, chosen.rounds, projects=PROJECTS) for shape in SIZES]
    rows += [changes(shape, max(chosen.jobs), chosen.nodes, chosen.rounds) for shape in SIZES]
    if chosen.json:
        print(json.dumps({"rows": rows, "growth": growth(rows), "nodes": chosen.nodes}, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
