"""Are sizes right? Every example, run again and again: the memory given against the memory used."""

import subprocess
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import GRIDMILL, gridmill_environment, short_folder
from bench.measure import REPOSITORY, Result, at_least, row, save
from gridmill.model.amounts import MIB
from gridmill.model.run import Attempt, JobRun
from gridmill.model.state import Cause
from gridmill.planning.footprint import footprint_of
from gridmill.planning.sizing import STEP
from gridmill.stores.sql import make

AREA = "Sizing"
ROUNDS = 4
"""Three to learn from, and one to be judged."""
WITHIN, TIGHT = 0.99, 2.0
NEEDS_MORE = ("custom",)
"""Examples that build environments of their own: what they need is not ours to measure here."""
HOW = f"""
Every pipeline of `examples/` (but those that build environments of their own) is run {ROUNDS} times with
`--force`, in a home of its own. An attempt is within its size when its peak memory is at most what it was
given. After three runs of a job its size is tight when it is at most {TIGHT:g} times the peak of that run, or
the least that a job of its kind is given. Attempts whose job declares its memory are left out.
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


def examples() -> list[Path]:
    """The pipelines that are run."""
    found = sorted((REPOSITORY / "examples").glob("**/pipeline.yaml"))
    return [file for file in found if file.relative_to(REPOSITORY / "examples").parts[0] not in NEEDS_MORE]


def main() -> None:
    attempts: list[Sized] = []
    for file in examples():
        found = _measure(file)
        show(found)
        attempts += found
    save("sizing", results(attempts), how=HOW)


def show(attempts: list[Sized]) -> None:
    """A line for each attempt, with a mark at those that break a promise."""
    for sized in attempts:
        flag = "" if sized.within and (sized.number <= 3 or sized.tight) else "  <--"
        memory = f"given {sized.given / MIB:6.0f}  peak {sized.peak / MIB:6.0f}  MiB"
        print(f"{sized.job:32} {sized.number}  {memory}{flag}", flush=True)


def _measure(file: Path) -> list[Sized]:
    with short_folder() as folder:
        home = Path(folder)
        for _ in range(ROUNDS):
            command = (str(GRIDMILL), "run", str(file), "--force")
            done = subprocess.run(command, env=gridmill_environment(home), capture_output=True, check=False)
            if done.returncode:  # its attempts count all the same
                print(f"{file.relative_to(REPOSITORY)} ended with {done.returncode}")
        return list(attempts_in(home))


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


def results(attempts: list[Sized]) -> list[Result]:
    """The two promises, and how far off the worst were."""
    learned = [sized for sized in attempts if sized.number > 3]
    largest = max(learned, key=lambda sized: sized.given / max(sized.peak, sized.floor, 1))
    fullest = max(attempts, key=lambda sized: sized.peak / sized.given)
    return [
        at_least(
            WITHIN, AREA, "attempts within their size", share(attempts, "within"), "", runs=len(attempts)
        ),
        at_least(1.0, AREA, "sizes that are tight after three runs", share(learned, "tight"), ""),
        row(AREA, f"largest share of a size used ({fullest.job})", fullest.peak / fullest.given, ""),
        row(AREA, f"loosest size over its peak ({largest.job})", largest.given / max(largest.peak, 1), "x"),
    ]


def share(attempts: list[Sized], what: str) -> float:
    """The share of attempts for which that holds."""
    return sum(getattr(sized, what) for sized in attempts) / len(attempts) if attempts else 0.0


if __name__ == "__main__":
    main()
