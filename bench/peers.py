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
round to round, as are Gridmill's where it says so. A first round does not count. Without start-up: in each
round the time of a chain of 2 steps is taken off that of a long one (200 steps; 20 for Metaflow and
Dagster, whose steps are slow), and what is left is shared by the further steps. Where steps run differs:
Gridmill, Metaflow and Dagster make a process for each; Prefect, Luigi and Dagster in one process call a
function.
"""


def main() -> None:
    with short_folder() as folder:
        work = Path(folder)
        contestants = everyone(work)
        server = next(one for one in contestants if one.name == UP)
        with up(server.folder / "home", server.env):
            measured = alternate(
                {
                    (one.name, steps): _act(one, steps)
                    for one in contestants
                    for steps in sorted({FEW, STEPS, one.many})
                }
            )
    whole = {one.name: measured[one.name, STEPS] for one in contestants}
    steps = {one.name: _further(one, measured) for one in contestants}
    save("peers", [*_walls(whole), *_ratios(whole), *_steps(steps)], how=HOW)


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


def _steps(steps: dict[str, Series]) -> list[Result]:
    rows = [row(STEP_AREA, name, series.median, "ms", **series.spread) for name, series in steps.items()]
    ours = steps[AGAIN].median
    return rows + [
        row(STEP_AREA, f"{AGAIN}, against {name}", steps[name].median / ours, "x")
        for name in RIVALS
        if min(steps[name].median, ours) > 0  # else the start-up's own spread hides the steps
    ]


def _further(one: Contestant, measured: dict[tuple[str, int], Series]) -> Series:
    """Milliseconds of a step beyond the first two; long and short chain are neighbours in every round."""
    pairs = zip(measured[one.name, one.many].values, measured[one.name, FEW].values, strict=False)
    return Series([1000 * (long - short) / (one.many - FEW) for long, short in pairs])


if __name__ == "__main__":
    main()
