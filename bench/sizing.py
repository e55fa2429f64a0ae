"""Are sizes right? Examples and large workloads, run again and again: the memory given against that used.

`python -m bench.sizing PART`: one of PARTS; each runs alone.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.contestants import GRIDMILL, gridmill_environment, short_folder
from bench.measure import REPOSITORY, Result, at_least, row, save
from bench.workloads import WORKLOADS
from gridmill.domain.amounts import MIB
from gridmill.domain.footprint import footprint_of
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.states import Cause
from gridmill.scheduler.sizing import STEP
from gridmill.stores.sql import make

ROUNDS = 4
"""Three to learn from, and one to be judged."""
GROWN = 1.25
"""How much larger the files of the large workloads are in the last round."""
WITHIN, TIGHT = 0.99, 2.0
EXAMPLES, PUBLISHED = "examples", "published"
PARTS = (EXAMPLES, PUBLISHED, *WORKLOADS)
LEFT_OUT = ("custom", "http", "objects", "stream")
"""Examples that build environments of their own: what they need is not ours to measure here; and those that
load from servers."""
LONG = {"flights": "nycflights13", "ett": "ett"}
"""Examples on published data sets, a part of their own, and the folders of these."""
DATA = REPOSITORY.parent / "shared" / "data"
HOW = f"""
An attempt is within its size when its peak memory is at most what it was given: of all attempts, the first
of a job among them, when nothing but the size of its data is known. After three runs of a job its size is
tight when it is at most {TIGHT:g} times the peak of that run, or the least that a job of its kind is given.
Attempts whose job declares its memory are left out.
"""
_EXAMPLES_HOW = f"""
Pipelines of `examples/` (but those that build environments of their own or load from servers), each {ROUNDS}
times with `--force`, in a home of its own.
"""
_LARGE_HOW = f"""
Jobs on files of 20 to 200 MB (bench/workloads.py): numbers, texts and 300 columns; {ROUNDS} times with
`--force` in one home, the last time on files {GROWN - 1:.0%} larger.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """One attempt: bytes, and the least its kind is given. `number` is its job's how-manieth, from 1."""

    job: str
    number: int
    given: int
    peak: int
    floor: int
    killed: bool = False

    @property
    def within(self) -> bool:
        """Whether it needed no more than it had."""
        return not self.killed and self.peak <= self.given

    @property
    def tight(self) -> bool:
        """Whether it had no more than twice what it needed, or the least there is."""
        return self.given <= max(self.floor, TIGHT * self.peak)


def examples(*, long: bool) -> list[Path]:
    """The pipelines that are run: those whose data is here."""
    folder = REPOSITORY / "examples"
    first = {file: file.relative_to(folder).parts[0] for file in sorted(folder.glob("**/pipeline.yaml"))}
    found = {file: name for file, name in first.items() if name not in LEFT_OUT and (name in LONG) == long}
    away = [name for name in found.values() if name in LONG and not (DATA / LONG[name]).is_dir()]
    if away:
        print(f"not measured: {', '.join(away)}, whose data is not in {DATA}")
    return [file for file, name in found.items() if name not in away]


def main() -> None:
    part = sys.argv[1] if len(sys.argv) == 2 else ""
    if part not in PARTS:
        sys.exit(f"which part? There are {', '.join(PARTS)}")
    attempts: list[Sized] = []
    for found in _measured(part):
        show(found)
        attempts += found
    if not attempts:
        return print(f"{part}: nothing was measured")
    own = _LARGE_HOW if part in WORKLOADS else _EXAMPLES_HOW
    save(f"sizing-{part}", results(part, attempts), how=f"{own} {HOW}")
    return None


