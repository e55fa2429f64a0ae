"""How everything here is timed: alternating rounds, medians, results as rows of one table."""

import json
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

REPOSITORY = Path(__file__).resolve().parent.parent
OUT = REPOSITORY / "bench" / "results"
"""Kept with the code: who measures one part anew makes the page with what was measured of the others."""
ROUNDS = 5
BEGAN = time.monotonic()
"""When this process began to measure."""
LONGEST_SECONDS = 20 * 60
"""A part that takes longer is ended, and counts as not measured."""
LONG_SECONDS, LONG_ROUNDS = 60.0, 3
"""What takes longer than this is measured three times instead of five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of docs/benchmarks.md: what, the value with its unit, and the target it is held against.

    `low`, `high` and `runs` describe the measurements that `value` is the median (or percentile) of.
    """

    area: str
    what: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    note: str = ""
    low: float | None = None
    high: float | None = None
    runs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it was measured; `load` is the load average at the end, one more than the bench itself needs
    tells of a busy machine."""

    cores: int
    memory_gib: float
    processor: str
    system: str
    python: str
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What one benchmark found, and where and when, in how many seconds; `how` says how, as a paragraph for
    the page."""

    name: str
    results: tuple[Result, ...]
    machine: Machine
    date: str
    commit: str = ""
    how: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Series:
    """Measurements of one thing, in seconds or whatever `act` returned."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> dict[str, float | int]:
        """Fields of a Result."""
        return {"low": min(self.values), "high": max(self.values), "runs": len(self.values)}


def timed(act: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def cpu_seconds(whose: int) -> float:
    """Of this process (resource.RUSAGE_SELF) or of its children that have ended (RUSAGE_CHILDREN)."""
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def median(act: Callable[[], object], *, runs: int = ROUNDS, warm: int = 1) -> float:
    """Median wall seconds of `runs` calls after `warm` that do not count."""
    for _ in range(warm):
        act()
    return statistics.median(timed(act) for _ in range(runs))


Key = TypeVar("Key", bound=Hashable)


def alternate(
    acts: Mapping[Key, Callable[[], float]], *, rounds: int = ROUNDS, warm: bool = True
) -> dict[Key, Series]:
    """Every act once per round, in turn, so that whatever else the machine does falls on all alike.

    An act returns its own measurement. The first round warms caches and does not count (unless not `warm`);
    what took longer than LONG_SECONDS in it stays in for LONG_ROUNDS only.
    """
    first = {key: act() if warm else 0.0 for key, act in acts.items()}
    series = {key: Series() for key in acts}
    for number in range(rounds):
        for key, act in acts.items():
            if number < (LONG_ROUNDS if first[key] > LONG_SECONDS else rounds):
                series[key].values.append(act())
                print(f"  {number + 1}/{rounds} {key}: {series[key].values[-1]:.3f}", flush=True)
    return series


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def row(area: str, what: str, value: float, unit: str, **more: object) -> Result:
    """A Result without a target."""
    return Result(area=area, what=what, value=value, unit=unit, **more)  # type: ignore[arg-type]


def at_most(limit: float, area: str, what: str, value: float, unit: str, **more: object) -> Result:
    """A Result that is to stay within `limit`."""
    return row(area, what, value, unit, target=f"≤ {limit:g} {unit}".strip(), met=value <= limit, **more)


def at_least(limit: float, area: str, what: str, value: float, unit: str, **more: object) -> Result:
    """A Result that is to reach `limit`."""
    return row(area, what, value, unit, target=f"≥ {limit:g} {unit}".strip(), met=value >= limit, **more)


def save(name: str, results: Sequence[Result], *, how: str = "") -> None:
    """Keep results for the page, and print them."""
    saved = Saved(
        name=name,
        results=tuple(results),
        machine=this_machine(),
        date=time.strftime("%Y-%m-%d"),
        commit=_commit(),
        how=" ".join(how.split()),
        seconds=time.monotonic() - BEGAN,
    )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(asdict(saved), indent=1))
    for result in results:
        mark = {True: "met", False: "MISSED", None: ""}[result.met]
        print(f"{result.what:68} {result.value:10.3f} {result.unit:8} {result.target:16} {mark}", flush=True)


def load(name: str, folder: Path = OUT) -> Saved | None:
    """What `save` kept under that name; None where nothing was measured."""
    try:
        body = json.loads((folder / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    results = tuple(Result(**result) for result in body.pop("results"))
    return Saved(results=results, machine=Machine(**body.pop("machine")), **body)


def this_machine() -> Machine:
    """The machine as this process may use it."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        processor=_processor(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load=round(os.getloadavg()[0], 1),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    done = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
