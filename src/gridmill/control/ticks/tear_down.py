"""This module has the tick that tears down deployments that are being released.

The pods are ended in the background without the node's lock, because it takes seconds to end them.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf

from gridmill.control.background import BackgroundRunner, completed
from gridmill.control.ledger import Ledger
from gridmill.control.state import BringUps, Channels, Control, Problems, Starting
from gridmill.control.steps.bring_up import being_brought_up
from gridmill.control.steps.end_attempt import LOST, settle_attempt
from gridmill.control.steps.problems import set_problem
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import Goodbye
from gridmill.domain.states import DeploymentState, PodState
from gridmill.errors import StorageError, UnavailableError
from gridmill.ports.site import SitePort
from gridmill.ports.storage import Storage


def reap(control: Control) -> float:
    """Stop the deployments that are being released, in the background. The function returns the seconds
    until a failed stop is tried again. Pending starts of the pods of these deployments finish first, because
    otherwise a pod could start after it was stopped."""
    waits = [inf]
    for deployment in _released(control.ledger):
        if being_brought_up(control.background, control.bring_ups, deployment):
            continue
        wait = control.bring_ups.not_before.get(deployment.id, -inf) - control.clock.monotonic()
        if wait > 0:
            waits.append(wait)
        else:
            _send_goodbye(control.channels, deployment)
            site = control.sites.get(deployment.site)
            then = partial(_torn_down, control, deployment, site)
            control.background.submit(
                f"tear down {deployment.id}", _tearing_down(control.ledger, control.sites, deployment), then
            )
    return min(waits)


def reap_now(control: Control) -> None:
    """Stop the deployments that are being released, and wait for their end. This function is called when the
    control node stops. Pods that cannot be stopped now end by themselves."""
    for deployment in _released(control.ledger):
        _send_goodbye(control.channels, deployment)
        site = control.sites.get(deployment.site)
        _torn_down(
            control, deployment, site, completed(_tearing_down(control.ledger, control.sites, deployment))
        )


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


def _torn_down(control: Control, deployment: Deployment, site: SitePort | None, done: Future[None]) -> None:
    """Record that a deployment has ended, unless this was recorded in the meantime. If the stop failed
    because the interface to the `site` was not open yet, or was opened anew in the meantime, no problem is
    recorded, because the next try uses the new interface."""
    try:
        done.result()
    except UnavailableError as error:
        if site is not None and control.sites.get(deployment.site) is site:
            set_problem(control.problems, deployment.id, f"{deployment.id} cannot be stopped now: {error}")
        control.bring_ups.not_before[deployment.id] = (
            control.clock.monotonic() + control.limits.observe_seconds
        )
        return
    set_problem(control.problems, deployment.id, "")
    control.bring_ups.not_before.pop(deployment.id, None)
    current = control.ledger.snapshot.deployments.get(deployment.id)
    if current is not None and current.state == DeploymentState.RELEASING:
        _record_gone(control.starting, control.bring_ups, current)


def _record_gone(starting: Starting, bring_ups: BringUps, deployment: Deployment) -> None:
    transaction = starting.ledger.begin(starting.timeline.now())
    pods = tuple(replace(pod, state=PodState.GONE) for pod in deployment.pods)
    transaction.put(replace(deployment, state=DeploymentState.GONE, pods=pods))
    # the pod may have hung, so that its attempts are still live and have to be settled
    for attempt in starting.ledger.snapshot.attempts_on(deployment.id):
        settle_attempt(starting.endings, transaction, attempt, replace(LOST, message=deployment.message))
    starting.ledger.stage(transaction)
    bring_ups.brought_up.difference_update(pod.id for pod in pods)
    bring_ups.silent_since.pop(deployment.id, None)
