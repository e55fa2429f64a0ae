"""A sink of 10,000 small CSV files: loaded, one of them replaced, one added; beside a loop written by hand.

`python -m bench small-files`; GRIDMILL_BENCH_FILES (default 10000) is how many files there are, and
GRIDMILL_BENCH_ROUNDS (default 5) how often it is measured.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from bench import measure
from bench.measure import ROUNDS, Result, Series, alternate, at_most, row

AREA = "Sinks"
FILES = int(os.environ.get("GRIDMILL_BENCH_FILES", "10000"))
LOADS = ("first load", "replace one", "append one")
FIRST_MS, LATER_SECONDS, LATER_MIB = 1.5, 3.0, 150.0
_TOLD = "::"
HOW = f"""
{FILES:,} CSV files of two rows and three columns each. Ours: the sink's job. By hand: a loop that reads every
file by pyarrow and writes all to a Delta table in one go, in place of what was there, as it does not note
what is loaded. The loads follow each other, each in a process of its own that has imported its libraries;
memory is what it holds at most above what it held then. Both take turns, after a round that does not count.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of a load, and the bytes held at most above those before."""

    seconds: float
    above_bytes: int


def ours(folder: Path) -> Callable[[], object]:
    """The sink's job, ready to be run."""
    from gridmill.jobs.arrow import keep_pandas_out

    keep_pandas_out()  # as every attempt begins
    from gridmill.domain.amounts import GIB, Amounts
    from gridmill.domain.job import Job
    from gridmill.domain.pod_protocol import AttemptOrder
    from gridmill.domain.sink import SinkSpec
    from gridmill.domain.source import Source
    from gridmill.jobs.context import JobContext
    from gridmill.jobs.sink.run import run

    order = AttemptOrder(
        attempt_id=f"p-1.s.{time.time_ns()}",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=Job(name="s", sink=SinkSpec(source=Source(path="files/*.csv"))),
        given=Amounts(cpus=float(len(os.sched_getaffinity(0))), memory_bytes=4 * GIB),
        root=str(folder / "root"),
        output_uri=f"sinks/p/s/{time.time_ns()}",
        table_uri="sinks/p/s/table",
        folder=str(folder),
    )
    context = JobContext(order=order, work=Path(tempfile.mkdtemp(dir=folder)))
    return lambda: run(context)


def by_hand(folder: Path) -> Callable[[], object]:
    """The loop, ready to be run."""
    import pyarrow as pa
    import pyarrow.csv as csv
    from deltalake import write_deltalake

    def act() -> None:
        files = sorted((folder / "files").glob("*.csv"))
        table = pa.concat_tables([csv.read_csv(path) for path in files])
        write_deltalake(folder / "hand", table, mode="overwrite")

    return act


CONTESTANTS: Mapping[str, Callable[[Path], Callable[[], object]]] = {"ours": ours, "by hand": by_hand}


def _measured(act: Callable[[], object]) -> Spent:
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = _status("VmRSS"), time.perf_counter()
    act()
    return Spent(seconds=time.perf_counter() - began, above_bytes=_status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def _write(folder: Path, number: int, value: int) -> None:
    rows = "".join(f"{number},2024-01-01T00:00:{n:02},{value + n}.25\n" for n in range(2))
    (folder / "files" / f"{number:06}.csv").write_text(f"shop,at,price\n{rows}")


def _spent(contestant: str, folder: Path) -> Spent:
    """What a load needed, in a process of its own."""
    command = (sys.executable, "-m", "bench.small_files", contestant, str(folder))
    done = subprocess.run(command, cwd=measure.REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{contestant}: {done.stderr[-2000:]}")
    return Spent(**json.loads(done.stdout.rpartition(_TOLD)[2]))


def main() -> None:
    took: dict[tuple[str, str], list[Spent]] = {}
    rounds = int(os.environ.get("GRIDMILL_BENCH_ROUNDS", str(ROUNDS)))
    with tempfile.TemporaryDirectory(prefix="bench-small-") as name:
        folder = Path(name)
        (folder / "files").mkdir()

        def act(contestant: str) -> float:
            for one in ("root", "hand", "files"):
                rmtree(folder / one, ignore_errors=True)
            (folder / "files").mkdir()
            for number in range(FILES):
                _write(folder, number, number)
            changed = (None, (FILES // 2, 7), (FILES, 1))
            seconds = 0.0
            for load, written in zip(LOADS, changed, strict=True):
                if written is not None:
                    _write(folder, *written)
                found = _spent(contestant, folder)
                took.setdefault((contestant, load), []).append(found)
                seconds += found.seconds
            return seconds

        alternate({one: partial(act, one) for one in CONTESTANTS}, rounds=rounds)
    kept = {key: found[1:] for key, found in took.items()}  # the first round does not count
    measure.save("small-files", _results(kept), how=HOW)


def _results(took: Mapping[tuple[str, str], Sequence[Spent]]) -> list[Result]:
    results = []
    for load in LOADS:
        first = load == LOADS[0]
        for contestant in CONTESTANTS:
            found = took[contestant, load]
            seconds = Series([one.seconds for one in found])
            each = Series([one.seconds * 1000 / FILES for one in found])
            mib = Series([one.above_bytes / 2**20 for one in found])
            what = f"{load} of {FILES:,} small files: {contestant}"
            target: Any = contestant == "ours"
            if first:
                results.append(_held(target and FIRST_MS, what, each, "ms/file"))
            results.append(_held(target and not first and LATER_SECONDS, what, seconds, "s"))
            results.append(
                _held(target and not first and LATER_MIB, f"{what}, above the process", mib, "MiB")
            )
    return results


def _held(limit: float | bool, what: str, series: Series, unit: str) -> Result:
    if limit:
        return at_most(float(limit), AREA, what, series.median, unit, **series.spread)
    return row(AREA, what, series.median, unit, **series.spread)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ready = CONTESTANTS[sys.argv[1]](Path(sys.argv[2]))
        print(_TOLD + json.dumps(asdict(_measured(ready))))
    else:
        main()
