"""A pipeline of 20 no-op steps in a row, against Metaflow, Prefect and Dagster (and Luigi beside them)."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.contestants import AGAIN, FRESH, RIVALS, UP, Contestant, everyone, short_folder
from bench.grids import up
from bench.measure import Result, Series, alternate, at_least, row, save

STEPS, FEW = 20, 2
TIMES = 10.0
AREA = "20 no-op steps, start to exit"
RATIO = "20 no-op steps, how many times faster"
STEP_AREA = "Each further no-op step, start-up taken off"
HOW = """
A chain of 20 steps that do nothing, each needing the one before: the same pipeline written for each tool as
its documentation has it (bench/chains.py), run by its documented local default, each in a virtual
environment of its own (bench/peers-NAME.txt pins the versions), telemetry and version checks off, no
network. Wall time from starting the command to its exit: the tool's own start-up, its temporary servers and
its end are included. All take turns, round after round; homes and databases of the peers are kept from
round to round, as are Gridmill's where it says so. A first round does not count. Without start-up: the same
with 2 steps, taken off, over 18. Where steps run differs: Gridmill, Metaflow and Dagster make a process for
each; Prefect, Luigi and Dagster in one process call a function.
"""


def main() -> None:
    with short_folder() as folder:
        work = Path(folder)
        contestants = everyone(work)
        server = next(one for one in contestants if one.name == UP)
        with up(server.folder / "home", server.env):
            measured = alternate(
                {(one.name, steps): _act(one, steps) for one in contestants for steps in (FEW, STEPS)}
            )
    whole = {one.name: measured[one.name, STEPS] for one in contestants}
    few = {one.name: measured[one.name, FEW] for one in contestants}
    save("peers", [*_walls(whole), *_ratios(whole), *_steps(whole, few)], how=HOW)


def _act(one: Contestant, steps: int) -> Callable[[], float]:
    command = one.write(one.folder, steps)

    def act() -> float:
        one.prepare()
        begin = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=one.folder,
            env=one.env,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        seconds = time.perf_counter() - begin
        if done.returncode:
            raise RuntimeError(
                f"{one.name}: {' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
        return seconds

    return act


def _walls(whole: dict[str, Series]) -> list[Result]:
    return [row(AREA, name, series.median, "s", **series.spread) for name, series in whole.items()]


def _ratios(whole: dict[str, Series]) -> list[Result]:
    best = min(RIVALS, key=lambda name: whole[name].median)
    what = "{}, against the best of " + ", ".join(RIVALS) + f" ({best})"
    held = [
        at_least(TIMES, RATIO, what.format(name), whole[best].median / whole[name].median, "x")
        for name in (FRESH, AGAIN, UP)
    ]
    others = [
        row(RATIO, f"{AGAIN}, against {name}", series.median / whole[AGAIN].median, "x")
        for name, series in whole.items()
        if name not in (FRESH, AGAIN, UP)
    ]
    return [*held, *others]


def _steps(whole: dict[str, Series], few: dict[str, Series]) -> list[Result]:
    each = {name: _further(whole[name], few[name]) for name in whole}
    rows = [row(STEP_AREA, name, series.median, "ms", **series.spread) for name, series in each.items()]
    best = min(RIVALS, key=lambda name: each[name].median)
    what = f"{AGAIN}, against the best of {', '.join(RIVALS)} ({best})"
    return [*rows, row(STEP_AREA, what, each[best].median / each[AGAIN].median, "x")]


def _further(whole: Series, few: Series) -> Series:
    """Milliseconds of a step beyond the first two; long and short chain are neighbours in every round."""
    pairs = zip(whole.values, few.values, strict=False)
    return Series([1000 * (long - short) / (STEPS - FEW) for long, short in pairs])


if __name__ == "__main__":
    main()
