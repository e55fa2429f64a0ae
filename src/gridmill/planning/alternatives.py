"""What is expected of a job at each of the resources that it may go to."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from gridmill.model.choice import Alternative
from gridmill.model.farm import Line
from gridmill.model.job import Job, JobSize
from gridmill.model.noun import dataclass
from gridmill.model.project import DEFAULT
from gridmill.model.resource import Resource, Sizing
from gridmill.model.run import JobRun
from gridmill.planning.choice import labels
from gridmill.planning.forecast import seconds_there
from gridmill.planning.joining import Joining
from gridmill.planning.limits import problem_of, problem_of_resource
from gridmill.planning.queue import Demand
from gridmill.planning.sizing import subject_of
from gridmill.planning.snapshot import Snapshot
from gridmill.planning.travel import Reading, travel

AWAY = "does not answer"
NOBODY: Mapping[str, Line] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A resource, and the size that the job would have there."""

    resource: Resource
    sizing: Sizing


def alternatives(
    job: Job,
    candidates: Sequence[Candidate],
    joining: Joining,
    *,
    pipeline: str,
    size: JobSize,
    readings: Sequence[Reading],
    back_bytes: int | None,
    away: Collection[str] = (),
    crowded: Mapping[str, Line] = NOBODY,
    sites: Mapping[str, str] | None = None,
    project: str = DEFAULT,
    standing: JobRun | None = None,
) -> tuple[Alternative, ...]:
    """One for each candidate, in their order. `away` are sites that do not answer, `sites` where jobs of the
    same run are to run, by job; `crowded` are resources whose room at a farm others have, and the line
    there. `standing` is the job where it stands in line already."""
    snapshot = joining.snapshot
    called = labels([one.resource for one in candidates])
    name, subject = f"{pipeline}/{job.name}", subject_of(job, pipeline)
    made: list[Alternative] = []
    for one in candidates:
        resource, demand = one.resource, demand_there(job, one.sizing, project)
        stands = standing if standing is not None and standing.resource == resource.name else None
        site, line = snapshot.sites.get(resource.site), crowded.get(resource.name)
        wait = (
            joining.standing_seconds(stands)
            if stands is not None
            else joining.seconds(resource, demand, line=line)
        )
        made.append(
            Alternative(
                resource=resource.name,
                site=resource.site,
                label=called[resource.name],
                run_seconds=seconds_there(name, subject, size, snapshot.history, resource),
                wait_seconds=wait,
                before=line.before if line is not None and stands is None and wait == line.seconds else 0,
                travel=(
                    travel(readings, back_bytes, site, sites or {}, resource.staging)
                    if site is not None
                    else None
                ),
                problem=_problem(snapshot, resource, demand),
                away=AWAY if resource.site in away else "",
            )
        )
    return tuple(made)


def demand_there(job: Job, sizing: Sizing, project: str) -> Demand:
    """What it asks for where it has that size."""
    asked = sizing.amounts
    return Demand(
        asked.memory_bytes,
        asked.gpus,
        job.cpus or 0.0,
        job.priority,
        job.kind,
        workers=job.gang or 1,
        project=project,
    )


def _problem(snapshot: Snapshot, resource: Resource, demand: Demand) -> str:
    found = problem_of_resource(snapshot, resource.name, resource)
    found = found or problem_of(snapshot, resource, demand)
    return found.message if found is not None else ""
