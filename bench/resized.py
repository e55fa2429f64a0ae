"""Are sizes right after settings change? Jobs run twice, are declared anew, and run twice more."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from bench.contestants import short_folder
from bench.growth import all_of
from bench.measure import Result, at_least, at_most, row, save
from bench.sizing import WITHIN, Sized, run_forced
from bench.workloads import NUMBERS, write
from gridmill.domain.amounts import MIB
from gridmill.domain.footprint import footprint_of
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import Cause
from gridmill.stores.sql import make

COMMANDS = ("small", "large", "grows")
SHARE = 0.2
"""Of the 1.5 million rows of a file of bench/workloads.py."""
SECOND = 2.5
"""The largest size of a second run over its peak, in the median."""
AREA = "Sizing: changed settings"
HOW = """
A table of 300,000 rows, two datasets, five trainings, a prediction and three commands run twice with
`--force`. Then most of them are declared anew, so that they need more memory (an `lstm` from `hidden: 16` to
256, an `mlp` from 32 to 1,024, a dataset with windows, a command from `echo` to 1 GB), and run twice more, in
the same home. An attempt is within its size when its peak memory is at most what it was given; an attempt
that was killed for memory is not. Sizes over peaks are those of the attempts that succeeded. The least that a
job of its kind is given counts as a peak where the peak is lower. No size of a command that now takes three
times as much, or 1 GB instead of nothing, can be right at first: its second attempt, in the same run, is.
"""


def _jobs(folder: Path, *, changed: bool) -> Mapping[str, Any]:
    windows = [{"column": "x0", "span": "7d", "aggregates": ["mean", "min", "max", "std"]}]
    base = {"basis": {"table": NUMBERS, "time": "at", "entity": ["entity"]}}
    label = {
        "label": {"column": "x0", "steps": 1, "name": "ahead"},
        "split": {"validation": 0.15, "test": 0.15},
    }
    return {
        NUMBERS: {"sink": {"source": {"path": write(folder, NUMBERS, "parquet", SHARE)}}},
        "flat": {"dataset": {**base, **label}},
        "windows": {"dataset": {**base, **label, **({"windows": windows} if changed else {})}},
        "lstm": _learn("lstm", hidden=256 if changed else 16, sequence=6, **_QUICK),
        "mlp": _learn("mlp", hidden=1024 if changed else 32, **_QUICK),
        "gbdt": _learn("gbdt", trees=20 if changed else 5),
        "linear": _learn("linear", regularization=2.0 if changed else 1.0),
        "naive": _learn("naive"),
        "guess": {
            "prediction": {
                "dataset": "flat",
                "models": ["linear"],
                "split": None,
                "workers": 2 if changed else 1,
            }
        },
        "small": _take(30 if changed else 20),
        "large": _take(900 if changed else 300),
        "grows": _take(1000) if changed else {"command": "echo hello"},
    }


_QUICK = {"epochs": 1, "batch_size": 1024}


def _learn(model: str, **settings: Any) -> Mapping[str, Any]:
    return {"training": {"dataset": "flat", "model": model, **settings}}


def _take(megabytes: int) -> Mapping[str, Any]:
    return {"command": ["python", "-c", f"b = bytearray({megabytes}_000_000)"]}


def main() -> None:
    with short_folder() as text:
        folder = Path(text)
        file = folder / "pipeline.yaml"
        for number in range(4):
            jobs = _jobs(folder, changed=number > 1)
            file.write_text(yaml.safe_dump({"pipeline": "resized", "jobs": jobs}, sort_keys=False))
            run_forced(file, folder)
        rounds = list(_rounds(folder))
    for number, attempts in enumerate(rounds, 1):
        for one in attempts:
            flag = "" if one.within else "  <--"
            print(
                f"{number} {one.job:10} given {one.given / MIB:6.0f}  peak {one.peak / MIB:6.0f}  MiB{flag}"
            )
    save("sizing-settings", results(rounds), how=HOW)


def _rounds(home: Path) -> Iterator[list[Sized]]:
    """The attempts of each run, in the order of the runs."""
    (database,) = home.glob("**/store.db")
    with closing(make(database)) as store:
        jobs = {job_run.id: job_run.job for job_run in all_of(store, JobRun)}
        attempts = [one for one in all_of(store, Attempt) if one.use is not None]
        for run in sorted(all_of(store, Run), key=lambda run: run.created):
            yield [_sized(one, jobs[one.job_run_id]) for one in attempts if one.run_id == run.id]


def _sized(attempt: Attempt, job: Any) -> Sized:
    return Sized(
        job=job.name,
        number=0,
        given=attempt.given.memory_bytes,
        peak=attempt.use.peak_memory_bytes if attempt.use is not None else 0,
        floor=footprint_of(job).floor_bytes,
        killed=attempt.cause is Cause.MEMORY,
    )


def results(rounds: list[list[Sized]]) -> list[Result]:
    """Attempts within their sizes, and sizes over peaks, of each run."""
    everything = [one for attempts in rounds for one in attempts]
    share = sum(one.within for one in everything) / len(everything)
    names = ("first run", "second run", "first run after the change", "second run after the change")
    known = [one for one in everything if one.job not in COMMANDS]
    lines = [
        at_least(WITHIN, AREA, "attempts within their size", share, "", runs=len(everything)),
        row(
            AREA,
            "the same without commands",
            sum(one.within for one in known) / len(known),
            "",
            runs=len(known),
        ),
    ]
    for name, attempts in zip(names, rounds, strict=True):
        ratios = [one.given / max(one.peak, one.floor) for one in attempts if not one.killed]
        what, low, high = f"{name}: size over peak, median", min(ratios), max(ratios)
        more = {"low": low, "high": high, "runs": len(ratios)}
        second = name.startswith("second")
        lines.append(
            at_most(SECOND, AREA, what, median(ratios), "x", **more)
            if second
            else row(AREA, what, median(ratios), "x", **more)
        )
        plain = median(one.given / max(one.peak, 1) for one in attempts if not one.killed)
        lines.append(row(AREA, f"{name}: the same without the least sizes", plain, "x"))
    return lines


if __name__ == "__main__":
    main()
