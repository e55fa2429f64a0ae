"""This module has the tick that observes sites: it records pods that have ended, and starts pods that are
missing after a crash.

The tick records the report of the site about each pod: the state of the pod, and the attempts that ended
with it.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from functools import partial

from gridmill.control.ledger import Transaction
from gridmill.control.state import BRING_UPS, BringUps, Channels, Control, ControlTimeouts, Starting
from gridmill.control.steps.bring_up import _bring_up, _bringing, _is_missing, _not_now
from gridmill.control.steps.end_attempt import LOST, settle_attempt
from gridmill.control.steps.pod_events import apply_event, with_pod
from gridmill.control.steps.problems import clear_ended, note_unfit, set_problem, set_problems
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.pod_protocol import AttemptOutcome, PodEvent
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.run import Attempt
from gridmill.domain.states import LIVE_ATTEMPTS, AttemptState, Cause, DeploymentState, PodState
from gridmill.errors import UnavailableError, explained
from gridmill.ports.clock import Clock
from gridmill.ports.site import PodReport, PodStatus, SharedMachineSite, SitePort, TransferSite

_MEMORY_HINT = "Give the job or its resource more memory, for example `memory: 4GiB`."


def note(transaction: Transaction, deployment_id: str, pod: Pod, sight: PodReport) -> None:
    """Record why a pod is not up yet, and when its site will end it."""
    deployment = transaction.get(Deployment, deployment_id)
    if deployment is None:
        return
    waits = pod.state == PodState.STARTING and sight.status != PodStatus.RUNNING
    now = replace(
        pod,
        message=sight.message if waits else "",
        began=pod.began if sight.began is None else sight.began,
        ends=pod.ends if sight.ends is None else sight.ends,
    )
    if now != pod:
        transaction.put(with_pod(deployment, now))


def lost_with(attempt: Attempt, sight: PodReport, now: float, *, alone: bool = True) -> AttemptOutcome:
    """Return the outcome of an attempt whose pod has ended. If the pod ran out of memory and `alone` is true
    (no other attempt was in the pod), the attempt fails because of its memory. If several attempts ran in a
    pod that ran out of memory, it is unknown which attempt used too much memory. The site's measurement of
    the pod replaces the missing measurement of the attempt."""
    use = MeasuredUse(wall_seconds=now - (attempt.started or attempt.placed))
    if sight.cause == Cause.MEMORY and not alone:
        message = f"the pod, which ran several jobs, ran out of memory: {sight.message}"
        return replace(LOST, cause=Cause.SHORTAGE, message=message, use=use)
    if sight.use is not None:
        use = replace(sight.use, wall_seconds=use.wall_seconds)
    if sight.cause == Cause.MEMORY:
        return AttemptOutcome(
            state=AttemptState.FAILED, cause=Cause.MEMORY, message=sight.message, hint=_MEMORY_HINT, use=use
        )
    return replace(LOST, message=sight.message or LOST.message, use=use)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteObservation:
    """An observation of a site: the pods that it has started, the problem of each deployment (empty if the
    deployment has no problem), the report about each pod, and the events in the journals of ended pods."""

    brought_up: AbstractSet[str]
    problems: Mapping[str, str]
    pod_reports: Mapping[str, PodReport]
    undelivered: Mapping[str, Sequence[PodEvent]]


def observe(control: Control) -> None:
    """Observe all pods with one query for each site. Pods that have ended are recorded, and their attempts
    are recorded as lost."""
    if control.clock.monotonic() < control.next_observe:
        return
    control.next_observe = control.clock.monotonic() + control.limits.observe_seconds
    by_site: dict[str, list[Deployment]] = {}
    for deployment in list(control.ledger.snapshot.deployments.values()):
        by_site.setdefault(deployment.site, []).append(deployment)
    for site, deployments in by_site.items():
        _observe_site(control, site, deployments)
    for site, port in control.sites.items():
        if isinstance(port, TransferSite):
            set_problems(control.problems, f"data at {site}", port.transfer_problems())
        if isinstance(port, SharedMachineSite):
            set_problem(control.problems, f"memory of {site}", port.memory_problem())
    clear_ended(control.ledger, control.problems)


def _observe_site(control: Control, name: str, deployments: Sequence[Deployment]) -> None:
    site = control.sites.get(name)
    if site is None:
        return
    standing = [d for d in deployments if _is_kept(d) and not control.background.is_running(_bringing(d))]
    missing = [d for d in standing if any(_is_missing(control.bring_ups, pod) for pod in d.pods)]
    pods = [pod.id for d in standing for pod in d.pods if pod.state != PodState.GONE]
    if pods:
        look = partial(_look, control.channels, control.limits, site, missing, pods)
        control.background.submit(f"observe {name}", look, partial(_seen, control, name))


def _is_kept(deployment: Deployment) -> bool:
    return deployment.state != DeploymentState.RELEASING


def _look(
    channels: Channels,
    limits: ControlTimeouts,
    site: SitePort,
    missing: Sequence[Deployment],
    pods: Sequence[str],
) -> SiteObservation:
    """Start the pods that are missing after a crash or after the site refused them, then observe all pods.
    The function uses no records, only the interface `SitePort` of the site."""
    brought_up: set[str] = set()
    problems: dict[str, str] = {}
    for deployment in missing:
        try:
            brought_up.update(_bring_up(channels, limits, site, deployment))
            problems[deployment.id] = ""
        except UnavailableError as error:
            problems[deployment.id] = _not_now(deployment.id, error)
    sights = site.observe(pods)
    gone = [pod_id for pod_id, sight in sights.items() if sight.status == PodStatus.GONE]
    words = {pod_id: tuple(site.undelivered_events(pod_id)) for pod_id in gone}
    return SiteObservation(brought_up=brought_up, problems=problems, pod_reports=sights, undelivered=words)


def _seen(control: Control, name: str, done: Future[SiteObservation]) -> None:
    """Record the observed states of pods that are still needed."""
    try:
        observation = done.result()
    except UnavailableError as error:
        set_problem(control.problems, f"site {name}", f"site {name} does not answer: {explained(error)}")
        for deployment in control.ledger.snapshot.deployments.values():
            if (
                deployment.site == name
            ):  # the connection to the pods may be broken as well, so they are not released as silent
                control.bring_ups.silent_since.pop(deployment.id, None)
        return
    set_problem(control.problems, f"site {name}", "")
    for deployment_id, problem in observation.problems.items():
        set_problem(control.problems, deployment_id, problem)
    control.bring_ups.brought_up |= observation.brought_up
    transaction = control.ledger.begin(control.timeline.now())
    for deployment in list(control.ledger.snapshot.deployments.values()):
        if deployment.site == name and _is_kept(deployment):
            _record(control, transaction, deployment, observation)
    control.ledger.stage(transaction)


def _record(
    control: Control, transaction: Transaction, deployment: Deployment, observation: SiteObservation
) -> None:
    sights = observation.pod_reports
    for pod in deployment.pods:
        sight = sights.get(pod.id)
        if sight is None or pod.state == PodState.GONE:
            continue
        if sight.status == PodStatus.GONE:
            _pod_gone(
                control.starting,
                control.bring_ups,
                transaction,
                deployment.id,
                pod,
                sight,
                observation.undelivered[pod.id],
            )
        else:
            note(transaction, deployment.id, pod, sight)
    current = transaction.get(Deployment, deployment.id)
    if current is not None and current.state in (DeploymentState.STARTING, DeploymentState.UP):
        _release_silent(
            control.channels, control.limits, control.clock, control.bring_ups, transaction, current, sights
        )


def _release_silent(
    channels: Channels,
    limits: ControlTimeouts,
    clock: Clock,
    bring_ups: BringUps,
    transaction: Transaction,
    deployment: Deployment,
    sights: Mapping[str, PodReport],
) -> None:
    """Release a deployment if all its remaining pods run, but none of the pods has been connected for too
    long. A pod that is not connected has never sent a Hello or hangs, so its attempts are treated as
    lost."""
    running = {name for name, sight in sights.items() if sight.status == PodStatus.RUNNING}
    now = clock.monotonic()
    left = [pod for pod in deployment.pods if pod.state != PodState.GONE]
    if not all(pod.id in running and pod.id not in channels.by_pod for pod in left):
        bring_ups.silent_since.pop(deployment.id, None)
    elif now - bring_ups.silent_since.setdefault(deployment.id, now) >= limits.greeting_seconds:
        bring_ups.silent_since.pop(deployment.id)
        message = f"none of the deployment's pods has answered for {limits.greeting_seconds:g} s"
        _count_failure(bring_ups, deployment, PodReport(status=PodStatus.RUNNING, message=message))
        transaction.put(replace(deployment, state=DeploymentState.RELEASING, message=message))


def _count_failure(bring_ups: BringUps, deployment: Deployment, sight: PodReport) -> None:
    failures = bring_ups.failed.get(deployment.resource, 0) + 1
    bring_ups.failed[deployment.resource] = BRING_UPS + 1 if sight.hopeless else failures
    bring_ups.problems[deployment.resource] = sight.message


def _pod_gone(
    starting: Starting,
    bring_ups: BringUps,
    transaction: Transaction,
    deployment_id: str,
    pod: Pod,
    sight: PodReport,
    words: Sequence[PodEvent],
) -> None:
    """Record the attempts of the pod as lost. If no pod of the deployment is left, the deployment ends."""
    deployment = transaction.get(Deployment, deployment_id)
    if deployment is None:
        return
    if pod.state == PodState.STARTING:
        elsewhere = sight.unfit and note_unfit(
            starting.ledger, bring_ups, starting.timeline, deployment, pod, sight.message
        )
        if not (sight.left or elsewhere):
            _count_failure(bring_ups, deployment, sight)
        bring_ups.refusing_nodes.setdefault(deployment.resource, set()).add(pod.node)
    deployment = with_pod(deployment, replace(pod, state=PodState.GONE, message=sight.message))
    if all(p.state == PodState.GONE for p in deployment.pods):
        deployment = replace(deployment, state=DeploymentState.GONE, message=sight.message)
    transaction.put(deployment)
    for event in words:
        if event.number > pod.acknowledged:
            apply_event(starting.endings, transaction, pod.id, event)
    known = starting.ledger.snapshot.attempts_on(pod.id)
    attempts = [transaction.get(Attempt, one.id) or one for one in known]
    live = [attempt for attempt in attempts if attempt.state in LIVE_ATTEMPTS]
    for attempt in live:
        outcome = lost_with(attempt, sight, transaction.now, alone=len(live) == 1)
        settle_attempt(starting.endings, transaction, attempt, outcome)
    bring_ups.brought_up.discard(pod.id)
    bring_ups.silent_since.pop(deployment_id, None)
