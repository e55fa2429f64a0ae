"""200 rented machines at the same time: the memory of the control node, the time of its status, and the calls
to the provider.

`python -m bench rental-scale` measures; `python -m bench.rental_scale node FOLDER` is the control node that
is measured: a real one with its store, its service and its HTTP server, over a simulated provider.
"""

import http.client
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from bench.contestants import short_folder
from bench.measure import REPOSITORY, Result, at_least, at_most, percentile, row, save
from bench.readers import RealClock, pss_bytes
from gridmill.domain.amounts import MIB
from gridmill.domain.machine import SelfEnd
from gridmill.sdk.grid_http import HttpGrid, over_tcp
from gridmill.stores.memory import MemoryStore
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.catalog import TRAITS
from gridmill.testing.cloud.provider_faults import ProviderFaults
from gridmill.testing.cloud.rental_oracle import judge
from gridmill.testing.cloud.rental_simulation import SITE, RentalSimulation, pipeline

AREA = "200 rented machines"
MACHINES = 200
JOB_SECONDS = 30.0
"""How long each job runs, so that all machines exist at the same time."""
STEP_SECONDS, LOOK_SECONDS = 0.02, 0.05
LIMIT_SECONDS = 300.0
LONGEST_SECONDS = 6 * 3600.0
HOW = f"""
A control node with a SQLite store, in a process of its own, over a simulated provider that has no limits of
calls: a run of {MACHINES} jobs, each on a machine of its own. Meanwhile a client reads the status of the run
and the newest leases {1 / LOOK_SECONDS:.0f} times a second. Memory is the proportional set size (PSS), with
the simulation, which runs in the same process. The calls are counted in simulated time, against a provider
that permits one call in a second and one launch in 12 s.
"""


def serve_node(folder: Path) -> None:
    """The control node: prints its address, serves until its input ends."""
    import gridmill.cli  # noqa: F401  sets the thresholds of the garbage collector, as in `gridmill up`
    from gridmill.api.app import make_app
    from gridmill.control.background import ThreadRunner
    from gridmill.control.usecases.service import Identity, Service
    from gridmill.domain.site import Site, SiteKind
    from gridmill.http.server import serve
    from gridmill.process_memory import share_memory_areas
    from gridmill.report.render import render
    from gridmill.stores.sql import make
    from gridmill.testing.cloud.provider import SimulatedProvider
    from gridmill.testing.cloud.rented_world import RentedWorld
    from gridmill.testing.simulated_site import Behaviour
    from gridmill.testing.simulation import Simulation

    share_memory_areas()  # as `gridmill up` does
    clock = RealClock()
    account = SimulatedAccount(clock, faults=ProviderFaults(boot_seconds=(5.0, 10.0)))
    made = Simulation(
        store=make(folder / "store.db"),
        behave=lambda order: Behaviour(seconds=JOB_SECONDS),
        clock=clock,
        strict=False,
    )
    world = RentedWorld(
        clock, lambda order: Behaviour(seconds=JOB_SECONDS), SimulatedProvider(account), machines=MACHINES + 2
    )
    made.world = world
    node = made.node = made.new_node(sites={SITE: world})
    control = node.control
    for name in ("calls", "preparing", "forgetting"):
        setattr(control.rentals, name, ThreadRunner(node.wake))
    control.ledger.load()
    transaction = control.begin()
    settings = {"provider": "simulated", "max_hours": "1", "max_machines": str(MACHINES + 2)}
    transaction.put(Site(name=SITE, kind=SiteKind.CLOUD, nodes=world.nodes(), settings=settings))
    control.ledger.commit(transaction)
    identity = Identity(version="0", home=str(folder), address="", embedded=False)
    service = Service(node, identity, render=render, end=lambda: None)
    node.start()
    threading.Thread(target=_step, args=(node, world), daemon=True).start()
    made.submit(pipeline(MACHINES))
    server = serve(make_app(service))
    print(server.address, flush=True)
    sys.stdin.read()