def _measured(part: str) -> Iterator[list[Sized]]:
    if part not in WORKLOADS:
        for file in examples(long=part == PUBLISHED):
            with short_folder() as folder:
                ready = _with_its_data(file, Path(folder))
                for _ in range(ROUNDS):
                    run_forced(ready, Path(folder))
                yield list(attempts_in(Path(folder)))
        return
    with short_folder() as folder:
        file = Path(folder) / "pipeline.yaml"
        for number in range(ROUNDS):
            if number in (0, ROUNDS - 1):
                jobs = WORKLOADS[part](file.parent, GROWN if number else 1.0)
                file.write_text(yaml.safe_dump({"pipeline": part, "jobs": jobs}, sort_keys=False))
            run_forced(file, file.parent)
        yield list(attempts_in(file.parent))


def _with_its_data(file: Path, folder: Path) -> Path:
    """The pipeline file; a copy in `folder`, where a script beside it makes its data first."""
    scripts = sorted(file.parent.glob("make_*.py"))
    if not scripts:
        return file
    copy = shutil.copytree(file.parent, folder / file.parent.name)
    for script in scripts:
        subprocess.run([sys.executable, copy / script.name], check=True, stdout=subprocess.DEVNULL)
    return copy / file.name


def run_forced(file: Path, home: Path) -> None:
    command = (str(GRIDMILL), "run", str(file), "--force")
    done = subprocess.run(
        command, env=gridmill_environment(home), capture_output=True, text=True, check=False
    )
    if done.returncode:  # its attempts count all the same
        print(f"{file.parent.name} ended with {done.returncode}\n{done.stdout[-1500:]}", flush=True)


def show(attempts: list[Sized]) -> None:
    """A line for each attempt, with a mark at those that break a promise."""
    for sized in attempts:
        flag = "" if sized.within and (sized.number <= 3 or sized.tight) else "  <--"
        memory = f"given {sized.given / MIB:6.0f}  peak {sized.peak / MIB:6.0f}  MiB"
        print(f"{sized.job:32} {sized.number}  {memory}{flag}", flush=True)


def attempts_in(home: Path) -> Iterable[Sized]:
    """Of all runs in that home, oldest first: those whose size was estimated, and whose use was measured."""
    numbers: dict[str, int] = {}
    (database,) = home.glob("**/store.db")
    with closing(make(database)) as store:
        jobs = {
            record.noun.id: record.noun for record in store.list(JobRun) if isinstance(record.noun, JobRun)
        }
        for attempt in (record.noun for record in store.list(Attempt)):
            assert isinstance(attempt, Attempt)
            job_run = jobs[attempt.job_run_id]
            if attempt.use is None or job_run.job.memory_bytes is not None:
                continue
            name = f"{job_run.pipeline}/{job_run.job.name}"
            numbers[name] = numbers.get(name, 0) + 1
            yield Sized(
                job=name,
                number=numbers[name],
                given=attempt.given.memory_bytes,
                peak=attempt.use.peak_memory_bytes,
                killed=attempt.cause is Cause.MEMORY,
                floor=-(-footprint_of(job_run.job).floor_bytes // STEP) * STEP,  # sizes are whole steps
            )


def results(part: str, attempts: list[Sized]) -> list[Result]:
    """The two promises, and how far off the worst were."""
    area = f"Sizing: {part}"
    learned = [sized for sized in attempts if sized.number > 3] or attempts[-1:]
    largest = max(learned, key=lambda sized: sized.given / max(sized.peak, sized.floor, 1))
    fullest = max(attempts, key=lambda sized: sized.peak / sized.given)
    return [
        at_least(
            WITHIN, area, "attempts within their size", share(attempts, "within"), "", runs=len(attempts)
        ),
        at_least(1.0, area, "sizes that are tight after three runs", share(learned, "tight"), ""),
        row(area, f"largest share of a size used ({fullest.job})", fullest.peak / fullest.given, ""),
        row(area, f"loosest size over its peak ({largest.job})", largest.given / max(largest.peak, 1), "x"),
    ]


def share(attempts: list[Sized], what: str) -> float:
    """The share of attempts for which that holds."""
    return sum(getattr(sized, what) for sized in attempts) / len(attempts) if attempts else 0.0


if __name__ == "__main__":
    main()
