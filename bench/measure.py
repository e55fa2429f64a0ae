"""How everything here is timed: medians of several runs, results as rows of one table."""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OUT = Path("out/bench")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of docs/benchmarks.md: what, the value with its unit, and the target it is held against."""

    area: str
    what: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    note: str = ""


def timed(act: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def median(act: Callable[[], object], *, runs: int = 5, warm: int = 1) -> float:
    """Median wall seconds of `runs` calls after `warm` that do not count."""
    for _ in range(warm):
        act()
    return statistics.median(timed(act) for _ in range(runs))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def save(name: str, results: Sequence[Result]) -> None:
    """Keep results for the table, and print them."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps([asdict(result) for result in results], indent=1))
    for result in results:
        mark = {True: "ok", False: "MISSED", None: ""}[result.met]
        print(
            f"{result.what:58} {result.value:10.3f} {result.unit:8} {result.target:22} {mark} {result.note}"
        )
