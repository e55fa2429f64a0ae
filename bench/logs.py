"""The log of a job that prints 1 GB: time beside its output in a file, size, tail and search."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bench.contestants import GRIDMILL, environment, short_folder
from bench.grids import Up, up
from bench.latency import command, finish
from bench.measure import Result, Series, alternate, at_least, at_most, row, save, timed
from gridmill.domain.command import CommandSpec
from gridmill.domain.pipeline import Pipeline

AREA = "Logs"
JOB, SEARCH = "job that prints 1 GB", "`gridmill logs RUN --search`"
LINES, ROUNDS, READS = 10_000_000, 3, 11
_TEXT = "loss=0.12345678 the quick brown fox jumps over the lazy dog and runs off far into woods ok"
PROGRAM = f"for number in range({LINES}): print(f'{{number:08}} {_TEXT}')"
MEGABYTE = 1e6
HOW = f"""
A Python program prints {LINES:,} lines of 100 bytes (1 GB), in turn as a command job of `gridmill up` with
`GRIDMILL_LOG_JOB=20GiB`, from submitting it until the client sees the run succeeded, and alone with its
output sent to a file on the same disk. Gridmill sets `PYTHONUNBUFFERED` for commands, so that each line is
written at once; a job may switch it off. Stored: the files of its log. Tail and search are whole commands, in
processes of their own; what is searched for is on one line near the end. `zgrep` searches the same text,
compressed by `gzip -1`.
"""
NEEDLE = f"{LINES - 1000:08} "


def main() -> None:
    with short_folder() as folder:
        env = environment(Path(folder)) | {"GRIDMILL_LOG_JOB": "20GiB"}
        home = Path(folder) / "home"
        with up(home, env) as node:
            results = _results(node, Path(folder), home, env | {"GRIDMILL_HOME": str(home)})
    one, _, fifteen = os.getloadavg()
    load = f"Load average of the machine at the end, which this benchmark is part of: {one:.1f}"
    save("logs", results, how=f"{HOW} {load} over a minute, {fifteen:.1f} over 15.")


def _results(node: Up, folder: Path, home: Path, env: dict[str, str]) -> list[Result]:
    text = folder / "out.txt"
    measured = alternate(
        {
            "buffered": lambda: _job(node, {"PYTHONUNBUFFERED": ""}),
            "job": lambda: _job(node, {}),
            "file": lambda: _to_file(text, env),
        },
        rounds=ROUNDS,
        warm=False,
    )
    size, run_id = text.stat().st_size, node.grid.runs(limit=1).items[0].id
    stored = sum(path.stat().st_size for path in (home / "logs").glob(f"{run_id}.*"))
    subprocess.run(("gzip", "-1", text), check=True)
    reading = alternate(
        {
            "tail": lambda: _read(env, GRIDMILL, "logs", run_id, "--tail", "100"),
            "search": lambda: _read(env, GRIDMILL, "logs", run_id, "--search", NEEDLE),
            "zgrep": lambda: _read(env, "zgrep", NEEDLE, f"{text}.gz"),
        },
        rounds=READS,
    )
    ratio, buffered = (
        Series([a / b for a, b in zip(measured[name].values, measured["file"].values, strict=True)])
        for name in ("job", "buffered")
    )
    speed = Series([b / a for a, b in zip(reading["search"].values, reading["zgrep"].values, strict=True)])
    tail = Series([1000 * seconds for seconds in reading["tail"].values])
    found = Series([size / MEGABYTE / seconds for seconds in reading["search"].values])
    return [
        at_most(1.3, AREA, f"{JOB}, beside its output in a file", ratio.median, "x", **ratio.spread),
        row(AREA, f"{JOB} with `PYTHONUNBUFFERED` off, the same", buffered.median, "x", **buffered.spread),
        row(AREA, JOB, measured["job"].median, "s", **measured["job"].spread),
        at_most(0.25, AREA, "size of that log", stored / 1e9, "GB", runs=1),
        at_most(100, AREA, "`gridmill logs RUN --tail 100` of it", tail.median, "ms", **tail.spread),
        at_least(0.5, AREA, f"{SEARCH}, beside `zgrep`", speed.median, "x", **speed.spread),
        row(AREA, "text searched", found.median, "MB/s", **found.spread),
    ]


def _job(node: Up, variables: dict[str, str]) -> float:
    spec = CommandSpec(run=(sys.executable, "-c", PROGRAM), env=variables)
    job = replace(command("talk", "true"), command=spec)

    def run() -> None:
        finish(node.grid, node.grid.start_run(Pipeline(name="loud", jobs=(job,))).run.id)

    return timed(run)


def _to_file(text: Path, env: dict[str, str]) -> float:
    with text.open("wb") as file:
        argv = (sys.executable, "-c", PROGRAM)
        return timed(lambda: subprocess.run(argv, env=env, stdout=file, check=True))


def _read(env: dict[str, str], *argv: str | Path) -> float:
    return timed(lambda: subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=True))


if __name__ == "__main__":
    main()
