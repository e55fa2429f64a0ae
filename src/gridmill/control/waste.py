"""What can go, decided from the records and what lies on the disk. Nothing is touched here."""

from collections.abc import Iterable, Iterator, Mapping

from gridmill.control.lineage import names_of
from gridmill.control.removal import running
from gridmill.control.state import Control
from gridmill.model.artifact import Artifact
from gridmill.model.noun import dataclass
from gridmill.model.pipeline import Pipeline
from gridmill.model.retention import DAY_SECONDS, Retention, beyond
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.space import Waste
from gridmill.model.state import FINISHED_RUNS, LIVE_ATTEMPTS
from gridmill.ports.house import GOING, Place, Thing

_SETTLED_SECONDS = DAY_SECONDS
"""Folders of pods and attempts that ended are kept for a day: somebody may want to see why."""

Rubbish = tuple[Waste, Thing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records that decide, read once."""

    artifacts: tuple[Artifact, ...]  # newest first
    runs: tuple[Run, ...]

    @property
    def kept_uris(self) -> frozenset[str]:
        """Where versions that are there lie."""
        return frozenset(one.output.uri for one in self.artifacts if not one.removed)


def read_records(control: Control) -> Records:
    """All versions and runs."""
    store = control.ledger.store
    artifacts = (record.noun for record in store.list(Artifact, newest_first=True))
    runs = (record.noun for record in store.list(Run))
    return Records(
        artifacts=tuple(one for one in artifacts if isinstance(one, Artifact)),
        runs=tuple(run for run in runs if isinstance(run, Run)),
    )


def old_versions(control: Control, records: Records, now: float) -> tuple[Artifact, ...]:
    """Versions beyond what their jobs retain, that nothing needs."""
    wanted = _retentions(control, {one.name for one in records.artifacts})
    there = [one for one in records.artifacts if not one.removed]
    stay = (one.id for one in there if one.name in wanted and names_of(control, one))
    busy = {name for name in wanted if any(running(control, name))}
    idle = {name: limits for name, limits in wanted.items() if name not in busy}
    return beyond(there, idle, now, frozenset(stay))


def _retentions(control: Control, names: Iterable[str]) -> Mapping[str, Retention]:
    """What the newest run of each job said."""
    found: dict[str, Retention] = {}
    for name in names:
        newest = control.newest_artifact(name)
        run_id, job = newest.run_id if newest else "", name.partition("/")[2]
        newest_run = control.ledger.store.list(Run, parent=name.partition("/")[0], limit=1, newest_first=True)
        for candidate in (*(record.noun.id for record in newest_run if isinstance(record.noun, Run)), run_id):
            record = control.ledger.store.get(JobRun, f"{candidate}/{job}")
            if record is not None and isinstance(record.noun, JobRun):
                if record.noun.job.retain is not None:
                    found[name] = record.noun.job.retain
                break
    return found


def old_runs(control: Control, records: Records, before: float) -> Iterator[str]:
    """Finished runs that ended before that time and have events."""
    for run in records.runs:
        ended = run.state in FINISHED_RUNS and run.ended is not None and run.ended < before
        if ended and control.ledger.store.events(run_id=run.id, limit=1):
            yield run.id


def rubbish(
    control: Control, records: Records, things: Iterable[Thing], now: float, before: float
) -> Iterator[Rubbish]:
    """What lies on the disk and can go. `before` is the time up to which history is not kept."""
    idle = not control.ledger.snapshot.runs
    pods = control.ledger.snapshot.places.owners  # their journals may still be read
    bundles = _bundles_wanted(control, records, before)
    kept, removed = records.kept_uris, {one.output.uri for one in records.artifacts if one.removed}
    for thing in things:
        why = "it was on its way out" if _is_going(thing) else ""
        settled, old = thing.changed < now - _SETTLED_SECONDS, thing.changed < before
        match thing.place:
            case _ if why:
                pass
            case Place.OUTPUT if thing.name not in kept:
                why = _why_output(control, thing.name, removed)
            case Place.MANIFEST:
                why = _why_manifest(control, thing, settled=settled)
            case Place.HANDED if settled:
                why = _why_output(control, thing.name, set())
            case Place.CHECKPOINTS if settled:
                why = _why_checkpoints(control, thing, old=old)
            case Place.POD if thing.ended and settled and thing.name not in pods:
                why = "its pod has ended"
            case Place.IMPORT if settled and thing.ended:
                why = "its import was cut short"
            case Place.ATTEMPT if settled and thing.name not in control.ledger.snapshot.attempts:
                why = "its attempt has ended"
            case Place.REPORT if old:
                why = "old; `gridmill report` writes it again"
            case Place.BUNDLE | Place.SHARED_BUNDLE if old and thing.name.partition(".")[0] not in bundles:
                why = "no pipeline and no recent run has this code"
            case Place.CODE | Place.ENVIRONMENT if idle and old:
                why = "old; it is made again when needed"
        if why:
            yield Waste(kind=thing.place.value, name=thing.name, why=why, size_bytes=thing.size_bytes), thing


def _is_going(thing: Thing) -> bool:
    """Itself, or the folder that it is in: a sink's, which goes as a whole."""
    return any(part.startswith(GOING) for part in thing.name.split("/"))


def _why_output(control: Control, uri: str, removed: set[str]) -> str:
    """Why what lies there is nobody's; empty where that is not known. What no record knows stays:
    another home may share the root."""
    if uri in removed and not any(running(control, "/".join(uri.split("/")[1:3]))):
        return "its version was removed"
    attempt_id = uri.rpartition("/")[2].removeprefix(".").removesuffix(".draft")
    record = control.ledger.store.get(Attempt, attempt_id)
    attempt = record.noun if record is not None else None
    if isinstance(attempt, Attempt) and attempt.run_id in control.ledger.snapshot.runs:
        return ""  # a part's may still be put together
    if isinstance(attempt, Attempt) and attempt.state not in LIVE_ATTEMPTS and attempt.ended is not None:
        return f"its attempt {attempt.state}"
    return ""


def _why_manifest(control: Control, thing: Thing, *, settled: bool) -> str:
    """Why a version's manifest, or the list that an attempt made for one, is of no use; empty where it is,
    and where no record of this home knows it."""
    _, pipeline, job, name = thing.name.split("/")
    if name.startswith("."):
        return _why_output(control, thing.name, set()) if settled else ""
    record = control.ledger.store.get(Artifact, f"{pipeline}/{job}@{name.removesuffix('.json')}")
    gone = record is not None and isinstance(record.noun, Artifact) and record.noun.removed
    return "its version was removed" if gone else ""


def _why_checkpoints(control: Control, thing: Thing, *, old: bool) -> str:
    """Why no attempt goes on from them; empty where one may. A job that has succeeded since needs none but
    its own, which were removed then."""
    if any(job_run.checkpoints == thing.name for job_run in control.ledger.snapshot.job_runs.values()):
        return ""
    newest = control.newest_artifact("/".join(thing.name.split("/")[1:3]))
    if newest is not None and newest.created > thing.changed:
        return f"its job has succeeded since ({newest.id})"
    return "old" if old and newest is not None else ""


def _bundles_wanted(control: Control, records: Records, before: float) -> frozenset[str]:
    pipelines = (record.noun for record in control.ledger.store.list(Pipeline))
    declared = {one.bundle for one in pipelines if isinstance(one, Pipeline) and one.bundle}
    recent = {run.bundle for run in records.runs if run.bundle and (run.ended is None or run.ended >= before)}
    return frozenset(declared | recent)
