"""This module has the garbage collection, which decides from the records and the disk which records and
files can be deleted. The module itself deletes nothing, except in `delete_records`.

`plan_removal` lists the content that the removal of versions would delete, and the reasons that prevent the
removal. `unused_files` finds files that no record needs. `old_history` finds records of runs, deployments
and removed versions that are old enough to be deleted. Old records are deleted in small steps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.damage import may_have_lost_versions
from gridmill.control.steps.lineage import names_of, users_of
from gridmill.control.steps.references import aliases_of, fetch_artifact, versions_of
from gridmill.control.steps.services import users_of_version
from gridmill.domain.artifact import Artifact, ArtifactKind, split_reference
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.resource import Measurement
from gridmill.domain.retention import DAY_SECONDS, RUNS_KEPT, Retention, beyond
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import FINISHED_RUNS, LIVE_ATTEMPTS, DeploymentState
from gridmill.domain.usage import DiskSpace, ReclaimableItem
from gridmill.domain.views import RemovalPreview
from gridmill.errors import ConflictError, InputError, NotFoundError, StaleVersionError
from gridmill.ports.disk import GOING, IN_ROOT, DiskArea, DiskItem
from gridmill.ports.store import Delete, Record, Store, key_of
from gridmill.scheduler.history import PER_JOB


def plan_removal(
    catalog: Catalog, reference: str, *, of_table: bool = False
) -> tuple[RemovalPreview, tuple[Artifact, ...]]:
    """Return the versions to which a reference for a removal refers, and the reasons that prevent the
    removal. The reference `pipeline/job` names all versions of the job.

    If `of_table` is true, the reference may also name a single version of a sink. If a version of a sink is
    removed, its table is kept, and a later load deletes the files that only this version needed. If
    `of_table` is false, the function raises ConflictError for a single version of a sink. Raises InputError
    for an alias, and NotFoundError.
    """
    name, version = split_reference(reference)
    if version and not version.isdecimal():
        raise InputError(
            f"{version!r} is an alias, not a version",
            hint=f"`gridmill remove alias {reference}` removes the name; "
            f"`gridmill show artifact {reference}` shows the version.",
        )
    wanted = (fetch_artifact(catalog, f"{name}@{int(version)}"),) if version else _all(catalog.ledger, name)
    if version and wanted[0].kind == ArtifactKind.SINK and not wanted[0].removed and not of_table:
        raise ConflictError(
            f"{wanted[0].id} cannot be removed alone: all versions of a sink share one table",
            hint=f"`gridmill remove sink {name}` removes the whole table.",
        )
    existing = [one for one in wanted if not one.removed]
    ids = {one.id for one in existing}
    plan = RemovalPreview(
        versions=tuple(one.id for one in wanted),
        size_bytes=_size(existing),
        aliases=tuple(
            a.id for a in aliases_of(catalog.ledger, name) if f"{name}@{a.number}" in ids or not version
        ),
        used_by=tuple(one.id for one in users_of(catalog.ledger, ids) if one.id not in ids) if ids else (),
        running=tuple(dict.fromkeys(running(catalog.ledger, name))) if ids else (),
        services=users_of_version(catalog.ledger, frozenset(ids)),
        already_removed=not existing,
    )
    return plan, wanted


def _all(ledger: Ledger, name: str) -> tuple[Artifact, ...]:
    """Return the existing versions of a name. If the name has no existing versions, the function returns its
    removed versions, because a crash may have left their files."""
    versions = versions_of(ledger, name)
    if versions:
        return versions
    records = ledger.store.list(Artifact, parent=name)
    gone = tuple(record.noun for record in records if isinstance(record.noun, Artifact))
    if not gone:
        raise NotFoundError(f"there is no {name!r}", hint="`gridmill list artifacts` shows what there is.")
    return gone


def _size(versions: Sequence[Artifact]) -> int:
    """Return the size of the content in bytes. All versions of a sink share one table, so the newest version
    has the size of the whole table."""
    tables = versions[:1] if versions and versions[0].kind == ArtifactKind.SINK else versions
    return sum(table.output.size_bytes for table in tables)


def running(ledger: Ledger, name: str) -> Iterator[str]:
    """Return the ids of active runs of the version's pipeline, and of runs whose jobs read the version."""
    for job_run in ledger.snapshot.job_runs.values():
        read = {split_reference(reference)[0] for reference in job_run.job.external_names}
        if job_run.pipeline == name.partition("/")[0] or name in read:
            yield job_run.run_id