def _step(node, world) -> None:  # type: ignore[no-untyped-def]  # imported where they are made
    while True:
        with node.lock:
            world.step()
            mail = world.has_mail()
        if mail:
            node.wake()
        time.sleep(STEP_SECONDS)


@contextmanager
def served() -> Iterator[tuple[HttpGrid, str, int]]:
    """A control node: its grid, its address and its process id."""
    with short_folder() as folder:
        process = subprocess.Popen(
            (sys.executable, "-m", "bench.rental_scale", "node", str(folder)),
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            url = process.stdout.readline().strip()
            grid = over_tcp(url, None, process.pid)
            yield grid, url, process.pid
            grid.close()
        finally:
            process.kill()
            process.wait()


def in_real_time() -> list[Result]:
    """Reads the status while the machines are rented, used and returned."""
    took: dict[str, list[float]] = {"status": [], "leases": []}
    most_bytes, most_machines, begun = 0, 0, time.monotonic()
    with served() as (grid, url, pid):
        [run] = grid.runs().items
        place = urlsplit(url)
        connection = http.client.HTTPConnection(str(place.hostname), place.port)
        paths = {"status": f"/v1/runs/{run.id}", "leases": "/v1/leases?limit=20"}
        while time.monotonic() - begun < LIMIT_SECONDS:
            for name, path in paths.items():
                at = time.perf_counter()
                connection.request("GET", path)
                connection.getresponse().read()
                took[name].append(time.perf_counter() - at)
            most_bytes = max(most_bytes, pss_bytes(pid))
            if len(took["status"]) % 20 == 0:
                ready = [one for one in grid.leases(limit=1000).items if one.lease.state.value == "ready"]
                most_machines = max(most_machines, len(ready))
                if grid.run(run.id).run.ended is not None:
                    break
            time.sleep(LOOK_SECONDS)
    results = [
        at_least(MACHINES, AREA, "machines that were ready at the same time", most_machines, ""),
        at_most(300, AREA, "memory of the control node (PSS)", most_bytes / MIB, "MiB"),
    ]
    for name, values in took.items():
        results += [
            row(AREA, f"{name}, p50", percentile(values, 0.5) * 1000, "ms"),
            at_most(50, AREA, f"{name}, p99", percentile(values, 0.99) * 1000, "ms"),
        ]
    return results


def in_simulated_time() -> list[Result]:
    """Rents the machines at a provider that limits the calls, and counts the calls."""
    clock, traits = FakeClock(), TRAITS[SelfEnd.OWN_CALL]
    account = SimulatedAccount(clock, traits=traits)
    simulation = RentalSimulation(
        account=account,
        clock=clock,
        store=MemoryStore(),
        job_seconds=3600.0,
        machines=MACHINES + 2,
        settings={"max_hours": "4", "max_machines": str(MACHINES + 2)},
    )
    simulation.declare()
    simulation.submit(MACHINES)
    most = 0

    def is_over() -> bool:
        nonlocal most
        most = max(most, len(account.machines_alive()))
        return simulation.is_over()

    simulation.run_until(is_over, LONGEST_SECONDS)
    launches = [one.at for one in account.calls if one.method == "launch"]
    problems = judge(simulation.story()).problems(float("inf"))
    return [
        at_least(MACHINES, AREA, "machines at the same time, at a provider with limits", most, ""),
        at_least(traits.launch_gap_seconds, AREA, "shortest time between two launches", _gap(launches), "s"),
        at_most(1, AREA, "calls in one second, most", _densest([one.at for one in account.calls]), ""),
        at_most(0, AREA, "problems: machines or resources left, jobs without a result", len(problems), ""),
    ]


def _gap(times: list[float]) -> float:
    return min((after - before for before, after in pairwise(times)), default=0.0)


def _densest(times: list[float]) -> int:
    return max(Counter(int(at) for at in times).values(), default=0)


def main() -> None:
    save("rental-scale", [*in_real_time(), *in_simulated_time()], how=HOW)


if __name__ == "__main__":
    if sys.argv[1:2] == ["node"]:
        serve_node(Path(sys.argv[2]))
    else:
        main()
