"""This module explains in a sentence why a job is not running. The sentence is computed when a reader
requests it."""

from collections.abc import Iterator

from gridmill.domain.amounts import Amounts, show_bytes, show_count, show_seconds
from gridmill.domain.job import JobKind, When
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun
from gridmill.domain.site import Site
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, JobState, RunState
from gridmill.scheduler.capacity import Nodes, Pods, most_jobs
from gridmill.scheduler.capacity_index import ProjectTotals
from gridmill.scheduler.fair_share import ProjectShares, bounds
from gridmill.scheduler.feasibility import fits_now, gpus_of, problem_of, problem_of_resource, show
from gridmill.scheduler.provisioning import PART_OF_CPU
from gridmill.scheduler.queue import Demand, QuotaClaim, demand_of, rank_of
from gridmill.scheduler.snapshot import Snapshot
from gridmill.scheduler.wait_estimate import WaitForecasts

_DOING = {
    JobKind.SINK: "is loading",
    JobKind.DATASET: "is building",
    JobKind.TRAINING: "is training",
    JobKind.PREDICTION: "is writing",
    JobKind.SERVICE: "is serving",
    JobKind.COMMAND: "is running",
}


def why_waiting(snapshot: Snapshot, job_run_id: str, now: float, waits: WaitForecasts | None = None) -> str:
    """Return the reason why a blocked or waiting job does not run. The result is empty for a job in any
    other state. `waits` are forecasts for the same snapshot and time; one such object can be passed to the
    calls for several jobs."""
    job_run = snapshot.job_runs.get(job_run_id)
    if job_run is None:
        return ""
    if job_run.state is JobState.BLOCKED:
        return _why_blocked(snapshot, job_run)
    if job_run.state is not JobState.WAITING:
        return ""
    return _why_not_placed(snapshot, job_run, now, WaitForecasts(snapshot, now) if waits is None else waits)


def _why_blocked(snapshot: Snapshot, job_run: JobRun) -> str:
    needs = [snapshot.job_runs[need] for need in job_run.needs if need in snapshot.job_runs]
    over = DONE_JOBS if job_run.job.when is When.SUCCESS else FINISHED_JOBS
    missing = [f"`{need.job.name}` ({need.state})" for need in needs if need.state not in over]
    return f"waits for {', '.join(missing)}" if missing else "is ready and starts with the next plan"


def _why_not_placed(snapshot: Snapshot, job_run: JobRun, now: float, waits: WaitForecasts) -> str:
    run = snapshot.runs.get(job_run.run_id)
    if run is None or run.state is not RunState.ACTIVE:
        return "its run is stopping"
    if job_run.not_before > now:
        return f"retries in {show_seconds(job_run.not_before - now)} after a failure"
    other = snapshot.job_runs.get(
        snapshot.lines.turns.before(snapshot.lines.turn_of(job_run), job_run.id) or ""
    )
    if other is not None:
        doing = _DOING[job_run.job.kind] if other.state is JobState.RUNNING else "is first in the queue for"
        return f"another run ({other.run_id}) {doing} {job_run.name}"
    demand = demand_of(job_run)
    resource = snapshot.resource_of(job_run.resource, demand.kind)
    problem = problem_of_resource(snapshot, job_run.resource, resource)
    if resource is None or problem is not None:
        return problem.message if problem else ""
    problem = problem_of(snapshot, resource, demand)
    if problem is not None:
        return problem.message
    message = job_run.message if job_run.interruptions else ""
    quota = _why_quota(snapshot, job_run, demand)
    room = (
        _why_no_room(snapshot, resource, demand),
        _what_is_broken(snapshot, resource.name),
        *_before(snapshot, job_run, now),
    )
    wait = waits.of(job_run.id)
    parts = (message, *((quota,) if quota else room), "" if wait is None else str(wait))
    return "; ".join(part for part in parts if part)


def _why_quota(snapshot: Snapshot, job_run: JobRun, demand: Demand) -> str:
    """Return a text about the part of the quota that is in use, such as `quota of project vision: 4 of 4
    GPUs in use`."""
    project = snapshot.projects.get(job_run.project)
    if project is None:
        return ""
    limits = bounds(project, snapshot.places.tallies.get(project.name, ProjectTotals()), QuotaClaim(demand))
    in_use = ", ".join(bound.in_use for bound in limits)
    return f"quota of project {project.name}: {in_use}" if in_use else ""


def _before(snapshot: Snapshot, job_run: JobRun, now: float) -> Iterator[str]:
    """Return the number of jobs before this job at its resource, such as `3 jobs before it`. If jobs of
    several projects wait, only jobs of the same project are counted, and the text names a project that comes
    first, for example `project vision used less of its share`."""
    queue = snapshot.lines.waiting.get(job_run.resource)
    run = snapshot.runs.get(job_run.run_id)
    if queue is None or run is None:
        return
    rank, own = rank_of(job_run, run), job_run.project
    several = len(queue.heads) > 1
    groups = [group for group in queue.classes.values() if not several or group.demand.project == own]
    count = sum(group.members.count_before(rank) for group in groups)
    if count:
        yield f"{show_count(count, 'job')}{f' of project {own}' if several else ''} before it"
    if several:
        shares = ProjectShares(snapshot, now)
        score = shares[own].score
        less = [name for name in sorted(queue.heads) if shares[name].score < score]
        if less:
            whose = f"project {less[0]}" if len(less) == 1 else f"{len(less)} projects"
            yield f"{whose} used less of {'its share' if len(less) == 1 else 'their shares'}"


