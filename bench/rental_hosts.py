"""Eight rented machines at the same time as real hosts: the memory of the control node, and the time of its
status.

`python -m bench.rental_hosts` measures. The machines of the simulated EC2 are hosts in Linux namespaces, each
with an SSH server and its light server. It needs root, iproute2 and sshd.
"""

import os
import sys
import time

from bench.measure import Result, at_least, at_most, percentile, row, save
from bench.readers import pss_bytes
from bench.rental_processes import Disaster, Rental, Schedule, rental, wait
from gridmill.domain.amounts import MIB
from gridmill.domain.states import JobState, RunState
from gridmill.ports.grid import Grid
from gridmill.sdk.client import connect
from gridmill.testing.cloud.namespace_machines import why_no_machines

AREA = "8 rented machines, real hosts"
MACHINES = 8
JOB_SECONDS = 20.0
LOOK_SECONDS = 0.05
LIMIT_SECONDS = 420.0
HOW = f"""
`gridmill up` as a process of its own rents {MACHINES} machines of the simulated EC2 at once. Each machine is
a host in Linux namespaces with an SSH server, on which the light server is started over SSH, and runs one job
of {JOB_SECONDS:g} s. Meanwhile a client reads the status of the run (the call of `gridmill show run`) and the
newest leases (the call of `gridmill list leases`) over the Unix socket of the home, up to
{1 / LOOK_SECONDS:.0f} times a second. The hosts share two cores with the control node. Memory is the
proportional set size (PSS).
"""
PIPELINE = f"""
pipeline: p
resources:
  burst:
    type: command
    site: aws
    cpus: 1
    memory: 256MiB
    workers: {MACHINES}
    keep: 0s
    settings: {{instance_type: t3.micro}}
jobs:
""" + "".join(
    f"""  job-{number}:
    resource: burst
    cpus: 1
    memory: 200MiB
    cache: false
    command: "sleep {JOB_SECONDS:g}; echo done > $GRIDMILL_OUTPUT/out"
"""
    for number in range(1, MACHINES + 1)
)


class Watched:
    """The measurements while the machines are rented, used and returned."""

    def __init__(self, one: Rental) -> None:
        self.rental = one
        self.took: dict[str, list[float]] = {"status": [], "leases": []}
        self.most_bytes = 0
        self.most_machines = 0
        self.most_jobs = 0
        self.state = ""

    def look(self, grid: Grid, run_id: str) -> bool:
        """Read everything once. Returns whether the run and all machines have ended. Leases stay open longer,
        because the provider's list may lag behind."""
        began = time.perf_counter()
        view = grid.run(run_id)
        between = time.perf_counter()
        leases = grid.leases(limit=20).items
        self.took["status"].append(between - began)
        self.took["leases"].append(time.perf_counter() - between)
        assert self.rental.process is not None
        self.most_bytes = max(self.most_bytes, pss_bytes(self.rental.process.pid))
        running = len(self.rental.ec2.running())
        self.most_machines = max(self.most_machines, running)
        self.most_jobs = max(self.most_jobs, view.counts.get(JobState.RUNNING, 0))
        self.state = view.run.state.value
        return view.run.ended is not None and not running and bool(leases)


def measure() -> list[Result]:
    """Returns the results. Raises TimeoutError if the run does not end."""
    with rental(Schedule(seed=0, disaster=Disaster.STOP, at=0.0)) as one:
        (one.folder / "project" / "pipeline.yaml").write_text(PIPELINE)
        one.start()
        one.prepare()
        one.submit()
        watched = Watched(one)
        with connect(one.home, embed=False) as client:
            [run] = client.grid.runs().items

            def is_over() -> bool:
                time.sleep(LOOK_SECONDS)
                return watched.look(client.grid, run.id)

            wait(is_over, "the run has ended and its machines are returned", LIMIT_SECONDS)
        left = len(one.ec2.running())
    return rows(watched, left)


def rows(watched: Watched, left: int) -> list[Result]:
    """The results for the table."""
    results = [
        at_least(MACHINES, AREA, "machines at the same time", watched.most_machines, ""),
        at_least(MACHINES, AREA, "jobs at the same time", watched.most_jobs, ""),
        at_most(0, AREA, "runs that did not succeed", int(watched.state != RunState.SUCCEEDED), ""),
        at_most(0, AREA, "machines left", left, ""),
        at_most(300, AREA, "memory of the control node (PSS)", watched.most_bytes / MIB, "MiB"),
    ]
    for name, values in watched.took.items():
        results += [
            row(AREA, f"{name}, p50", percentile(values, 0.5) * 1000, "ms"),
            at_most(50, AREA, f"{name}, p99", percentile(values, 0.99) * 1000, "ms"),
        ]
    return results


def main() -> int:
    if why := why_no_machines():
        print(f"not measured: {why}")
        return 0
    load = os.getloadavg()[0]
    how = f"{HOW.strip()} Measured while other programs kept the machine at a load of {load:.0f}."
    save("rental-hosts", measure(), how=how if load > 2 else HOW)
    return 0


if __name__ == "__main__":
    sys.exit(main())
