"""Which records of runs, deployments and removed versions are history, and forgetting them bit by bit."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from gridmill.control.waste import Records
from gridmill.errors import StaleVersionError
from gridmill.model.artifact import Artifact
from gridmill.model.deployment import Deployment
from gridmill.model.noun import dataclass
from gridmill.model.provenance import CodeList, Provenance
from gridmill.model.resource import Measurement
from gridmill.model.retention import RUNS_KEPT
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.space import Waste
from gridmill.model.state import FINISHED_RUNS, DeploymentState
from gridmill.planning.history import PER_JOB
from gridmill.ports.keys import key_of
from gridmill.ports.store import Delete, Record, Store

_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Records that nobody needs any more, as they were when they were looked at."""

    runs: tuple[Record, ...] = ()
    deployments: tuple[Record, ...] = ()
    measurements: tuple[Record, ...] = ()
    versions: tuple[Record, ...] = ()
    provenances: tuple[Record, ...] = ()

    def told(self, days: float) -> Iterator[Waste]:
        """What goes, and why."""
        for one in self.runs:
            why = f"it ended over {days:g} days ago, and no version there is was made from what it made"
            yield Waste(kind="run", name=key_of(one.noun), why=why)
        for one in self.deployments:
            yield Waste(kind="deployment", name=key_of(one.noun), why=f"it went over {days:g} days ago")
        for one in self.measurements:
            why = f"over {days:g} days old, and sizes are learned from the newest {PER_JOB} of a job"
            yield Waste(kind="measurement", name=key_of(one.noun), why=why)
        for one in self.versions:
            why = f"made over {days:g} days ago and removed; no version there is was made from it"
            yield Waste(kind="record", name=key_of(one.noun), why=why)
        for one in self.provenances:
            why = f"first seen over {days:g} days ago, and no version there is was made from it"
            yield Waste(kind="record", name=key_of(one.noun), why=why)


def old_history(store: Store, records: Records, before: float, lying: frozenset[str]) -> History:
    """What ended before that time. Runs that a version still tells of stay, and so does what they used; so do
    removed versions that runs tell of, or of which something may lie on the disk (`lying`: URIs)."""
    runs = {run.id: run for run in records.runs}
    needed = lineage(records.artifacts)
    makers = frozenset(one.run_id for one in records.artifacts if one.id in needed)
    going = {run.id for run in runs_to_forget(records.runs, makers, before)}
    found = (record for record in store.list(Run) if key_of(record.noun) in going) if going else ()
    gone = (record for record in store.list(Deployment) if _is_gone(record.noun, before))
    return History(
        runs=tuple(record for record in found if record.noun == runs[key_of(record.noun)]),
        deployments=tuple(gone),
        measurements=tuple(_unlearned(store.list(Measurement, newest_first=True), before)),
        versions=tuple(_untold(store, versions_to_forget(records, needed, before, lying), going)),
        provenances=tuple(_unmade(store, records.artifacts, before)),
    )


def _unmade(store: Store, artifacts: Iterable[Artifact], before: float) -> Iterator[Record]:
    """What no version that is there was made from, and files of code that nothing refers to then."""
    there = {f"{one.name}#{one.fingerprint}" for one in artifacts if not one.removed}
    ids = {one.id for one in artifacts if not one.removed}
    lists = set[str]()
    for record in store.list(Provenance):
        one = record.noun
        assert isinstance(one, Provenance)
        if one.created < before and one.id not in there and one.artifact not in ids:
            yield record
        else:
            lists.add(one.code)
    for record in store.list(CodeList):
        if (
            isinstance(record.noun, CodeList)
            and record.noun.created < before
            and record.noun.hash not in lists
        ):
            yield record


def versions_to_forget(
    records: Records, needed: frozenset[str], before: float, lying: frozenset[str]
) -> frozenset[str]:
    """Removed versions made before that time, whose files are gone, and that no version there is was made
    from (`needed`). The newest of each name stays: from it versions are numbered on."""
    newest: dict[str, Artifact] = {}
    for one in records.artifacts:
        newest.setdefault(one.name, one)
    return frozenset(
        one.id
        for one in records.artifacts
        if one.removed
        and one.created < before
        and one.id not in needed
        and one is not newest[one.name]
        and (one.output.uri in records.kept_uris or one.output.uri not in lying)
    )


def _untold(store: Store, versions: frozenset[str], going: set[str]) -> Iterator[Record]:
    """Those that no run tells of any more when these have gone."""
    if versions:
        jobs = (record.noun for record in store.list(JobRun))
        kept = (job for job in jobs if isinstance(job, JobRun) and job.run_id not in going)
        told = {artifact for job in kept for artifact in (*job.artifacts, *job.external)}
        yield from (one for one in store.list(Artifact) if key_of(one.noun) in versions - told)


def _unlearned(newest_first: Iterable[Record], before: float) -> Iterator[Record]:
    """What attempts used before that time, beyond those of each job that sizes are learned from."""
    places: Counter[str] = Counter()
    for record in newest_first:
        if isinstance(record.noun, Measurement):
            places[record.noun.job] += 1
            if places[record.noun.job] > PER_JOB and record.noun.ended < before:
                yield record


def runs_to_forget(runs: Sequence[Run], needed: frozenset[str], before: float) -> tuple[Run, ...]:
    """Runs of which nothing is needed any more, of all that there are (oldest first of each pipeline).

    They ended before that time. The newest of each pipeline, those of a backfill (it tells of them), and
    those in `needed` stay.
    """
    places: dict[str, int] = {}
    old: list[Run] = []
    for run in reversed(runs):
        place = places[run.pipeline] = places.get(run.pipeline, -1) + 1
        ended = run.state in FINISHED_RUNS and run.ended is not None and run.ended < before
        if ended and place >= RUNS_KEPT and not run.chunk and run.id not in needed:
            old.append(run)
    return tuple(reversed(old))


def lineage(artifacts: tuple[Artifact, ...]) -> frozenset[str]:
    """The versions that are there, and what these were made from, back to the sources."""
    by_id = {one.id: one for one in artifacts}
    waiting = [one.id for one in artifacts if not one.removed]
    known = set(waiting)
    for artifact_id in waiting:  # it grows while it is walked through
        more = [one for one in by_id[artifact_id].made_from if one in by_id and one not in known]
        known.update(more)
        waiting.extend(more)
    return frozenset(known)


def _is_gone(noun: object, before: float) -> bool:
    return isinstance(noun, Deployment) and noun.state == DeploymentState.GONE and noun.created < before


def forget(store: Store, history: History, *, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Delete the records: a run with its jobs and attempts in one commit, whole or not at all. What changed
    since it was looked at (a run was resumed) stays, and with it, this time, all removed versions: it may
    tell of them. Needs no lock: nothing of it is in anybody's memory but what may be there too long."""
    further = (*history.deployments, *history.measurements, *history.versions, *history.provenances)
    for run in history.runs:
        if not goes_on():
            return
        run_id = key_of(run.noun)
        parts = [record for kind in (JobRun, Attempt) for record in store.list(kind, parent=run_id)]
        if not _delete(store, [run, *parts]):
            further = (*history.deployments, *history.measurements, *history.provenances)
    for first in range(0, len(further), _AT_ONCE):
        _delete(store, further[first : first + _AT_ONCE])


def _delete(store: Store, records: list[Record] | tuple[Record, ...]) -> bool:
    """Whether they were as they were looked at; otherwise they stay."""
    try:
        store.commit(
            [Delete(noun=type(one.noun), key=key_of(one.noun), expected=one.version) for one in records]
        )
    except StaleVersionError:
        return False
    return True
