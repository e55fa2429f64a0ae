"""How long a job would wait at a resource where it does not stand in line yet."""

from gridmill.model.resource import Resource
from gridmill.model.run import JobRun
from gridmill.planning.bring_up import can_bring_up
from gridmill.planning.draft import Draft
from gridmill.planning.lane import find_pod
from gridmill.planning.queue import Demand, demand_of
from gridmill.planning.snapshot import Snapshot
from gridmill.planning.waits import Waits


def joining_seconds(
    snapshot: Snapshot, now: float, resource: Resource, demand: Demand, *, crowded: bool = False
) -> float | None:
    """About when it could start there, in seconds from now, behind all that wait there; None where that
    cannot be told. What a pod takes to come up is not counted. `crowded`: others have its site's room."""
    line = snapshot.lines.waiting.get(resource.name)
    if resource.name not in snapshot.resources:
        return 0.0
    if line is None or not len(line):
        draft = Draft(snapshot, now, None)
        lane = draft.lane(resource.name)
        if lane is None:
            return None
        if find_pod(lane.open, demand) is not None:
            return 0.0
        coming = find_pod(lane.coming, demand)
        if coming is not None:
            return _coming_seconds(snapshot, now, coming[2])
        if can_bring_up(draft, lane, demand) or _has_idle(snapshot, resource.site):
            return None if crowded else 0.0
    return Waits(snapshot, now).behind(resource.name, demand)


def standing_seconds(snapshot: Snapshot, now: float, job_run: JobRun) -> float:
    """The same where it stands in line: where it cannot be told, as long again as it has waited."""
    known = Waits(snapshot, now).of(job_run.id)
    if known is not None:
        return known.likely
    demand, places = demand_of(job_run), snapshot.places
    pods = places.open.get(job_run.resource)
    if pods is not None and find_pod(pods, demand) is not None:
        return 0.0
    pods = places.coming.get(job_run.resource)
    coming = find_pod(pods, demand) if pods is not None else None
    if coming is not None:
        return _coming_seconds(snapshot, now, coming[2])
    return max(0.0, now - job_run.ready) if job_run.ready is not None else 0.0


def _coming_seconds(snapshot: Snapshot, now: float, pod_id: str) -> float:
    """As long again as it has been coming up: others may stand in line at its site."""
    return max(0.0, now - snapshot.deployments[snapshot.places.owners[pod_id]].created)


def _has_idle(snapshot: Snapshot, site: str) -> bool:
    """A deployment that can be given back for another."""
    return any(
        snapshot.deployments[key].site == site
        for entries in snapshot.places.idle.values()
        for _, key in entries
    )