def check_removal(plan: RemovalPreview, *, force: bool) -> None:
    """Raise ConflictError if a run or a service may be using the version. Without `force`, the function also
    raises ConflictError if an alias refers to the version or if another version was made from it."""
    what = plan.versions[0] if len(plan.versions) == 1 else f"{plan.versions[-1]} ... {plan.versions[0]}"
    if plan.running:
        raise ConflictError(
            f"run {plan.running[0]} may be using {what}",
            hint=f"Wait until it ends, or stop it: `gridmill stop {plan.running[0]}`.",
        )
    if plan.services:
        raise ConflictError(
            f"service {plan.services[0]!r} serves {what}, or can return to it",
            hint=f"Serve another version: gridmill update service {plan.services[0]} --model MODEL; or stop "
            f"the service: gridmill stop service {plan.services[0]}.",
        )
    if plan.aliases and not force:
        raise ConflictError(
            f"alias {plan.aliases[0]!r} names {what}",
            hint=f"Move the alias to another version, or remove it: `gridmill remove alias"
            f" {plan.aliases[0]}`. "
            "`--force` removes the alias too.",
        )
    if plan.used_by and not force:
        more = f" and {len(plan.used_by) - 1} more" if len(plan.used_by) > 1 else ""
        raise ConflictError(
            f"{plan.used_by[0]}{more} {'were' if more else 'was'} made from {what}",
            hint="Remove the dependent versions first, or use `--force`, which keeps them and deletes only "
            f"{what}.",
        )


def removed_uris(ledger: Ledger, versions: Sequence[Artifact]) -> Iterator[str]:
    """Return the URIs in storage that belong only to removed versions."""
    for one in versions:
        kept = {other.output.uri for other in versions_of(ledger, one.name)}
        uri = one.output.uri
        if uri and uri not in kept:
            yield uri.rpartition("/")[0] if one.kind == ArtifactKind.SINK and not kept else uri


_SETTLED_SECONDS = DAY_SECONDS
"""The folders of ended pods and attempts are kept for this number of seconds, so that users can find out why
the pods and attempts ended."""

