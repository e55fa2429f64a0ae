"""Jobs at a farm: what one costs beside the same command by hand, and how late its lines are at home."""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from bench.contestants import GRIDMILL, environment, short_folder
from bench.grids import clear, up
from bench.line import FAR, line, why_no_line
from bench.measure import Result, Series, at_most, percentile, row, save
from gridmill.domain.amounts import MIB
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.states import FINISHED_RUNS, RunState
from gridmill.ports.grid import Grid

AREA = "Jobs at a farm"
JOBS, LINES = 20, 100
SLEEP_SECONDS = 0.5
ROUND_TRIP_SECONDS, LOSS = 0.1, 0.01
LIMIT_SECONDS = 120.0
HOW = f"""
A farm (`gridmill up --light`) and a home (`gridmill up`) on this machine, joined over mutual TLS: on
loopback, through a relay that delays every byte so that a round trip takes
{1000 * ROUND_TRIP_SECONDS:.0f} ms, and over a line to a network of the farm's own that delays packets as much
and loses {LOSS:.0%} of them each way. A command that sleeps {SLEEP_SECONDS} s on a pod there that
is up, {JOBS} times, from submitting it until home says that its run has succeeded, less the same command by
hand. Lines: a job there prints the time {LINES} times; how late a reader of the run's events at home sees
each.
"""


def main() -> None:
    with short_folder() as made:
        folder = Path(made)
        env = environment(folder)
        at_home = {**env, "GRIDMILL_HOME": str(folder / "home")}
        with controller(folder / "farm", env) as (port, words), up(folder / "home", env) as node:
            join(node.grid, at_home, f"127.0.0.1:{port}", words)
            results = measured(node.grid, "loopback")
            with delayed(port, ROUND_TRIP_SECONDS / 2) as far_port:
                move = (str(GRIDMILL), "configure", "site", "far", "--address", f"127.0.0.1:{far_port}")
                subprocess.run(move, env=at_home, check=True, capture_output=True)
                way = f"round trip of {1000 * ROUND_TRIP_SECONDS:.0f} ms"
                results += measured(node.grid, way, ROUND_TRIP_SECONDS)
                clear(node.grid)
        results += over_a_bad_line(folder, env)
    save("farm", results, how=HOW)


def over_a_bad_line(folder: Path, env: Mapping[str, str]) -> list[Result]:
    """The lines of the page where packets are late and some lost; none where that cannot be made."""
    if why := why_no_line():
        print(f"not measured: {why}")
        return []
    at_home = {**env, "GRIDMILL_HOME": str(folder / "home-2")}
    with (
        line(ROUND_TRIP_SECONDS, LOSS) as bad,
        controller(folder / "farm-2", env, FAR, bad.inside) as (port, words),
        up(folder / "home-2", env) as node,
    ):
        join(node.grid, at_home, f"{FAR}:{port}", words)
        way = f"round trip of {1000 * ROUND_TRIP_SECONDS:.0f} ms and {LOSS:.0%} lost"
        results = measured(node.grid, way, ROUND_TRIP_SECONDS)
        clear(node.grid)
    return results


def join(grid: Grid, at_home: Mapping[str, str], address: str, line: str) -> None:
    """Become a tenant of the farm, with a resource there."""
    add(address, line, at_home)
    wanted = Resource(name="far", type=JobKind.COMMAND, site="far", cpus=1, memory_bytes=128 * MIB)
    grid.configure_resource(wanted)


def add(address: str, line: str, at_home: Mapping[str, str]) -> None:
    """Become a tenant of the farm, called `far` at home."""
    words = (str(GRIDMILL), "add", "cluster", "far", "--controller", address, "--join", line)
    subprocess.run(words, env=at_home, check=True, capture_output=True)


def measured(grid: Grid, way: str, round_trip: float = 0.0) -> list[Result]:
    """The lines of the page for that way."""
    run(grid, "true")  # the pod comes up
    there = Series([run(grid, f"sleep {SLEEP_SECONDS}") for _ in range(JOBS)])
    by_hand = statistics.median(hand() for _ in range(JOBS))
    over = Series([1000 * (one - by_hand) for one in there.values])
    late = [1000 * one for one in lateness(grid)]
    limit = 2000 if round_trip else 300
    return [
        at_most(limit, AREA, f"{way}: a job over the same by hand", over.median, "ms", **over.spread),
        at_most(
            200 + 1000 * round_trip,
            AREA,
            f"{way}: a line at home, p50",
            percentile(late, 0.5),
            "ms",
            runs=LINES,
        ),
        row(AREA, f"{way}: a line at home, p99", percentile(late, 0.99), "ms", runs=LINES),
    ]


def hand() -> float:
    """Seconds of the command by hand."""
    begin = time.perf_counter()
    subprocess.run(("sh", "-c", f"sleep {SLEEP_SECONDS}"), check=True)
    return time.perf_counter() - begin


def pipeline(text: str) -> Pipeline:
    """Of one command there."""
    job = Job(
        name="job",
        resource="far",
        cache=False,
        command=CommandSpec(run=text),
        memory_bytes=32 * MIB,
        cpus=1.0,
    )
    return Pipeline(name="far", jobs=(job,))


def run(grid: Grid, text: str) -> float:
    """Seconds until home says that it has succeeded."""
    begin = time.perf_counter()
    for _ in events(grid, grid.start_run(pipeline(text)).run.id):
        pass
    return time.perf_counter() - begin


def lateness(grid: Grid) -> list[float]:
    """Seconds from a line's being printed to its being read."""
    text = (
        f'{quote(sys.executable)} -c "import time\nfor _ in range({LINES}):\n'
        ' print(time.time(), flush=True); time.sleep(0.05)"'
    )
    return [seen - float(line) for seen, line in events(grid, grid.start_run(pipeline(text)).run.id)]


def events(grid: Grid, run_id: str) -> Iterator[tuple[float, str]]:
    """The run's lines, with the time at which each was seen, until it has succeeded."""
    after, deadline = "", time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        state = grid.run(run_id).run.state
        over = state in FINISHED_RUNS
        for entry in grid.logs(run_id, after=after, wait_seconds=0 if over else 0.5):
            after, now = entry.id, time.time()
            yield from ((now, line) for line in entry.text.splitlines())
        if over and state != RunState.SUCCEEDED:
            raise RuntimeError(f"{run_id} {state}: {grid.run(run_id)}")
        if over:
            return
    raise TimeoutError(f"{run_id} does not end")


@contextmanager
def controller(
    home: Path, env: Mapping[str, str], address: str = "127.0.0.1", inside: Sequence[str] = ()
) -> Iterator[tuple[int, str]]:
    """`gridmill up --light` on a port, and its join line; `inside` what runs it where that address is."""
    port = _free_port()
    mine = {**env, "GRIDMILL_HOME": str(home)}
    words = (*inside, str(GRIDMILL), "up", "--light", "--listen", f"{address}:{port}", "--json")
    process = subprocess.Popen(words, env=mine, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        told: dict[str, str] = json.loads(process.stdout.readline())
        yield port, told["join"].split("--join ")[-1]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """A port that leads to that one, each byte so much later, both ways."""
    loop = asyncio.new_event_loop()
    ready: list[int] = []
    begun = threading.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            loop.call_later(seconds, writer.write, data)
        loop.call_later(seconds, writer.close)

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_reader, on_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, on_writer), pump(on_reader, writer), return_exceptions=True)

    async def serve() -> None:
        server = await asyncio.start_server(taken, "127.0.0.1", 0)
        ready.append(server.sockets[0].getsockname()[1])
        begun.set()

    def turn() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


if __name__ == "__main__":
    main()
