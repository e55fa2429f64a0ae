"""This module chooses the jobs whose inputs are transferred to a machine while other jobs still run there."""

from collections.abc import Iterator
from itertools import islice

from gridmill.domain.frozen import dataclass
from gridmill.domain.site import SiteKind
from gridmill.scheduler.draft import DraftPlan, lasts
from gridmill.scheduler.lane import Lane
from gridmill.scheduler.plan import line_of
from gridmill.scheduler.queue import JOB_CLASS, JOB_RUN_ID, Ticket
from gridmill.scheduler.snapshot import Snapshot

_MOST_JOBS = 1000
"""At most this many waiting jobs are examined, because most of them start much later."""
EARLY_KINDS = frozenset({SiteKind.CLUSTER, SiteKind.CLOUD})
"""The kinds of sites to which this home transfers inputs, and where a pod runs several jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextJob:
    """A waiting job, and the busy pod on which it will probably start."""

    job_run_id: str
    pod_id: str


def next_jobs(snapshot: Snapshot, now: float) -> tuple[NextJob, ...]:
    """Return the job that will probably start next on each busy pod at a farm or on a rented machine, in the
    order of the plan. A pod has at most one next job.

    The first jobs of a resource are skipped if as many of its pods are starting, because they will start on
    those pods. Gangs are skipped. The function is pure.
    """
    sites = {site.name for site in snapshot.sites.values() if site.kind in EARLY_KINDS}
    names = [name for name in snapshot.lines.waiting if sites and name in snapshot.places.open]
    draft = DraftPlan(snapshot, now, None)
    lanes = {name: lane for name in sorted(names) if (lane := draft.lane(name)) is not None}
    pods = {name: _busy_pods(snapshot, lane) for name, lane in lanes.items() if lane.resource.site in sites}
    lanes = {name: lanes[name] for name, some in pods.items() if some}
    return tuple(_chosen(draft, lanes, pods)) if lanes else ()


def _busy_pods(snapshot: Snapshot, lane: Lane) -> list[str]:
    """Return the pods of a resource that run jobs. The pod whose last job started first comes first, because
    it probably becomes free first."""
    placed = {
        pod_id: max((one.placed for one in snapshot.attempts_on(pod_id)), default=None)
        for pod_id, _ in lane.up.items()
    }
    return [pod_id for _, pod_id in sorted((at, pod_id) for pod_id, at in placed.items() if at is not None)]


def _chosen(draft: DraftPlan, lanes: dict[str, Lane], pods: dict[str, list[str]]) -> Iterator[NextJob]:
    line = line_of(draft, lanes)
    for lane in lanes.values():
        line.join(lane)
    coming = {name: len(lane.coming) for name, lane in lanes.items()}
    for ticket, lane in islice(line.in_order(), _MOST_JOBS):
        standing = draft.standing_of(ticket[JOB_CLASS])
        if not pods[lane.name]:
            line.leave()
        elif standing is not None and standing.is_closed_to(ticket):
            line.leave_with_class(lane)
        elif not draft.can_start(ticket[JOB_RUN_ID]) or ticket[JOB_CLASS].demand.workers > 1:
            line.move_on(lane)
        elif coming[lane.name]:
            coming[lane.name] -= 1
            line.move_on(lane)
        else:
            pod_id = _pod_for(draft, lane, ticket, pods[lane.name])
            if pod_id is not None:
                pods[lane.name].remove(pod_id)
                yield NextJob(job_run_id=ticket[JOB_RUN_ID], pod_id=pod_id)
            line.move_on(lane)


def _pod_for(draft: DraftPlan, lane: Lane, ticket: Ticket, pod_ids: list[str]) -> str | None:
    """Return the first pod that is large enough for the job when it is empty, and that lives long enough."""
    demand = ticket[JOB_CLASS].demand
    expected = draft.snapshot.job_runs[ticket[JOB_RUN_ID]].sizing.expected_seconds
    for pod_id in pod_ids:
        whole = lane.up.slot(pod_id).whole
        is_large = whole.capacity.memory_bytes >= demand.memory_bytes and whole.capacity.gpus >= demand.gpus
        is_its_node = not demand.node or demand.node == whole.node
        if is_large and is_its_node and (expected is None or lasts(draft, pod_id, expected)):
            return pod_id
    return None
