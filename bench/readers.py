"""A large run with many readers: what its status costs them, the control node, and the run itself.

`python -m bench readers` measures; `python -m bench.readers node FOLDER KEPT` is the control node that is
measured: a real one with its store, its service and its HTTP server, over a simulated site whose jobs sleep.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench.contestants import short_folder
from bench.latency import command
from bench.measure import REPOSITORY, Result, Series, at_least, at_most, percentile, row, save
from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.site import Node
from gridmill.sdk.grid_http import HttpGrid, over_tcp
from gridmill.testing.clock import FakeClock

AREA = "Many readers"
JOBS = int(os.environ.get("GRIDMILL_BENCH_JOBS", "5000"))
CLIENTS = int(os.environ.get("GRIDMILL_BENCH_CLIENTS", "200"))
LARGE_JOBS, LARGE_CLIENTS, KEPT_RUNS = 20_000, 500, 10_000
PLACES, JOB_SECONDS, STEP_SECONDS = 64, 0.5, 0.005
LIMIT_SECONDS = 600.0
HOW = f"""
A control node with a SQLite store, in a process of its own, over a simulated site: {JOBS:,} jobs that sleep
for {JOB_SECONDS:g} s, {PLACES} at a time. {CLIENTS} clients, each with one kept HTTP connection and one
request a second, share one core: half of them read the run's status, a quarter follows its events, a quarter
reads the last lines of one job's log. Without clients: the same run beside nobody. Memory is the
proportional set size (PSS). The large case is a run of {LARGE_JOBS:,} jobs beside {KEPT_RUNS:,} runs that are
kept, with {LARGE_CLIENTS} clients.
"""


class RealClock(FakeClock):
    """The machine's clock, for a simulated world."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def serve_node(folder: Path, kept: int = 0) -> None:
    """The control node: prints its address, serves until its input ends."""
    from gridmill.api.app import make_app
    from gridmill.control.usecases.service import Identity, Service
    from gridmill.http.server import serve
    from gridmill.process_memory import share_memory_areas
    from gridmill.report.render import render
    from gridmill.stores.sql import make
    from gridmill.testing.simulated_site import Behaviour
    from gridmill.testing.simulation import Simulation

    share_memory_areas()  # as `gridmill up` does
    node = Node(name="sim", capacity=Amounts(cpus=PLACES, memory_bytes=PLACES * 32 * MIB))
    store = make(folder / "store.db")
    keep_runs(store, kept)
    made = Simulation(
        store=store,
        behave=lambda order: Behaviour(seconds=JOB_SECONDS),
        nodes=(node,),
        clock=RealClock(),
    )
    made.declare_site()
    identity = Identity(version="0", home=str(folder), address="", embedded=False)
    service = Service(made.node, identity, render=render, end=lambda: None)
    made.node.start()
    threading.Thread(target=_step, args=(made,), daemon=True).start()
    server = serve(make_app(service))
    print(server.address, flush=True)
    sys.stdin.read()


def keep_runs(store, count: int) -> None:  # type: ignore[no-untyped-def]  # imported where it is made
    """Finished runs of one job, as they are kept for weeks."""
    from gridmill.domain.run import JobRun, Run
    from gridmill.domain.states import JobState, RunState
    from gridmill.ports.store import Put

    for start in range(0, count, 500):
        puts = []
        for number in range(start, min(start + 500, count)):
            run = Run(
                id=f"kept-{number + 1}",
                pipeline="kept",
                order=number + 1,
                state=RunState.SUCCEEDED,
                created=1.0,
                started=1.0,
                ended=2.0,
            )
            job = JobRun(
                id=f"{run.id}/job",
                run_id=run.id,
                pipeline="kept",
                job=command("job", "true"),
                order=0,
                state=JobState.SUCCEEDED,
                resource="default-command",
            )
            puts += [Put(noun=run, expected=0), Put(noun=job, expected=0)]
        store.commit(puts)


def _step(made) -> None:  # type: ignore[no-untyped-def]  # as above
    while True:
        with made.node.lock:
            made.world.step()
            mail = made.world.has_mail()
            if len(made.world.executions) > 4 * PLACES:  # what has ended is no memory of the control node
                made.world.executions[:] = [one for one in made.world.executions if one.ended is None]
        if mail:
            made.node.wake()
        time.sleep(STEP_SECONDS)


