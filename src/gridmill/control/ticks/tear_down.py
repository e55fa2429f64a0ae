"""This module has the tick that tears down deployments that are being released.

The pods are ended in the background without the node's lock, because it takes seconds to end them.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf

from gridmill.control.background import BackgroundRunner, completed
from gridmill.control.ledger import Ledger
from gridmill.control.state import BringUps, Channels, ControlTimeouts, Problems, Starting
from gridmill.control.steps.bring_up import being_brought_up
from gridmill.control.steps.end_attempt import LOST, settle_attempt
from gridmill.control.steps.problems import set_problem
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.pod_protocol import Goodbye
from gridmill.domain.states import DeploymentState, PodState
from gridmill.errors import StorageError, UnavailableError
from gridmill.ports.site import SitePort
from gridmill.ports.storage import Storage


def reap(
    starting: Starting, bring_ups: BringUps, sites: Mapping[str, SitePort], limits: ControlTimeouts
) -> float:
    """Stop the deployments that are being released, in the background. The function returns the seconds
    until a failed stop is tried again."""
    released = _read_released(starting, bring_ups)
    if not released:
        return inf
    decision = decide_stops(released)
    for deployment in decision.stop:
        _send_goodbye(starting.channels, deployment)
        site = sites.get(deployment.site)
        then = partial(_end_stop, starting, bring_ups, sites, limits, deployment, site)
        starting.aside.submit(
            f"tear down {deployment.id}", _tearing_down(starting.ledger, sites, deployment), then
        )
    return decision.wait_seconds


def reap_now(
    starting: Starting, bring_ups: BringUps, sites: Mapping[str, SitePort], limits: ControlTimeouts
) -> None:
    """Stop the deployments that are being released, and wait for their end. This function is called when the
    control node stops. Pods that cannot be stopped now end by themselves."""
    for deployment in _released(starting.ledger):
        _send_goodbye(starting.channels, deployment)
        done = completed(_tearing_down(starting.ledger, sites, deployment))
        _end_stop(starting, bring_ups, sites, limits, deployment, sites.get(deployment.site), done)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedDeployment:
    """A deployment that is being released. `is_starting` is true while a start of its pods is pending.
    `wait_seconds` is the time until a failed stop is tried again; it is negative if no stop has failed."""

    deployment: Deployment
    is_starting: bool
    wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecision:
    """The deployments that are stopped now, and the seconds until another deployment is stopped."""

    stop: tuple[Deployment, ...]
    wait_seconds: float


def decide_stops(released: Sequence[ReleasedDeployment]) -> StopDecision:
    """Decide which deployments are stopped now. Pending starts of the pods of a deployment finish first,
    because otherwise a pod could start after it was stopped."""
    ready = [one for one in released if not one.is_starting]
    return StopDecision(
        stop=tuple(one.deployment for one in ready if one.wait_seconds <= 0),
        wait_seconds=min((one.wait_seconds for one in ready if one.wait_seconds > 0), default=inf),
    )


def _read_released(starting: Starting, bring_ups: BringUps) -> Sequence[ReleasedDeployment]:
    now = starting.timeline.clock.monotonic()
    return [
        ReleasedDeployment(
            deployment=deployment,
            is_starting=being_brought_up(starting.aside, bring_ups, deployment),
            wait_seconds=bring_ups.not_before.get(deployment.id, -inf) - now,
        )
        for deployment in _released(starting.ledger)
    ]


def _released(ledger: Ledger) -> tuple[Deployment, ...]:
    deployments = ledger.snapshot.deployments.values()
    return tuple(deployment for deployment in deployments if deployment.state == DeploymentState.RELEASING)


def _send_goodbye(channels: Channels, deployment: Deployment) -> None:
    for pod in deployment.pods:
        channel = channels.by_pod.pop(pod.id, None)
        if channel is not None:
            channels.links.send(channel, [Goodbye(reason=deployment.message)])
            channels.links.drop(channel)


def discard(
    storage: Storage, problems: Problems, background_runner: BackgroundRunner, discarded: list[str]
) -> None:
    """Delete the output of failed attempts from storage, in the background. No job reads the output of a
    failed attempt."""
    while discarded:
        uri = discarded.pop()
        background_runner.submit(f"remove {uri}", partial(storage.remove, uri), partial(_removed, problems))


def _removed(problems: Problems, done: Future[None]) -> None:
    try:
        done.result()
    except StorageError as error:
        problems.warn(f"the output of a failed attempt was not deleted: {error}")


def _tearing_down(
    ledger: Ledger, sites: Mapping[str, SitePort], deployment: Deployment
) -> Callable[[], None]:
    declared = deployment.site in ledger.snapshot.sites
    pods = [pod.id for pod in deployment.pods]
    return partial(_tear_down, sites.get(deployment.site), declared, pods)


def _tear_down(site: SitePort | None, declared: bool, pods: Sequence[str]) -> None:
    """Stop the pods through the interface `SitePort` of their site. The function uses no records. If the
    site was removed, its pods do not have to be stopped. Raises UnavailableError."""
    if site is not None:
        site.tear_down(pods)
    elif declared:
        raise UnavailableError("the site of the deployment is not open yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """The result of a stop. `error` is the reason why the stop failed, or None. `is_same_interface` is true
    if the interface to the site is still the interface that was used. `current` is the record of the
    deployment as it is now, or None."""

    deployment_id: str
    error: str | None
    is_same_interface: bool
    current: Deployment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOutcome:
    """The consequences of a stop. `problem` is the problem of the deployment from now on; it is empty if the
    deployment has no problem, and None if its problem does not change. `gone` is the record of the ended
    deployment, or None."""

    problem: str | None
    is_tried_again: bool = False
    gone: Deployment | None = None


def decide_stop_outcome(result: StopResult) -> StopOutcome:
    """Decide what is recorded after a stop. If the stop failed because the interface to the site was not
    open yet, or was opened anew in the meantime, no problem is recorded, because the next try uses the new
    interface. If the end of the deployment was recorded in the meantime, it is not recorded again."""
    if result.error is not None:
        problem = f"{result.deployment_id} cannot be stopped now: {result.error}"
        return StopOutcome(problem=problem if result.is_same_interface else None, is_tried_again=True)
    current = result.current
    if current is None or current.state != DeploymentState.RELEASING:
        return StopOutcome(problem="")
    pods = tuple(replace(pod, state=PodState.GONE) for pod in current.pods)
    return StopOutcome(problem="", gone=replace(current, state=DeploymentState.GONE, pods=pods))


def _end_stop(
    starting: Starting,
    bring_ups: BringUps,
    sites: Mapping[str, SitePort],
    limits: ControlTimeouts,
    deployment: Deployment,
    site: SitePort | None,
    done: Future[None],
) -> None:
    """Record the result of a stop that used this interface to the `site`."""
    try:
        done.result()
        error = None
    except UnavailableError as failure:
        error = str(failure)
    result = StopResult(
        deployment_id=deployment.id,
        error=error,
        is_same_interface=site is not None and sites.get(deployment.site) is site,
        current=starting.ledger.snapshot.deployments.get(deployment.id),
    )
    outcome = decide_stop_outcome(result)
    if outcome.problem is not None:
        set_problem(starting.endings.problems, deployment.id, outcome.problem)
    bring_ups.not_before.pop(deployment.id, None)
    if outcome.is_tried_again:
        next_try = starting.timeline.clock.monotonic() + limits.observe_seconds
        bring_ups.not_before[deployment.id] = next_try
    if outcome.gone is not None:
        _record_gone(starting, bring_ups, outcome.gone)


def _record_gone(starting: Starting, bring_ups: BringUps, deployment: Deployment) -> None:
    transaction = starting.ledger.begin(starting.timeline.now())
    transaction.put(deployment)
    # the pod may have hung, so that its attempts are still live and have to be settled
    for attempt in starting.ledger.snapshot.attempts_on(deployment.id):
        settle_attempt(starting.endings, transaction, attempt, replace(LOST, message=deployment.message))
    starting.ledger.stage(transaction)
    bring_ups.brought_up.difference_update(pod.id for pod in deployment.pods)
    bring_ups.silent_since.pop(deployment.id, None)
