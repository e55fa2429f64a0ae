"""Jobs that may go to several resources: to which they go, when they are ready and while they wait."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from gridmill.control.begin import resources_for
from gridmill.control.inputs import inputs_of
from gridmill.control.ledger import Transaction
from gridmill.control.references import fetch_artifact
from gridmill.control.state import Control
from gridmill.errors import GridmillError, NotFoundError
from gridmill.model.artifact import Artifact, ArtifactKind, Input
from gridmill.model.choice import Choice
from gridmill.model.farm import is_crowded
from gridmill.model.job import JobSize
from gridmill.model.resource import Resource, Sizing
from gridmill.model.run import JobRun
from gridmill.model.site import Site
from gridmill.model.state import JobState
from gridmill.planning.alternatives import Candidate, alternatives
from gridmill.planning.choice import choose
from gridmill.planning.limits import gpus_of
from gridmill.planning.sizing import size_job
from gridmill.planning.travel import ELSEWHERE, Reading

LOOK_AGAIN_SECONDS = 10.0
"""How often jobs that wait look whether they would be done sooner elsewhere."""


def chosen_resource(
    control: Control, job_run: JobRun, inputs: Sequence[Input], size: JobSize, *, standing: bool = False
) -> tuple[Resource, Choice | None]:
    """The resource of a job that is ready, and why it is that one where there is a choice; `standing`: it is
    in line already. Raises PipelineError for one that was removed."""
    snapshot, job = control.ledger.snapshot, job_run.job
    found = resources_for(job, job_run.pipeline, snapshot.resources)
    if len(found) == 1:
        return found[0], None
    sized = partial(size_job, job, size, snapshot.history, pipeline=job_run.pipeline)
    readings = readings_of(control, (entry.artifact for entry in inputs))
    candidates = [
        Candidate(resource=one, sizing=sized(resource=one, largest=snapshot.largest(one.site)))
        for one in found
    ]
    told = alternatives(
        job,
        candidates,
        snapshot,
        control.now(),
        pipeline=job_run.pipeline,
        size=size,
        readings=readings,
        back_bytes=made_before(control, job_run.name),
        away=control.away,
        crowded=crowded_among(control, found),
        project=job_run.project,
        standing=job_run if standing else None,
    )
    choice = choose(told, job_run.resource if standing else "", job_run.moves)
    return next(one for one in found if one.name == choice.resource), choice


def crowded_among(control: Control, resources: Iterable[Resource]) -> tuple[str, ...]:
    """Those at farms at which deployments of anybody wait, or too few GPUs are free."""
    looks = ((one, control.farms.get(one.site)) for one in resources)
    return tuple(one.name for one, look in looks if look is not None and is_crowded(look, gpus_of(one)))


def readings_of(control: Control, artifacts: Iterable[Artifact]) -> tuple[Reading, ...]:
    """What is known of versions, by the records of what was carried where."""
    sites = [one for one in control.ledger.snapshot.sites.values() if one.kind in ELSEWHERE]
    return tuple(
        Reading(
            name=one.name.rpartition("/")[2],
            size_bytes=one.output.size_bytes,
            lacking={site.name: _lacking(control, one, site) for site in sites},
        )
        for one in artifacts
        if one.output.uri
    )


def _lacking(control: Control, artifact: Artifact, site: Site) -> int:
    """A sink only grows: of its newest version that is there, all is there."""
    staged = site.way.staged if site.way is not None else ()
    size_bytes = artifact.output.size_bytes
    if artifact.id in staged:
        return 0
    same = next((one for one in reversed(staged) if one.rpartition("@")[0] == artifact.name), None)
    if same is None or artifact.kind != ArtifactKind.SINK:
        return size_bytes
    try:
        return max(0, size_bytes - fetch_artifact(control, same).output.size_bytes)
    except NotFoundError:
        return size_bytes


def made_before(control: Control, name: str) -> int | None:
    """Bytes of the newest version of what a job makes; None where it never made any."""
    newest = control.newest_artifact(name)
    return newest.output.size_bytes if newest is not None else None


def look_elsewhere(control: Control) -> float:
    """Jobs that wait, and may go to several resources, go where they are done sooner, if that is worth it.
    Seconds until they are to be looked at again."""
    now = control.clock.monotonic()
    known = control.ledger.snapshot.job_runs
    control.choosing = {key for key in control.choosing if key in known}
    waiting = [known[key] for key in sorted(control.choosing) if _may_move(known[key])]
    if not waiting:
        return float("inf")
    if now >= control.next_choice:
        control.next_choice = now + LOOK_AGAIN_SECONDS
        transaction = control.begin()
        for job_run in waiting:
            _look_elsewhere(control, transaction, job_run)
        control.ledger.commit(transaction)
    return control.next_choice - now


def _may_move(job_run: JobRun) -> bool:
    """One whose memory was raised after a kill keeps the resource where that was learned."""
    whole = job_run.part is None and not job_run.parts and not job_run.memory_kills
    return job_run.state is JobState.WAITING and bool(job_run.job.resources) and whole


def _look_elsewhere(control: Control, transaction: Transaction, job_run: JobRun) -> None:
    size = job_run.size or JobSize()
    try:
        inputs = inputs_of(control, transaction, job_run)
        resource, choice = chosen_resource(control, job_run, inputs, size, standing=True)
    except GridmillError:
        return  # it says so where it stands, when it begins
    if choice is None or resource.name == job_run.resource:
        return
    sizing = size_job(
        job_run.job,
        size,
        control.ledger.snapshot.history,
        pipeline=job_run.pipeline,
        resource=resource,
        largest=control.ledger.snapshot.largest(resource.site),
    )
    moved = replace(job_run, resource=resource.name, sizing=with_choice(sizing, choice))
    transaction.put(replace(moved, moves=job_run.moves + 1))


def with_choice(sizing: Sizing, choice: Choice | None) -> Sizing:
    """The size, which also says why the job goes there."""
    return sizing if choice is None else replace(sizing, why=(*sizing.why, choice.why))