@contextmanager
def node(kept: int = 0) -> Iterator[tuple[HttpGrid, str, int]]:
    """A control node: its grid, its address and its process id."""
    with short_folder() as folder:
        command_line = (sys.executable, "-m", "bench.readers", "node", str(folder), str(kept))
        process = subprocess.Popen(
            command_line, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            url = process.stdout.readline().strip()
            grid = over_tcp(url, None, process.pid)
            yield grid, url, process.pid
            grid.close()
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class Readers:
    """Clients that ask once a second, in an event loop of a thread that is pinned to one core."""

    def __init__(self, url: str, run_id: str, count: int, jobs: int) -> None:
        self.status: list[float] = []
        self.others: list[float] = []
        self.failed = 0
        self._place = urlsplit(url)
        self._run_id, self._count, self._jobs = run_id, count, jobs
        self._over = False
        self._thread = threading.Thread(target=self._all, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over = True
        self._thread.join()

    def _all(self) -> None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # this thread only
        asyncio.run(self._together())

    async def _together(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self._count)))

    async def _client(self, number: int) -> None:
        await asyncio.sleep(number / self._count)
        reader, writer = await asyncio.open_connection(self._place.hostname, self._place.port)
        after = ""
        while not self._over:
            begun = time.perf_counter()
            path = f"/v1/runs/{self._run_id}"
            if number % 4 == 1:
                path += f"/events?limit=1000&after={after}"
            elif number % 4 == 3:
                path += f"/logs?tail=100&job=j{number % self._jobs}"
            body = await _get(reader, writer, path)
            took = time.perf_counter() - begun
            (self.others if number % 2 else self.status).append(took)
            if body is None:
                self.failed += 1
            elif number % 4 == 1 and body != b"[]":
                after = _last_id(body)
            await asyncio.sleep(max(0.0, 1.0 - took))
        writer.close()


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bytes | None:
    """The body of the answer; None for an error."""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    body = await reader.readexactly(length)
    return body if b" 200 " in head.partition(b"\r\n")[0] else None


def _last_id(body: bytes) -> str:
    """The id of the last event, without decoding the others."""
    start = body.rfind(b'{"id":"')
    if start < 0:
        return str(json.loads(body)[-1]["id"])
    return body[start + 7 : body.index(b'"', start + 7)].decode()


def measured(jobs: int, clients: int, kept: int = 0) -> tuple[float, int, Readers | None]:
    """Jobs a second, the highest PSS in bytes, and the clients, of one run."""
    with node(kept) as (grid, url, pid):
        pipeline = Pipeline(name="many", jobs=tuple(command(f"j{number}", "true") for number in range(jobs)))
        run_id = grid.start_run(pipeline).run.id
        readers = Readers(url, run_id, clients, jobs) if clients else None
        begun, most = time.monotonic(), 0
        if readers:
            readers.start()
        _until(lambda: grid.control().active_runs == 0, lambda: pss_bytes(pid), peaks := [0])
        rate, most = jobs / (time.monotonic() - begun), max(peaks)
        if readers:
            readers.stop()
        return rate, most, readers


def _until(over: Callable[[], bool], look: Callable[[], int], peaks: list[int]) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not over():
        peaks.append(look())
        if time.monotonic() > until:
            raise TimeoutError("the run does not end")
        time.sleep(0.25)


def results(
    alone: Series, beside: Series, status: list[float], most: int, large: int | None = None
) -> list[Result]:
    """Rows of the page."""
    what = f"status of a run of {JOBS:,} jobs, {CLIENTS} clients"
    milliseconds = [1000 * seconds for seconds in status]
    rows = [
        at_most(20, AREA, f"{what}, p50", percentile(milliseconds, 0.5), "ms", runs=len(status)),
        at_most(150, AREA, f"{what}, p99", percentile(milliseconds, 0.99), "ms", runs=len(status)),
        at_most(250, AREA, "memory of the control node meanwhile (PSS)", most / 2**20, "MiB"),
        row(AREA, "the same jobs without clients", alone.median, "jobs/s", **alone.spread),
        at_least(0.9, AREA, "with these clients", beside.median / alone.median, "x without"),
    ]
    if large is not None:
        what = f"memory, {LARGE_JOBS:,} jobs, {LARGE_CLIENTS} clients, {KEPT_RUNS:,} kept runs (PSS)"
        rows.append(at_most(250, AREA, what, large / 2**20, "MiB"))
    return rows


def main() -> None:
    alone, beside, status, most = Series(), Series(), list[float](), 0
    for _ in range(int(os.environ.get("GRIDMILL_BENCH_ROUNDS", "3"))):
        alone.values.append(measured(JOBS, 0)[0])
        rate, peak, readers = measured(JOBS, CLIENTS)
        assert readers is not None
        if readers.failed:
            raise RuntimeError(f"{readers.failed} requests failed")
        beside.values.append(rate)
        status += readers.status
        most = max(most, peak)
        print(f"  {alone.values[-1]:.1f} {rate:.1f} jobs/s, {peak / 2**20:.0f} MiB", flush=True)
    large = measured(LARGE_JOBS, LARGE_CLIENTS, KEPT_RUNS)[1]
    save("readers", results(alone, beside, status, most, large), how=HOW)


if __name__ == "__main__":
    if sys.argv[1:2] == ["node"]:
        serve_node(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
