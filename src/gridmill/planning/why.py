"""Why a job does not run: a sentence for people, made when somebody asks."""

from gridmill.model.amounts import Amounts, show_bytes, show_count, show_seconds
from gridmill.model.job import JobKind
from gridmill.model.resource import Resource
from gridmill.model.run import JobRun
from gridmill.model.state import DONE_JOBS, JobState, RunState
from gridmill.planning.bring_up import PART_OF_CPU
from gridmill.planning.fair import over
from gridmill.planning.limits import fits_now, gpus_of, problem_of, problem_of_resource, show
from gridmill.planning.places import Tally
from gridmill.planning.queue import Demand, demand_of, rank_of
from gridmill.planning.room import Pods
from gridmill.planning.snapshot import Snapshot
from gridmill.planning.waits import forecast_quota, forecast_wait

_DOING = {
    JobKind.SINK: "is loading",
    JobKind.DATASET: "is building",
    JobKind.TRAINING: "is training",
    JobKind.PREDICTION: "is writing",
    JobKind.COMMAND: "is running",
}


def why_waiting(snapshot: Snapshot, job_run_id: str, now: float) -> str:
    """What a blocked or waiting job waits for; empty for any other."""
    job_run = snapshot.job_runs.get(job_run_id)
    if job_run is None:
        return ""
    if job_run.state is JobState.BLOCKED:
        return _why_blocked(snapshot, job_run)
    return _why_not_placed(snapshot, job_run, now) if job_run.state is JobState.WAITING else ""


def _why_blocked(snapshot: Snapshot, job_run: JobRun) -> str:
    needs = [snapshot.job_runs[need] for need in job_run.needs if need in snapshot.job_runs]
    missing = [f"`{need.job.name}` ({need.state})" for need in needs if need.state not in DONE_JOBS]
    return f"waits for {', '.join(missing)}" if missing else "is about to be looked at"


def _why_not_placed(snapshot: Snapshot, job_run: JobRun, now: float) -> str:
    run = snapshot.runs.get(job_run.run_id)
    if run is None or run.state is not RunState.ACTIVE:
        return "its run is stopping"
    if job_run.not_before > now:
        return f"held back {show_seconds(job_run.not_before - now)} more after a failure"
    other = snapshot.job_runs.get(
        snapshot.lines.turns.before(snapshot.lines.turn_of(job_run), job_run.id) or ""
    )
    if other is not None:
        doing = _DOING[job_run.job.kind] if other.state is JobState.RUNNING else "comes first with"
        return f"another run ({other.run_id}) {doing} {job_run.name}"
    demand = demand_of(job_run)
    resource = snapshot.resource_of(job_run.resource, demand.kind)
    problem = problem_of_resource(snapshot, job_run.resource, resource)
    if resource is None or problem is not None:
        return problem.message if problem else ""
    problem = problem_of(snapshot, resource, demand)
    if problem is not None:
        return problem.message
    quota = _why_quota(snapshot, job_run, demand, now)
    if quota:
        return quota
    before = _before(snapshot, job_run)
    wait = forecast_wait(snapshot, job_run.id, now)
    told = job_run.message if job_run.interruptions else ""
    parts = (told, _why_no_room(snapshot, resource, demand), before, "" if wait is None else str(wait))
    return "; ".join(part for part in parts if part)


def _why_quota(snapshot: Snapshot, job_run: JobRun, demand: Demand, now: float) -> str:
    """`quota of project vision: 4 of 4 GPUs in use; about 12 m 00 s`."""
    project = snapshot.projects.get(job_run.project)
    bounds = over(project, snapshot.places.tallies.get(project.name, Tally()), demand) if project else []
    if not bounds:
        return ""
    wait = forecast_quota(snapshot, job_run, now)
    parts = (", ".join(bound.text for bound in bounds), "" if wait is None else str(wait))
    return f"quota of project {job_run.project}: {'; '.join(part for part in parts if part)}"


