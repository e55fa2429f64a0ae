"""This module chooses the resource of a job that may use several resources, and moves the job to another
resource."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Transaction
from gridmill.control.state import JobMoves, SiteStates
from gridmill.control.steps.end_attempt import defect
from gridmill.control.steps.inputs import inputs_of
from gridmill.control.steps.job_terms import awaits_offers, choice_within_terms
from gridmill.control.steps.parts import cut
from gridmill.control.steps.references import fetch_artifact
from gridmill.control.steps.run_lifecycle import resources_for
from gridmill.domain.artifact import Artifact, ArtifactKind, Input
from gridmill.domain.farm_protocol import QueuePosition, line_at
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobSize
from gridmill.domain.lease_cost import PROJECT, RESOURCE
from gridmill.domain.plan import Refuse
from gridmill.domain.resource import Resource, ResourceAlternative, ResourceChoice, Sizing
from gridmill.domain.run import JobRun
from gridmill.domain.site import ELSEWHERE, PAID, Site, SiteKind
from gridmill.domain.states import FINISHED_JOBS, JobState
from gridmill.errors import GridmillError, NotFoundError, PipelineError
from gridmill.scheduler.alternatives import CachedForecasts, ResourceCandidate, alternatives, demand_at
from gridmill.scheduler.feasibility import asked_of, gpus_of
from gridmill.scheduler.site_choice import InputVersion, choose
from gridmill.scheduler.sizing import size_job
from gridmill.scheduler.snapshot import Snapshot

MOST_MOVES = 8
"""If a job has moved to another resource this many times and is refused at its resource, the job fails."""


def chosen_resource(
    moves: JobMoves,
    joining: CachedForecasts,
    job_run: JobRun,
    inputs: Sequence[Input],
    size: JobSize,
    *,
    standing: bool = False,
    refused: str = "",
) -> tuple[Resource, ResourceChoice | None]:
    """Return the resource that is chosen for a ready job, and the reason for the choice if the job may use
    several resources. If `standing` is true, the job is already in the queue of its resource. `refused` is
    the reason why the job can never run on that resource. Raises PipelineError if a resource of the job was
    removed."""
    snapshot, job = joining.snapshot, job_run.job
    resources = resources_for(job, job_run.pipeline, snapshot.resources)
    if len(resources) == 1 and not job.has_terms:
        return resources[0], None
    readings = readings_of(moves.catalog, (entry.artifact for entry in inputs))
    sizings = {one.name: _sized(snapshot, job_run, size, one) for one in resources}
    options = alternatives(
        job,
        [ResourceCandidate(resource=one, sizing=sizings[one.name]) for one in resources],
        joining,
        pipeline=job_run.pipeline,
        size=size,
        readings=readings,
        back_bytes=made_before(moves.catalog, job_run.name),
        away=moves.site_states.unreachable,
        crowded=crowded_among(moves.site_states, resources),
        project=job_run.project,
        standing=job_run if standing else None,
    )
    options = tuple(_within_budget(moves, snapshot, one, job_run.project) for one in options)
    if refused:
        options = tuple(
            replace(one, problem=refused) if one.resource == job_run.resource else one for one in options
        )
    choice = choose(options, job_run.resource if standing else "", job_run.moves)
    if job.has_terms:
        named = {one.name: one for one in resources}
        now = moves.timeline.now()
        choice = choice_within_terms(
            moves.ledger, moves.rentals, job_run, choice, named, sizings, now, standing=standing
        )
    chosen = next(one for one in resources if one.name == choice.resource)
    if not standing or chosen.name != job_run.resource:
        demand = demand_at(job, sizings[chosen.name], job_run.project)
        joining.send(chosen, demand, choice.chosen.run_seconds or 0.0)
    return chosen, choice


def _within_budget(
    moves: JobMoves, snapshot: Snapshot, one: ResourceAlternative, project: str
) -> ResourceAlternative:
    """Return the alternative as unreachable if no machine is rented for it now, because the budget of the
    resource or of the project is used up, and no machine of the resource is up."""
    site, used = snapshot.sites.get(one.site), moves.rentals.used_budgets
    is_halted = (RESOURCE, one.resource) in used or (PROJECT, project) in used
    if (
        not is_halted
        or site is None
        or site.kind not in PAID
        or (site.kind is SiteKind.CLOUD and one.resource in snapshot.places.open)
    ):
        return one
    return replace(one, unreachable=one.unreachable or "rents no machine, because a budget is used up")


def joining_now(moves: JobMoves) -> CachedForecasts:
    """Return the expected wait at each resource."""
    return CachedForecasts(moves.ledger.snapshot, moves.timeline.now(), coming_at_farms(moves.site_states))


def _sized(snapshot: Snapshot, job_run: JobRun, size: JobSize, resource: Resource) -> Sizing:
    site = snapshot.sites.get(resource.site)
    return size_job(
        job_run.job,
        size,
        snapshot.history,
        pipeline=job_run.pipeline,
        resource=resource,
        largest=asked_of(snapshot, resource, snapshot.largest(resource.site)),
        nodes=len(site.nodes) if site else 1,
    )


def crowded_among(sites_seen: SiteStates, resources: Iterable[Resource]) -> Mapping[str, QueuePosition]:
    """Return the resources of farms whose deployments wait in a queue or that have too few free GPUs, each
    with the position that a new deployment would have in the queue."""
    looks = ((one, sites_seen.farm_statuses.get(one.site)) for one in resources)
    lines = ((one.name, line_at(look, gpus_of(one))) for one, look in looks if look is not None)
    return {name: line for name, line in lines if line is not None}


def coming_at_farms(sites_seen: SiteStates) -> Mapping[str, float]:
    """Return the seconds until farms expect to be able to start waiting deployments, by deployment id."""
    queued = [one for look in tuple(sites_seen.farm_statuses.values()) for one in look.queue]
    return {one.deployment: one.seconds for one in queued if one.seconds is not None}


def readings_of(catalog: Catalog, artifacts: Iterable[Artifact]) -> tuple[InputVersion, ...]:
    """Return the sizes of versions, and the number of bytes that each site does not have according to the
    records of transfers."""
    sites = [one for one in catalog.ledger.snapshot.sites.values() if one.kind in ELSEWHERE]
    return tuple(
        InputVersion(
            name=one.name.rpartition("/")[2],
            size_bytes=one.output.size_bytes,
            missing_bytes={site.name: _missing_bytes(catalog, one, site) for site in sites},
        )
        for one in artifacts
        if one.output.uri
    )


def _missing_bytes(catalog: Catalog, artifact: Artifact, site: Site) -> int:
    """Return the number of bytes of a version that a site does not have. The table of a sink only grows, so
    a site that has an earlier version needs only the added bytes."""
    staged = site.route.staged if site.route is not None else ()
    size_bytes = artifact.output.size_bytes
    if artifact.id in staged:
        return 0
    same = next((one for one in reversed(staged) if one.rpartition("@")[0] == artifact.name), None)
    if same is None or artifact.kind != ArtifactKind.SINK:
        return size_bytes
    try:
        return max(0, size_bytes - fetch_artifact(catalog, same).output.size_bytes)
    except NotFoundError:
        return size_bytes


def made_before(catalog: Catalog, name: str) -> int | None:
    """Return the size in bytes of the newest version of a job. The result is None if the job has no
    version."""
    newest = catalog.newest_artifact(name)
    return newest.output.size_bytes if newest is not None else None


def may_move(job_run: JobRun) -> bool:
    """Return whether the job may move to another resource. If the memory of a job was raised after a kill,
    the job stays on its resource, because this size was measured there."""
    whole = job_run.part is None and not job_run.parts and not job_run.memory_kills
    return job_run.state is JobState.WAITING and bool(job_run.job.resources) and whole


def move(
    moves: JobMoves,
    joining: CachedForecasts,
    transaction: Transaction,
    job_run: JobRun,
    *,
    refused: str = "",
) -> bool:
    """Move a waiting job to another resource, if this gains enough time. The function returns whether the
    job has moved. `refused` is the reason why the job can never run on its present resource."""
    within = transaction.within()
    try:
        after = _moved(moves, joining, within, job_run, refused)
    except GridmillError:
        return False  # no error here, because the job reports this error at its resource when it starts
    except Exception as error:  # noqa: BLE001  the error would block all other jobs in each tick
        defect(moves.problems, job_run.id, error)
        moves.choices.choosing.discard(job_run.id)
        return False
    if after is None or after.state in FINISHED_JOBS:
        return False
    within.put(after)
    transaction.join(within)
    return True


def _moved(
    moves: JobMoves,
    joining: CachedForecasts,
    transaction: Transaction,
    job_run: JobRun,
    refused: str,
) -> JobRun | None:
    """Return the job for the other resource. The job is divided into parts if it ends sooner there in parts.
    The result is None if the job stays on its resource."""
    size, inputs = job_run.size or JobSize(), inputs_of(moves.catalog, transaction, job_run)
    resource, choice = chosen_resource(moves, joining, job_run, inputs, size, standing=True, refused=refused)
    if choice is None or resource.name == job_run.resource or choice.chosen.problem:
        return None
    sizing = with_choice(_sized(joining.snapshot, job_run, size, resource), choice)
    moved = replace(job_run, resource=resource.name, sizing=sizing, moves=job_run.moves + 1)
    return cut(moves.ledger, transaction, moved)


def terms_not_met(moves: JobMoves) -> Iterator[Refuse]:
    """Check the waiting jobs whose deadline and budget could not be checked when they became ready, because
    the offers of a cloud site were not read yet. The function yields the jobs that no resource can run within
    their budget."""
    snapshot, unchecked = moves.ledger.snapshot, moves.choices.unchecked
    for key in sorted(unchecked):
        job_run = snapshot.job_runs.get(key)
        if job_run is None or job_run.state is not JobState.WAITING:
            if job_run is None or job_run.state in FINISHED_JOBS:
                unchecked.discard(key)
            continue
        try:
            resources = resources_for(job_run.job, job_run.pipeline, snapshot.resources)
            if awaits_offers(snapshot, resources):
                continue
            unchecked.discard(key)
            inputs = inputs_of(moves.catalog, moves.ledger.begin(moves.timeline.now()), job_run)
            size = job_run.size or JobSize()
            chosen_resource(moves, joining_now(moves), job_run, inputs, size, standing=True)
        except PipelineError as error:
            unchecked.discard(key)
            yield Refuse(job_run_id=key, message=str(error), hint=error.hint)


def may_flee(job_run: JobRun) -> bool:
    """Return whether a job that can never run on its resource may move to another resource. A refused job
    can move to other resources only a limited number of times."""
    return may_move(job_run) and job_run.moves < MOST_MOVES


def with_choice(sizing: Sizing, choice: ResourceChoice | None) -> Sizing:
    """Return the sizing of the job, with the reason for its resource."""
    return sizing if choice is None else replace(sizing, why=(*sizing.why, choice.why))