Rubbish = tuple[ReclaimableItem, DiskItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageSnapshot:
    """The records from which garbage collection decides which records and files are deleted. They are read
    once."""

    artifacts: tuple[Artifact, ...]
    """All versions, with the newest version first."""
    runs: tuple[Run, ...]

    @property
    def kept_uris(self) -> frozenset[str]:
        """The URIs of the versions that exist."""
        return frozenset(artifact.output.uri for artifact in self.artifacts if not artifact.removed)


def read_records(ledger: Ledger) -> GarbageSnapshot:
    """Read all versions and runs from the store."""
    store = ledger.store
    artifacts = (record.noun for record in store.list(Artifact, newest_first=True))
    runs = (record.noun for record in store.list(Run))
    return GarbageSnapshot(
        artifacts=tuple(artifact for artifact in artifacts if isinstance(artifact, Artifact)),
        runs=tuple(run for run in runs if isinstance(run, Run)),
    )


def old_versions(catalog: Catalog, records: GarbageSnapshot, now: float) -> tuple[Artifact, ...]:
    """Return the versions that exceed the retention of their jobs and that no other version, alias
    or service needs."""
    wanted = _retentions(catalog, {one.name for one in records.artifacts})
    existing = [one for one in records.artifacts if not one.removed]
    served = {name for one in catalog.ledger.snapshot.services.values() for name in one.versions}
    stay = (one.id for one in existing if one.name in wanted and (one.id in served or names_of(catalog, one)))
    busy = {name for name in wanted if any(running(catalog.ledger, name))}
    idle = {name: limits for name, limits in wanted.items() if name not in busy}
    return beyond(existing, idle, now, frozenset(stay))


def _retentions(catalog: Catalog, names: Iterable[str]) -> Mapping[str, Retention]:
    """Return the retention that the newest run of each job declares."""
    retentions: dict[str, Retention] = {}
    for name in names:
        newest = catalog.newest_artifact(name)
        run_id, job = newest.run_id if newest else "", name.partition("/")[2]
        newest_run = catalog.ledger.store.list(Run, parent=name.partition("/")[0], limit=1, newest_first=True)
        for candidate in (*(record.noun.id for record in newest_run if isinstance(record.noun, Run)), run_id):
            record = catalog.ledger.store.get(JobRun, f"{candidate}/{job}")
            if record is not None and isinstance(record.noun, JobRun):
                if record.noun.job.retain is not None:
                    retentions[name] = record.noun.job.retain
                break
    return retentions


def old_runs(ledger: Ledger, records: GarbageSnapshot, before: float) -> Iterator[str]:
    """Return the runs that ended before a given time and whose events are still in the store."""
    for run in records.runs:
        ended = run.state in FINISHED_RUNS and run.ended is not None and run.ended < before
        if ended and ledger.store.events(run_id=run.id, limit=1):
            yield run.id


def unused_logs(ledger: Ledger, records: GarbageSnapshot, before: float) -> Iterator[tuple[str, int]]:
    """Return the runs whose logs are no longer kept because the run ended before that time or has no record,
    with the sizes of these logs."""
    runs = {run.id: run for run in records.runs}
    for run_id, size in ledger.logs.sizes().items():
        run = runs.get(run_id)
        if run is None or (run.state in FINISHED_RUNS and run.ended is not None and run.ended < before):
            yield run_id, size


def unused_files(
    catalog: Catalog, records: GarbageSnapshot, things: Iterable[DiskItem], now: float, before: float
) -> Iterator[Rubbish]:
    """Return the files on the disk that can be deleted. The files of a run, attempt or pod that ended before
    the time `before` can be deleted even if its record exists."""
    idle = not catalog.ledger.snapshot.runs
    lost = may_have_lost_versions(catalog.ledger)
    pods = catalog.ledger.snapshot.places.owners  # the journals of these pods may still be read
    bundles = _bundles_wanted(catalog.ledger, records, before)
    kept, removed = (
        records.kept_uris,
        {artifact.output.uri for artifact in records.artifacts if artifact.removed},
    )
    for thing in things:
        why = "its deletion was interrupted" if _is_going(thing) else ""
        settled, old = thing.changed < now - _SETTLED_SECONDS, thing.changed < before
        match thing.area:
            case _ if why:
                pass
            case DiskArea.OUTPUT if thing.name not in kept and not (lost and thing.name not in removed):
                why = _why_output(catalog.ledger, thing.name, removed)
            case DiskArea.MANIFEST:
                why = _why_manifest(catalog.ledger, thing, settled=settled)
            case DiskArea.HANDED if settled:
                why = _why_output(catalog.ledger, thing.name, set())
            case DiskArea.CHECKPOINTS if settled:
                why = _why_checkpoints(catalog, thing, old=old)
            case DiskArea.POD if thing.ended and settled and thing.name not in pods:
                why = "its pod has ended"
            case DiskArea.IMPORT if settled and thing.ended:
                why = "its import was interrupted"
            case DiskArea.ATTEMPT if settled and thing.name not in catalog.ledger.snapshot.attempts:
                why = "its attempt has ended"
            case DiskArea.REPORT if old:
                why = "old; `gridmill report` creates it again"
            case DiskArea.BUNDLE | DiskArea.SHARED_BUNDLE if (
                old and thing.name.partition(".")[0] not in bundles
            ):
                why = "no pipeline and no recent run has this code"
            case DiskArea.CODE | DiskArea.ENVIRONMENT if idle and old:
                why = "old; it is created again when needed"
        if why:
            yield (
                ReclaimableItem(kind=thing.area.value, name=thing.name, why=why, size_bytes=thing.size_bytes),
                thing,
            )


EVICTABLE = frozenset(
    {DiskArea.OUTPUT, DiskArea.HANDED, DiskArea.IMPORT, DiskArea.REPORT, DiskArea.CODE, DiskArea.ENVIRONMENT}
)
"""The areas of the disk from which items are evicted if a disk is nearly full. No record needs the items in
these areas, or Gridmill can make the items again."""


def evictable(
    catalog: Catalog, records: GarbageSnapshot, things: Iterable[DiskItem], now: float
) -> Iterator[Rubbish]:
    """Return the items that can be deleted immediately if the disk that contains them is nearly full,
    whatever the age of the items is. Code and environments are kept while a pod is up, because the pod may
    need them."""
    snapshot = catalog.ledger.snapshot
    in_use = bool(snapshot.deployments) or bool(snapshot.attempts)
    caches = frozenset({DiskArea.CODE, DiskArea.ENVIRONMENT})
    candidates = (one for one in things if one.area in EVICTABLE or _is_going(one))
    for rubbish in unused_files(catalog, records, candidates, now, now):
        if rubbish[1].area not in caches:
            yield rubbish
    for thing in things:
        if thing.area in caches and not in_use and not _is_going(thing):
            why = "the disk is nearly full; it is created again when needed"
            item = ReclaimableItem(
                kind=thing.area.value, name=thing.name, why=why, size_bytes=thing.size_bytes
            )
            yield item, thing


def oldest_for(spaces: Sequence[DiskSpace], unused: Iterable[DiskItem]) -> list[DiskItem]:
    """Return the oldest unused items, as many as are needed to restore the reserve of each disk that is
    nearly full, plus a quarter of the reserve. Without the additional quarter of the reserve, the disk would
    soon be nearly full again. `spaces` has the disks of the home and of the storage root, or the one disk
    that has both."""
    chosen: list[DiskItem] = []
    in_order = sorted(unused, key=lambda thing: thing.changed)
    for at, space in enumerate(spaces):
        wanted = space.lacking_bytes + space.reserve_bytes // 4 if space.is_short else 0
        for thing in in_order:
            here = len(spaces) == 1 or (thing.area in IN_ROOT) == bool(at)
            if wanted > 0 and here:
                chosen.append(thing)
                wanted -= thing.size_bytes
    return chosen


def _is_going(thing: DiskItem) -> bool:
    """Return whether the item, or a folder that contains it, is already being deleted. The folder of a sink
    is deleted as a whole."""
    return any(part.startswith(GOING) for part in thing.name.split("/"))


def _why_output(ledger: Ledger, uri: str, removed: set[str]) -> str:
    """Return a text with the reason why no record needs this output of an attempt. The result is empty if it
    is unknown whether a record needs the output. Files that no record mentions are kept, because another
    home may share the storage root."""
    if uri in removed and not any(running(ledger, "/".join(uri.split("/")[1:3]))):
        return "its version was removed"
    attempt_id = uri.rpartition("/")[2].removeprefix(".").removesuffix(".draft")
    record = ledger.store.get(Attempt, attempt_id)
    attempt = record.noun if record is not None else None
    if isinstance(attempt, Attempt) and attempt.run_id in ledger.snapshot.runs:
        return ""  # kept, because the run may still combine the outputs of the parts of its jobs
    if isinstance(attempt, Attempt) and attempt.state not in LIVE_ATTEMPTS and attempt.ended is not None:
        return f"its attempt {attempt.state}"
    return ""


def _why_manifest(ledger: Ledger, thing: DiskItem, *, settled: bool) -> str:
    """Return the reason why no record needs a version's manifest, or the list from which an attempt makes a
    manifest. The result is empty if a record needs the file, or if no record of this home knows it."""
    _, pipeline, job, name = thing.name.split("/")
    if name.startswith("."):
        return _why_output(ledger, thing.name, set()) if settled else ""
    record = ledger.store.get(Artifact, f"{pipeline}/{job}@{name.removesuffix('.json')}")
    gone = record is not None and isinstance(record.noun, Artifact) and record.noun.removed
    return "its version was removed" if gone else ""


def _why_checkpoints(catalog: Catalog, thing: DiskItem, *, old: bool) -> str:
    """Return the reason why no attempt resumes from these checkpoints. The result is empty if an attempt may
    resume from these checkpoints. If the job has succeeded after the checkpoints were written, the
    checkpoints are not needed."""
    if any(job_run.checkpoints == thing.name for job_run in catalog.ledger.snapshot.job_runs.values()):
        return ""
    newest = catalog.newest_artifact("/".join(thing.name.split("/")[1:3]))
    if newest is not None and newest.created > thing.changed:
        return f"its job has succeeded since ({newest.id})"
    return "old" if old and newest is not None else ""


def _bundles_wanted(ledger: Ledger, records: GarbageSnapshot, before: float) -> frozenset[str]:
    pipelines = (record.noun for record in ledger.store.list(Pipeline))
    declared = {
        pipeline.bundle for pipeline in pipelines if isinstance(pipeline, Pipeline) and pipeline.bundle
    }
    recent = {run.bundle for run in records.runs if run.bundle and (run.ended is None or run.ended >= before)}
    return frozenset(declared | recent)


_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedRecords:
    """The records that are no longer needed, each with the version number at which it was read."""

    runs: tuple[Record, ...] = ()
    deployments: tuple[Record, ...] = ()
    measurements: tuple[Record, ...] = ()
    versions: tuple[Record, ...] = ()
    provenances: tuple[Record, ...] = ()

    def reclaimable_items(self, days: float) -> Iterator[ReclaimableItem]:
        """Return the items that can be deleted, with the reason for each."""
        for one in self.runs:
            why = f"the run ended over {days:g} days ago, and no existing version depends on its results"
            yield ReclaimableItem(kind="run", name=key_of(one.noun), why=why)
        for one in self.deployments:
            yield ReclaimableItem(
                kind="deployment",
                name=key_of(one.noun),
                why=f"the deployment was deleted over {days:g} days ago",
            )
        for one in self.measurements:
            why = f"over {days:g} days old; sizes use only the newest {PER_JOB} measurements of a job"
            yield ReclaimableItem(kind="measurement", name=key_of(one.noun), why=why)
        for one in self.versions:
            why = f"version made over {days:g} days ago and removed; no existing version depends on it"
            yield ReclaimableItem(kind="record", name=key_of(one.noun), why=why)
        for one in self.provenances:
            why = f"first seen over {days:g} days ago, and no existing version depends on it"
            yield ReclaimableItem(kind="record", name=key_of(one.noun), why=why)


def old_history(
    store: Store, records: GarbageSnapshot, before: float, lying: frozenset[str]
) -> UnusedRecords:
    """Return the records that ended before a given time and can be deleted. If a version refers to a run,
    the run is kept, with all versions that it used. A removed version is kept if a run refers to it, or if
    it may still have files (`lying` has the URIs of these files)."""
    runs = {run.id: run for run in records.runs}
    needed = lineage(records.artifacts)
    makers = frozenset(artifact.run_id for artifact in records.artifacts if artifact.id in needed)
    going = {run.id for run in deletable_runs(records.runs, makers, before)}
    found = (record for record in store.list(Run) if key_of(record.noun) in going) if going else ()
    gone = (record for record in store.list(Deployment) if _is_gone(record.noun, before))
    return UnusedRecords(
        runs=tuple(record for record in found if record.noun == runs[key_of(record.noun)]),
        deployments=tuple(gone),
        measurements=tuple(_unlearned(store.list(Measurement, newest_first=True), before)),
        versions=tuple(_untold(store, deletable_versions(records, needed, before, lying), going)),
        provenances=tuple(_unmade(store, records.artifacts, before)),
    )


def _unmade(store: Store, artifacts: Iterable[Artifact], before: float) -> Iterator[Record]:
    """Return the provenances from which no existing version was made, and the lists of code files to which
    no other provenance refers."""
    existing = {f"{one.name}#{one.fingerprint}" for one in artifacts if not one.removed}
    ids = {one.id for one in artifacts if not one.removed}
    lists = set[str]()
    for record in store.list(Provenance):
        one = record.noun
        assert isinstance(one, Provenance)
        if one.created < before and one.id not in existing and one.artifact not in ids:
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


def deletable_versions(
    records: GarbageSnapshot, needed: frozenset[str], before: float, lying: frozenset[str]
) -> frozenset[str]:
    """Return the ids of removed versions that were made before that time, have no files, and are no input of
    an existing version (`needed`). The newest version of each name is kept, because the next version number
    follows from it."""
    newest: dict[str, Artifact] = {}
    for artifact in records.artifacts:
        newest.setdefault(artifact.name, artifact)
    return frozenset(
        artifact.id
        for artifact in records.artifacts
        if artifact.removed
        and artifact.created < before
        and artifact.id not in needed
        and artifact is not newest[artifact.name]
        and (artifact.output.uri in records.kept_uris or artifact.output.uri not in lying)
    )


def _untold(store: Store, versions: frozenset[str], going: set[str]) -> Iterator[Record]:
    """Return the records of these versions to which no run refers after the runs in `going` are deleted."""
    if versions:
        jobs = (record.noun for record in store.list(JobRun))
        kept = (job for job in jobs if isinstance(job, JobRun) and job.run_id not in going)
        referenced = {artifact for job in kept for artifact in (*job.artifacts, *job.external)}
        yield from (
            artifact for artifact in store.list(Artifact) if key_of(artifact.noun) in versions - referenced
        )


def _unlearned(newest_first: Iterable[Record], before: float) -> Iterator[Record]:
    """Return the measurements of attempts that ended before a given time. For each job, the newest
    measurements are kept, because sizes are estimated from them."""
    places: Counter[str] = Counter()
    for record in newest_first:
        if isinstance(record.noun, Measurement):
            places[record.noun.job] += 1
            if places[record.noun.job] > PER_JOB and record.noun.ended < before:
                yield record


def deletable_runs(runs: Sequence[Run], needed: frozenset[str], before: float) -> tuple[Run, ...]:
    """Return the runs that are not needed, out of all runs (the oldest first for each pipeline).

    The returned runs ended before the given time. The newest runs of each pipeline, the runs of a backfill
    (the backfill refers to them), and the runs in `needed` are kept.
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
    """Return the existing versions and all their inputs, back to the sources."""
    by_id = {one.id: one for one in artifacts}
    waiting = [one.id for one in artifacts if not one.removed]
    visited = set(waiting)
    # the list grows during the loop, so that the loop also visits indirect sources
    for artifact_id in waiting:
        more = [one for one in by_id[artifact_id].made_from if one in by_id and one not in visited]
        visited.update(more)
        waiting.extend(more)
    return frozenset(visited)


def _is_gone(noun: object, before: float) -> bool:
    return isinstance(noun, Deployment) and noun.state == DeploymentState.GONE and noun.created < before


def delete_records(
    store: Store, history: UnusedRecords, *, goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Delete these records from the store. A run is deleted together with its jobs and attempts in one
    commit, which deletes all of them or none. A record that has changed after it was read is kept, for
    example because a run was resumed. If a changed record was kept, this call also keeps the records of all
    removed versions, because a changed run may refer to them. The caller does not need the node's lock,
    because none of these records should be in the memory of the control node."""
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
    """Delete the records if they have not changed since they were read. The function returns whether the
    records were deleted."""
    try:
        store.commit(
            [
                Delete(noun=type(record.noun), key=key_of(record.noun), expected=record.version)
                for record in records
            ]
        )
    except StaleVersionError:
        return False
    return True
