"""This module has the tick that observes sites: it records pods that have ended, and starts pods that are
missing after a crash.

The tick records the report of the site about each pod: the state of the pod, and the attempts that ended
with it.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from functools import partial

from gridmill.control.background import BackgroundRunner
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import BRING_UPS, BringUps, Channels, Control, ControlTimeouts, Problems, Starting
from gridmill.control.steps.bring_up import is_missing, request_key, request_pods, start_problem
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
from gridmill.ports.site import PodReport, PodStatus, SharedMachineSite, SitePort, TransferSite

_MEMORY_HINT = "Give the job or its resource more memory, for example `memory: 4GiB`."


def observe(control: Control) -> None:
    """Observe all pods with one query for each site. Pods that have ended are recorded, and their attempts
    are recorded as lost."""
    now = control.clock.monotonic()
    if now < control.next_observe:
        return
    control.next_observe = now + control.limits.observe_seconds
    starting, bring_ups, limits = control.starting, control.bring_ups, control.limits
    deployments = _read_deployments(control.ledger, control.background)
    for query in decide_queries(deployments, bring_ups.brought_up, control.sites.keys()):
        look = partial(_look, control.channels, limits, control.sites[query.site], query)
        then = partial(_record_observation, starting, bring_ups, limits, query.site)
        control.background.submit(f"observe {query.site}", look, then)
    _note_site_problems(control.problems, control.sites)
    clear_ended(control.ledger, control.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteQuery:
    """A query for the pods of a site: the deployments whose pods must be requested first, and the ids of all
    pods that are observed."""

    site: str
    missing: tuple[Deployment, ...]
    pods: tuple[str, ...]


def _read_deployments(ledger: Ledger, runner: BackgroundRunner) -> Sequence[Deployment]:
    """Return the deployments whose pods are not being requested now."""
    deployments = ledger.snapshot.deployments.values()
    return [one for one in deployments if not runner.is_running(request_key(one))]


def decide_queries(
    deployments: Sequence[Deployment], brought_up: AbstractSet[str], sites: AbstractSet[str]
) -> tuple[SiteQuery, ...]:
    """Decide which pods are observed, with one query for each open site. `brought_up` has the ids of the
    pods that sites have accepted."""
    by_site: dict[str, list[Deployment]] = {}
    for deployment in deployments:
        if deployment.site in sites and _is_kept(deployment):
            by_site.setdefault(deployment.site, []).append(deployment)
    queries = [_query(site, kept, brought_up) for site, kept in by_site.items()]
    return tuple(query for query in queries if query.pods)


def _query(site: str, deployments: Sequence[Deployment], brought_up: AbstractSet[str]) -> SiteQuery:
    missing = [one for one in deployments if any(is_missing(pod, brought_up) for pod in one.pods)]
    pods = [pod.id for one in deployments for pod in one.pods if pod.state != PodState.GONE]
    return SiteQuery(site=site, missing=tuple(missing), pods=tuple(pods))


def _is_kept(deployment: Deployment) -> bool:
    return deployment.state != DeploymentState.RELEASING


def _note_site_problems(problems: Problems, sites: Mapping[str, SitePort]) -> None:
    for site, port in sites.items():
        if isinstance(port, TransferSite):
            set_problems(problems, f"data at {site}", port.transfer_problems())
        if isinstance(port, SharedMachineSite):
            set_problem(problems, f"memory of {site}", port.memory_problem())


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteObservation:
    """An observation of a site: the pods that it has started, the problem of each deployment (empty if the
    deployment has no problem), the report about each pod, and the events in the journals of ended pods."""

    brought_up: AbstractSet[str]
    problems: Mapping[str, str]
    pod_reports: Mapping[str, PodReport]
    undelivered: Mapping[str, Sequence[PodEvent]]


def _look(channels: Channels, limits: ControlTimeouts, site: SitePort, query: SiteQuery) -> SiteObservation:
    """Start the pods that are missing after a crash or after the site refused them, then observe all pods.
    The function uses no records, only the interface `SitePort` of the site."""
    brought_up: set[str] = set()
    problems: dict[str, str] = {}
    for deployment in query.missing:
        try:
            brought_up.update(request_pods(channels, limits, site, deployment))
            problems[deployment.id] = ""
        except UnavailableError as error:
            problems[deployment.id] = start_problem(deployment.id, error)
    reports = site.observe(query.pods)
    gone = [pod_id for pod_id, report in reports.items() if report.status == PodStatus.GONE]
    undelivered = {pod_id: tuple(site.undelivered_events(pod_id)) for pod_id in gone}
    return SiteObservation(
        brought_up=brought_up, problems=problems, pod_reports=reports, undelivered=undelivered
    )


def _record_observation(
    starting: Starting,
    bring_ups: BringUps,
    limits: ControlTimeouts,
    site: str,
    done: Future[SiteObservation],
) -> None:
    """Record the observed states of the pods that are still needed."""
    problems, ledger = starting.endings.problems, starting.ledger
    at_site = [one for one in ledger.snapshot.deployments.values() if one.site == site]
    try:
        observation = done.result()
    except UnavailableError as error:
        set_problem(problems, f"site {site}", f"site {site} does not answer: {explained(error)}")
        # the connection to the pods may be broken as well, so they are not released as silent
        for deployment in at_site:
            bring_ups.silent_since.pop(deployment.id, None)
        return
    set_problem(problems, f"site {site}", "")
    for deployment_id, problem in observation.problems.items():
        set_problem(problems, deployment_id, problem)
    bring_ups.brought_up |= observation.brought_up
    _note_unknown(starting, bring_ups, observation.pod_reports)
    transaction = ledger.begin(starting.timeline.now())
    for deployment in filter(_is_kept, at_site):
        _record_pods(starting, bring_ups, transaction, deployment, observation)
        _release_if_silent(starting, bring_ups, limits, transaction, deployment.id, observation.pod_reports)
    ledger.stage(transaction)


def _note_unknown(starting: Starting, bring_ups: BringUps, reports: Mapping[str, PodReport]) -> None:
    """Record since when the site cannot observe a pod, for example because its machine does not answer."""
    now = starting.timeline.clock.monotonic()
    for pod_id, report in reports.items():
        if report.status is PodStatus.UNKNOWN:
            bring_ups.unknown_since.setdefault(pod_id, now)
        else:
            bring_ups.unknown_since.pop(pod_id, None)
    if bring_ups.unknown_since:
        deployments = starting.ledger.snapshot.deployments.values()
        known = {pod.id for one in deployments for pod in one.pods}
        for pod_id in bring_ups.unknown_since.keys() - known:
            del bring_ups.unknown_since[pod_id]


def _record_pods(
    starting: Starting,
    bring_ups: BringUps,
    transaction: Transaction,
    deployment: Deployment,
    observation: SiteObservation,
) -> None:
    for pod in deployment.pods:
        report = observation.pod_reports.get(pod.id)
        current = transaction.get(Deployment, deployment.id)
        if report is None or current is None or pod.state == PodState.GONE:
            continue
        if report.status == PodStatus.GONE:
            _record_gone(starting, bring_ups, transaction, current, pod, report, observation)
        elif (changed := decide_pod(pod, report)) != pod:
            transaction.put(with_pod(current, changed))


def decide_pod(pod: Pod, report: PodReport) -> Pod:
    """Decide the record of a pod that has not ended: the reason why it is not up yet, the time when its
    site will end it, and the notice of the provider."""
    waits = pod.state == PodState.STARTING and report.status != PodStatus.RUNNING
    return replace(
        pod,
        message=report.message if waits else "",
        began=pod.began if report.began is None else report.began,
        ends=pod.ends if report.ends is None else report.ends,
        notice=report.notice or pod.notice,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GonePod:
    """A pod that has ended, with its deployment and the report of its site. `failed` is the number of starts
    of the deployment's resource that have failed in a row. `is_replaceable` is true if the node of the pod
    is unfit for the resource and other nodes are sufficient."""

    deployment: Deployment
    pod: Pod
    report: PodReport
    failed: int
    is_replaceable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GonePodDecision:
    """The consequences of the end of a pod. `failed` is the new number of starts that have failed in a row,
    or None if the number does not change. If `is_node_refusing` is true, the pod failed to start on its
    node."""

    deployment: Deployment
    failed: int | None = None
    is_node_refusing: bool = False


def decide_gone_pod(gone: GonePod) -> GonePodDecision:
    """Decide what the end of a pod changes. If no pod of the deployment is left, the deployment ends. The
    end of a starting pod is a failed start, unless its node has left the site or can be replaced."""
    message = gone.report.message
    deployment = with_pod(gone.deployment, replace(gone.pod, state=PodState.GONE, message=message))
    if all(pod.state == PodState.GONE for pod in deployment.pods):
        deployment = replace(deployment, state=DeploymentState.GONE, message=message)
    if gone.pod.state != PodState.STARTING:
        return GonePodDecision(deployment=deployment)
    counts = not gone.report.left and not gone.is_replaceable
    failed = BRING_UPS + 1 if gone.report.hopeless else gone.failed + 1
    return GonePodDecision(deployment=deployment, failed=failed if counts else None, is_node_refusing=True)


def _record_gone(
    starting: Starting,
    bring_ups: BringUps,
    transaction: Transaction,
    deployment: Deployment,
    pod: Pod,
    report: PodReport,
    observation: SiteObservation,
) -> None:
    """Record the end of a pod, the events in its journal, and its attempts as lost."""
    is_unfit = pod.state == PodState.STARTING and report.unfit
    gone = GonePod(
        deployment=deployment,
        pod=pod,
        report=report,
        failed=bring_ups.failed.get(deployment.resource, 0),
        is_replaceable=is_unfit
        and note_unfit(starting.ledger, bring_ups, starting.timeline, deployment, pod, report.message),
    )
    decision = decide_gone_pod(gone)
    if decision.failed is not None:
        _count_failure(bring_ups, deployment.resource, decision.failed, report.message)
    if decision.is_node_refusing:
        bring_ups.refusing_nodes.setdefault(deployment.resource, set()).add(pod.node)
    transaction.put(decision.deployment)
    bring_ups.brought_up.discard(pod.id)
    bring_ups.silent_since.pop(deployment.id, None)
    _settle_attempts(starting, transaction, pod, report, observation.undelivered[pod.id])


def _settle_attempts(
    starting: Starting,
    transaction: Transaction,
    pod: Pod,
    report: PodReport,
    undelivered: Sequence[PodEvent],
) -> None:
    for event in undelivered:
        if event.number > pod.acknowledged:
            apply_event(starting.endings, transaction, pod.id, event)
    live = starting.ledger.snapshot.attempts_on(pod.id)
    attempts = [transaction.get(Attempt, one.id) or one for one in live]
    for attempt, outcome in decide_lost(attempts, report, transaction.now):
        settle_attempt(starting.endings, transaction, attempt, outcome)


def _count_failure(bring_ups: BringUps, resource: str, failed: int, message: str) -> None:
    bring_ups.failed[resource] = failed
    bring_ups.problems[resource] = message


def decide_lost(
    attempts: Sequence[Attempt], report: PodReport, now: float
) -> tuple[tuple[Attempt, AttemptOutcome], ...]:
    """Decide the outcomes of the live attempts of a pod that has ended."""
    live = [attempt for attempt in attempts if attempt.state in LIVE_ATTEMPTS]
    return tuple((one, lost_with(one, report, now, alone=len(live) == 1)) for one in live)


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
    cause = Cause.TAKEN if sight.taken else Cause.LOST
    return replace(LOST, cause=cause, message=sight.message or LOST.message, use=use)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceDecision:
    """The time since which no pod of a deployment is connected (monotonic; None if one is), and the record of
    the deployment if it is released because of this, or None."""

    silent_since: float | None = None
    released: Deployment | None = None


def decide_silence(
    deployment: Deployment,
    running: AbstractSet[str],
    connected: AbstractSet[str],
    *,
    silent_since: float | None,
    now: float,
    limit_seconds: float,
) -> SilenceDecision:
    """Decide whether a deployment is released because all its remaining pods run, but none of them has been
    connected for `limit_seconds`. A pod that is not connected has never sent a Hello or hangs, so its
    attempts are treated as lost."""
    left = [pod.id for pod in deployment.pods if pod.state != PodState.GONE]
    if not all(pod_id in running and pod_id not in connected for pod_id in left):
        return SilenceDecision()
    since = now if silent_since is None else silent_since
    if now - since < limit_seconds:
        return SilenceDecision(silent_since=since)
    message = f"none of the deployment's pods has answered for {limit_seconds:g} s"
    released = replace(deployment, state=DeploymentState.RELEASING, message=message)
    return SilenceDecision(released=released)


def _release_if_silent(
    starting: Starting,
    bring_ups: BringUps,
    limits: ControlTimeouts,
    transaction: Transaction,
    deployment_id: str,
    reports: Mapping[str, PodReport],
) -> None:
    current = transaction.get(Deployment, deployment_id)
    if current is None or current.state not in (DeploymentState.STARTING, DeploymentState.UP):
        return
    decision = decide_silence(
        current,
        {pod_id for pod_id, report in reports.items() if report.status == PodStatus.RUNNING},
        starting.channels.by_pod.keys(),
        silent_since=bring_ups.silent_since.pop(current.id, None),
        now=starting.timeline.clock.monotonic(),
        limit_seconds=limits.greeting_seconds,
    )
    if decision.silent_since is not None:
        bring_ups.silent_since[current.id] = decision.silent_since
    if decision.released is not None:
        failed = bring_ups.failed.get(current.resource, 0) + 1
        _count_failure(bring_ups, current.resource, failed, decision.released.message)
        transaction.put(decision.released)