def _why_no_room(snapshot: Snapshot, resource: Resource, demand: Demand) -> str:
    open_pods = snapshot.places.open.get(resource.name)
    coming = snapshot.places.coming.get(resource.name)
    if open_pods is not None and demand.workers > 1 and coming is None:
        free = open_pods.places(demand.memory_bytes, demand.gpus)
        if free < demand.workers:
            return f"needs room for {demand.workers} workers at once; `{resource.name}` has room for {free}"
    if open_pods is not None:
        why = _why_not_in_pods(open_pods, resource, demand)
        if coming is not None:
            why += f"; another pod of `{resource.name}` is starting"
        return why
    if coming is not None:
        return f"`{resource.name}` is starting{_what_keeps(snapshot, coming)}"
    return _why_not_brought_up(snapshot, resource, demand)


def _what_is_broken(snapshot: Snapshot, resource: str) -> str:
    """Return a text about the broken deployments of a resource, such as `trainers-1 lost a pod, takes no
    more jobs and is released when 2 jobs on it have ended`."""
    places = snapshot.places
    names = sorted({places.owners[pod_id] for pod_id in places.broken.get(resource, ())})
    if not names:
        return ""
    count = sum(len(places.on.get(name, ())) for name in names)
    lost = (
        "lost a pod, takes no more jobs and is released"
        if len(names) == 1
        else "lost pods, take no more jobs and are released"
    )
    until = f"when {show_count(count, 'job')} on it {'has' if count == 1 else 'have'} ended"
    return f"{', '.join(names)} {lost} {until}"


def _what_keeps(snapshot: Snapshot, coming: Pods) -> str:
    """Return the site's report about a pod that is not up yet, such as the reason why the pod waits in
    Slurm's queue; the text begins with a colon."""
    for pod_id, slot in coming.items():
        pods = snapshot.deployments[slot.whole.deployment_id].pods
        message = next((pod.message for pod in pods if pod.id == pod_id), "")
        if message:
            return f": {message}"
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
        return f"needs {show_count(demand.gpus, 'GPU')}; the GPUs of `{resource.name}` are in use"
    if all(slot.is_full for slot in roomy):
        most_at_once = sum(slot.whole.most for slot in slots)
        return f"`{resource.name}` runs {most_at_once} jobs, the most for its CPUs"
    return "is about to start"


def _places_to_come(nodes: Nodes, resource: Resource, amounts: Amounts, demand: Demand) -> int:
    """Return the number of ranks of a gang that would fit into new pods that could start now, but at most
    the number of all ranks."""
    places = 0
    for _, free in nodes.items():
        while amounts.fits_in(free) and free.memory_bytes > 0 and places < demand.workers:
            memory = resource.memory_bytes or free.memory_bytes
            places += min(most_jobs(amounts.cpus or free.cpus), memory // max(1, demand.memory_bytes))
            free -= Amounts(cpus=amounts.cpus or free.cpus, memory_bytes=memory, gpus=amounts.gpus)
    return places


def _rented_all(snapshot: Snapshot, site: Site) -> int | None:
    """Return the largest number of machines of a cloud site if this number of machines is rented, otherwise
    None."""
    if site.most_machines is None:
        return None
    rented = snapshot.rented_machines(site.name)
    return site.most_machines if rented.of_pods + rented.others >= site.most_machines else None


def _why_not_brought_up(snapshot: Snapshot, resource: Resource, demand: Demand) -> str:
    site = snapshot.sites[resource.site]
    if not site.nodes:
        return f"site {site.name} has no nodes now"
    if (machines := _rented_all(snapshot, site)) is not None:
        subject = f"{show_count(machines, 'machine')} of {site.name} {'is' if machines == 1 else 'are'}"
        return f"{subject} rented, which is the limit `max_machines`"
    needed = max(resource.memory_bytes or 0, demand.memory_bytes)
    claimed = Amounts(
        cpus=max(resource.cpus or 0.0, demand.cpus or 0.0), memory_bytes=needed, gpus=gpus_of(resource)
    )
    if not fits_now(snapshot, site.name, claimed):
        return (
            f"needs {show(claimed)} for `{resource.name}`: no node of site {site.name} with so much is"
            f" available now"
        )
    nodes = snapshot.places.nodes[site.name]
    free = [
        amounts.memory_bytes
        for _, amounts in nodes.items()
        if amounts.cpus >= min(PART_OF_CPU, snapshot.largest(site.name).cpus)
    ]
    if not free:
        return f"needs a CPU for `{resource.name}`; other deployments use all CPUs of site {site.name}"
    most = max(free)
    if most >= needed:
        if (
            demand.workers > 1
            and (places := _places_to_come(nodes, resource, claimed, demand)) < demand.workers
        ):
            has = f"site {site.name} has room for {places}"
            return f"needs room for {demand.workers} workers at once; {has}"
        return f"`{resource.name}` is about to start"
    return (
        f"needs {show_bytes(needed)} for `{resource.name}`; other deployments leave "
        f"{show_bytes(max(0, most))} at site {site.name}"
    )
