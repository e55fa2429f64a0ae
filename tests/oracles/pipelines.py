"""What the documentation promises of runs, in plain Python.

What each job may read, when it may stay unchanged, when it runs at all, and what an unqualified name means.
It knows nothing of how Gridmill decides: it is given what was declared and what happened, and finds what is
wrong.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

DONE = ("succeeded", "unchanged")
MOMENT = 0.01
"""Seconds within which the order of two things is not known."""


@dataclass(frozen=True)
class Declared:
    """A job as it was declared; `text` is all that decides what it makes, but what it reads."""

    name: str
    text: str
    needs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    when: str = "success"
    cached: bool = True
    is_command: bool = True


@dataclass(frozen=True)
class Attempted:
    """A process that ran: what it was given, and whether it made a version."""

    began: float
    read: Mapping[str, str]
    failed: tuple[str, ...]
    succeeded: bool


@dataclass
class Seen:
    """A job of a run as it ended."""

    declared: Declared
    state: str
    version: str = ""
    ended: float = 0.0
    forced: bool = False
    attempts: list[Attempted] = field(default_factory=list)


@dataclass
class SeenRun:
    """A run, in the order of submission. `settled` is what each name meant when it was submitted."""

    pipeline: str
    settled: Mapping[str, str]
    state: str = ""
    jobs: dict[str, Seen] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """A version that was made."""

    name: str
    number: int
    created: float
    made_of: tuple[str, tuple[tuple[str, str], ...]]

    @property
    def id(self) -> str:
        return f"{self.name}@{self.number}"


def latest(runs: Iterable[SeenRun], name: str) -> str:
    """The version of the last submitted run in which the job succeeded or was unchanged, if any."""
    pipeline, _, job = name.partition("/")
    found = (run.jobs[job] for run in runs if run.pipeline == pipeline and job in run.jobs)
    return next((one.version for one in reversed([*found]) if one.state in DONE), "")


def problems(runs: list[SeenRun], versions: list[Version]) -> Iterator[str]:
    """Everything that is not as promised."""
    by_id = {one.id: one for one in versions}
    for number, run in enumerate(runs, 1):
        for seen in run.jobs.values():
            for problem in _of_job(run, seen, by_id):
                yield f"submit {number}, {run.pipeline}/{seen.declared.name}: {problem}"
        states = {seen.state for seen in run.jobs.values()}
        wanted = "failed" if "failed" in states else "stopped" if "stopped" in states else "succeeded"
        if run.state != wanted:
            yield f"submit {number} is {run.state}, and its jobs are {sorted(states)}"
    for name in {one.name for one in versions}:
        numbers = sorted(one.number for one in versions if one.name == name)
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{name} has the versions {numbers}"


def reads(run: SeenRun, declared: Declared) -> dict[str, str]:
    """What a job must read: the versions that its run has of what it needs, and what the names meant."""
    found = {need: run.jobs[need].version for need in declared.needs if run.jobs[need].state in DONE}
    return found | {name: run.settled[name] for name in declared.names}


def failed_before(run: SeenRun, declared: Declared) -> set[str]:
    found: set[str] = set()
    for need in declared.needs:
        found |= failed_before(run, run.jobs[need].declared)
        found |= {need} if run.jobs[need].state == "failed" else set()
    return found


def _of_job(run: SeenRun, seen: Seen, versions: Mapping[str, Version]) -> Iterator[str]:
    declared, wanted = seen.declared, reads(run, seen.declared)
    made_of = (declared.text, tuple(sorted(wanted.items())))
    runs = _runs(run, declared)
    if seen.state not in ("stopped", *(("succeeded", "unchanged", "failed") if runs else ("skipped",))):
        yield f"it is {seen.state}, and should {'run' if runs else 'be skipped'}"
    for attempt in _to_judge(run, seen):
        if attempt.read != wanted:
            yield f"it read {attempt.read}, and should {wanted}"
        if declared.when != "success" and set(attempt.failed) != failed_before(run, declared):
            yield f"it was told that {attempt.failed} failed, and {failed_before(run, declared)} did"
    if seen.state in DONE:
        if versions[seen.version].made_of != made_of:
            yield f"it has {seen.version}, made of {versions[seen.version].made_of}, not of {made_of}"
        must_run = seen.forced or not declared.cached or declared.when != "success"
        if seen.state == "unchanged" and must_run:
            yield "it is unchanged, and was to run"
        if seen.state == "succeeded" and not must_run:
            yield from _needless(run, seen, versions, made_of)


def _to_judge(run: SeenRun, seen: Seen) -> list[Attempted]:
    """All attempts; only the one that succeeded of what a resumed run may do again with other versions."""
    if not _may_change(run, seen.declared):
        return seen.attempts
    return seen.attempts[-1:] if seen.state == "succeeded" else []


def _may_change(run: SeenRun, declared: Declared) -> bool:
    return declared.when != "success" or any(
        _may_change(run, run.jobs[need].declared) for need in declared.needs
    )


def _runs(run: SeenRun, declared: Declared) -> bool:
    if declared.when == "success":
        return all(run.jobs[need].state in DONE for need in declared.needs)
    return declared.when == "always" or bool(failed_before(run, declared))


def _needless(
    run: SeenRun,
    seen: Seen,
    versions: Mapping[str, Version],
    made_of: tuple[str, tuple[tuple[str, str], ...]],
) -> Iterator[str]:
    """It ran although a version that could stand was there when it began. What was made in the same moment
    counts as there, or not, as it suits."""
    name, began = f"{run.pipeline}/{seen.declared.name}", seen.attempts[-1].began
    own = sorted((one for one in versions.values() if one.name == name), key=lambda one: one.number)
    for moment in (began - MOMENT, began + MOMENT):
        before = [one for one in own if one.created < moment]
        if not any(one.made_of == made_of for one in before):
            return
    yield f"it ran, and one of {[one.id for one in before]} could be restored"
