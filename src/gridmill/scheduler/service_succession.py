"""This module decides when a service on a rented machine gets a successor on another machine, and when the
router changes to it. A machine ends at its limits, or after the notice of a spot machine."""

from collections.abc import Mapping
from enum import Enum
from math import inf

from gridmill.domain.amounts import about, show_count
from gridmill.domain.deployment import Pod
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import Lease
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import Service, ready_replicas
from gridmill.domain.service_succession import Successor, lead_seconds, machine_end
from gridmill.domain.serving import ServiceReport, ServiceState
from gridmill.domain.states import FINISHED_JOBS, JobState, PodState
from gridmill.scheduler.rental_estimate import BOOT_SECONDS, measured_boot
from gridmill.scheduler.snapshot import Snapshot

SETTLE_SECONDS = 3.0
"""The replaced replicas end this many seconds after the router was seen to use the new ones, so that the
router has sent its last request to them."""
_SWITCHED_LATE = "its machine ended before other replicas were ready"


class Step(Enum):
    """The next step of the change of a service to another machine."""

    WAIT = "wait"
    BEGIN = "begin"
    """Replicas start on another machine."""
    CANNOT_BEGIN = "cannot begin"
    """No other machine may be rented now, for the reason in `why`."""
    FORGET_PROBLEM = "forget problem"
    """The machine that ended soon has ended."""
    CALL_OFF = "call off"
    """The replicas on the other machine end, because they cannot run or are not needed."""
    SWITCH = "switch"
    """The replicas on the other machine get the requests from now on."""
    NOTE_SWITCHED = "note switched"
    """The router was seen to use the new replicas."""
    STOP_OLD = "stop old"
    """The replaced replicas answer their last requests and end."""
    FORGET_OLD = "forget old"
    """The replaced replicas have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """A step with its reason. `again_at` is the Unix time at which the decision may differ without an
    event."""

    step: Step = Step.WAIT
    why: str = ""
    again_at: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingService:
    """Everything on which the next step of a service depends. `job_run`, `attempt`, `pod` and `lease` belong
    to the replicas that get the requests, `next_run` and `next_attempt` to the successor, and `old_run` to
    the replicas that were replaced. With `can_reach_next`, the router can connect to the successor.
    `sees_newest` means that the router has read its newest order. `obstacle` is the reason why no further
    machine may be rented; empty if one may. `boot_seconds` is the forecast of the time until a machine is
    ready."""

    service: Service
    job_run: JobRun | None
    attempt: Attempt | None = None
    pod: Pod | None = None
    lease: Lease | None = None
    next_run: JobRun | None = None
    next_attempt: Attempt | None = None
    can_reach_next: bool = False
    old_run: JobRun | None = None
    old_stop_requested: bool = False
    sees_newest: bool = False
    obstacle: str = ""
    boot_seconds: float = BOOT_SECONDS


def decide_step(moving: MovingService, now: float) -> NextStep:
    """Decide the next step of a service. The function is pure."""
    if moving.service.succession.retiring:
        return _decide_old(moving, now)
    successor = moving.service.succession.successor
    if successor is not None:
        return _decide_successor(moving, successor)
    return _decide_begin(moving, now)


def _decide_old(moving: MovingService, now: float) -> NextStep:
    old, switched = moving.old_run, moving.service.succession.switched
    if old is None or old.state in FINISHED_JOBS:
        return NextStep(step=Step.FORGET_OLD)
    if moving.old_stop_requested:
        return NextStep()
    if old.state is not JobState.RUNNING:
        # its machine has ended, and it must not get another one
        return NextStep(step=Step.STOP_OLD)
    if switched is None:
        return NextStep(step=Step.NOTE_SWITCHED) if moving.sees_newest else NextStep()
    if now < switched + SETTLE_SECONDS:
        return NextStep(again_at=switched + SETTLE_SECONDS)
    return NextStep(step=Step.STOP_OLD)


def _decide_successor(moving: MovingService, successor: Successor) -> NextStep:
    next_run, attempt = moving.next_run, moving.attempt
    if next_run is None or next_run.state in FINISHED_JOBS:
        why = next_run.message if next_run is not None else ""
        return NextStep(step=Step.CALL_OFF, why=why or "the replicas on another machine have ended")
    if attempt is not None and attempt.pod_id != successor.replaces:
        return NextStep(step=Step.CALL_OFF)
    if attempt is None and (moving.pod is None or moving.pod.state is PodState.GONE):
        return NextStep(step=Step.SWITCH, why=_SWITCHED_LATE)
    if _is_ready(moving, successor):
        return NextStep(step=Step.SWITCH)
    return NextStep()


def _is_ready(moving: MovingService, successor: Successor) -> bool:
    """Return whether all replicas of the successor have loaded the version and reproduced its golden rows."""
    following = moving.next_attempt
    if following is None or successor.reported_by != following.id or not moving.can_reach_next:
        return False
    return is_in_effect(successor.report, moving.service.generation)


def is_in_effect(report: ServiceReport | None, generation: int) -> bool:
    """Return whether all replicas of this report are ready and serve the order with this generation."""
    if report is None or report.generation < generation:
        return False
    return report.state is ServiceState.READY and ready_replicas(report) > 0


def _decide_begin(moving: MovingService, now: float) -> NextStep:
    service, attempt, lease = moving.service, moving.attempt, moving.lease
    if attempt is None or lease is None or service.succession.refused_for == attempt.pod_id:
        return NextStep()
    spec = moving.job_run.job.service if moving.job_run is not None else None
    if spec is not None and spec.measures_first:
        # there are no replicas to replace yet; they start on a machine that does not end
        return NextStep()
    why, due = _due(moving, lease, now)
    if now < due:
        step = Step.FORGET_PROBLEM if service.succession.problem else Step.WAIT
        return NextStep(step=step, again_at=due)
    if moving.obstacle:
        return NextStep(step=Step.CANNOT_BEGIN, why=moving.obstacle)
    return NextStep(step=Step.BEGIN, why=why)


def _due(moving: MovingService, lease: Lease, now: float) -> tuple[str, float]:
    """Return the reason why the machine ends, and the Unix time at which a successor must start."""
    notice = moving.pod.notice if moving.pod is not None else ""
    if notice:
        return f"the provider ends its spot machine ({notice})", now
    end = machine_end(lease, now)
    if end is None:
        return "", inf
    start_seconds = moving.service.succession.start_seconds
    lead = lead_seconds(moving.boot_seconds, start_seconds, end.at - end.began)
    return f"its machine ends in {about(max(0.0, end.at - now))} ({end.limit})", end.at - lead


def boot_forecast(snapshot: Snapshot, lease: Lease | None) -> float:
    """Return the forecast of the seconds until another machine like that of a lease is ready."""
    last = lease.last_try if lease is not None else None
    if lease is None or last is None:
        return BOOT_SECONDS
    measured = measured_boot(snapshot.leases.values(), lease.provider, last.instance_type)
    return BOOT_SECONDS if measured is None else measured.seconds


def why_no_machine(
    snapshot: Snapshot,
    resource: Resource,
    project: str,
    halted: Mapping[str, str],
    halted_projects: Mapping[str, str],
) -> str:
    """Return the reason why no further machine may be rented for a resource now; empty if one may. `halted`
    and `halted_projects` have the reasons of used budgets."""
    used = halted.get(resource.name) or halted_projects.get(project)
    if used:
        return used
    places = snapshot.places
    pods = sum(len(one.get(resource.name, ())) for one in (places.open, places.coming))
    if pods > 1:
        return ""  # another machine of the resource is rented already
    if resource.workers is not None and pods >= resource.workers:
        return f"resource {resource.name!r} has at most {show_count(resource.workers, 'worker')}"
    site = snapshot.sites.get(resource.site)
    most = site.most_machines if site is not None else None
    rented = snapshot.rented_machines(resource.site)
    if most is not None and rented.of_pods + rented.others >= most:
        return f"site {resource.site!r} has at most {show_count(most, 'machine')} (max_machines)"
    return ""