def _before(snapshot: Snapshot, job_run: JobRun) -> str:
    """`3 jobs before it`: of the same resource; where several projects wait, of its own."""
    queue = snapshot.lines.waiting.get(job_run.resource)
    run = snapshot.runs.get(job_run.run_id)
    if queue is None or run is None:
        return ""
    rank = rank_of(job_run, run)
    several = len(queue.projects) > 1
    groups = [group for group in queue.classes.values() if group.demand.project == job_run.project]
    count = sum(group.members.count_before(rank) for group in (groups if several else queue.classes.values()))
    whose = f" of project {job_run.project}" if several else ""
    return f"{show_count(count, 'job')}{whose} before it" if count else ""


def _why_no_room(snapshot: Snapshot, resource: Resource, demand: Demand) -> str:
    open_pods = snapshot.places.open.get(resource.name)
    coming = snapshot.places.coming.get(resource.name)
    if open_pods is not None and demand.workers > 1 and coming is None:
        free = open_pods.places(demand.memory_bytes, demand.gpus)
        if free < demand.workers:
            return f"needs {demand.workers} places at once for its workers; `{resource.name}` has {free} free"
    if open_pods is not None:
        why = _why_not_in_pods(open_pods, resource, demand)
        if coming is not None:
            why += f"; more of `{resource.name}` is coming up"
        return why
    if coming is not None:
        return f"`{resource.name}` is coming up{_what_keeps(snapshot, coming)}"
    return _why_not_brought_up(snapshot, resource, demand)


def _what_keeps(snapshot: Snapshot, coming: Pods) -> str:
    """What the site says of a pod that is not up yet: `: waits in Slurm's queue (reason: Priority)`."""
    for pod_id, slot in coming.items():
        pods = snapshot.deployments[slot.whole.deployment_id].pods
        said = next((pod.message for pod in pods if pod.id == pod_id), "")
        if said:
            return f": {said}"
    return ""


def _why_not_in_pods(pods: Pods, resource: Resource, demand: Demand) -> str:
    slots = [slot for _, slot in pods.items()]
    roomy = [slot for slot in slots if slot.free_memory >= demand.memory_bytes]
    if not roomy:
        most = max(slot.free_memory for slot in slots)
        return (
            f"needs {show_bytes(demand.memory_bytes)}; "
            f"the largest free pod of `{resource.name}` has {show_bytes(max(0, most))}"
        )
    if all(slot.free_gpus < demand.gpus for slot in roomy):
        return f"needs {demand.gpus} GPUs; those of `{resource.name}` are in use"
    if all(slot.is_full for slot in roomy):
        most_at_once = sum(slot.whole.most for slot in slots)
        return f"`{resource.name}` runs {most_at_once} jobs, as many as its CPUs are good for"
    return "is about to start"


def _why_not_brought_up(snapshot: Snapshot, resource: Resource, demand: Demand) -> str:
    site = snapshot.sites[resource.site]
    if not site.nodes:
        return f"site {site.name} has no nodes now"
    needed = max(resource.memory_bytes or 0, demand.memory_bytes)
    asked = Amounts(
        cpus=max(resource.cpus or 0.0, demand.cpus or 0.0), memory_bytes=needed, gpus=gpus_of(resource)
    )
    if not fits_now(snapshot, site.name, asked):
        return (
            f"needs {show(asked)} for `{resource.name}`: a node of site {site.name} that has so much is away"
        )
    nodes = snapshot.places.nodes[site.name]
    free = [
        amounts.memory_bytes
        for _, amounts in nodes.items()
        if amounts.cpus >= min(PART_OF_CPU, snapshot.largest(site.name).cpus)
    ]
    most = max(free, default=0)
    if most >= needed:
        return f"`{resource.name}` is about to be brought up"
    return (
        f"needs {show_bytes(needed)} for `{resource.name}`; other deployments leave "
        f"{show_bytes(max(0, most))} at site {site.name}"
    )
