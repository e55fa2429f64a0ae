"""This module requests the pods of deployments from sites, in the background."""

from collections.abc import Set
from concurrent.futures import Future
from functools import partial

from gridmill.control.background import BackgroundRunner
from gridmill.control.state import BringUps, Channels, ControlTimeouts, PodRequests, Problems
from gridmill.control.steps.problems import set_problem
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.states import PodState
from gridmill.errors import UnavailableError
from gridmill.ports.site import SitePort


def is_missing(pod: Pod, brought_up: Set[str]) -> bool:
    """Return whether a pod has to be requested from its site. `brought_up` has the ids of the pods that the
    site has accepted."""
    return pod.state == PodState.STARTING and pod.id not in brought_up


def bring_up(requests: PodRequests, deployment: Deployment) -> None:
    """Request the pods of the deployment from its site, in the background. The site starts each pod id at
    most once."""
    site = requests.sites.get(deployment.site)
    if site is None:  # the site is not open yet, so the next observation requests the pods again
        return
    ask = partial(request_pods, requests.channels, requests.limits, site, deployment)
    then = partial(_brought_up, requests.problems, requests.bring_ups, deployment.id)
    requests.runner.submit(request_key(deployment), ask, then)


def being_brought_up(
    background_runner: BackgroundRunner, bring_ups: BringUps, deployment: Deployment
) -> bool:
    """Return whether the deployment's pods are being requested now, either by a request for this deployment,
    or by an observation of its site while some of its pods are missing."""
    looked_at = background_runner.is_running(f"observe {deployment.site}")
    missing = looked_at and any(is_missing(pod, bring_ups.brought_up) for pod in deployment.pods)
    return missing or background_runner.is_running(request_key(deployment))


def request_key(deployment: Deployment) -> str:
    """Return the key of the background work that requests the pods of a deployment."""
    return f"start pods of {deployment.id}"


def _brought_up(
    problems: Problems, bring_ups: BringUps, deployment_id: str, done: Future[tuple[str, ...]]
) -> None:
    try:
        bring_ups.brought_up.update(done.result())
    except UnavailableError as error:
        set_problem(problems, deployment_id, start_problem(deployment_id, error))
    else:
        set_problem(problems, deployment_id, "")


def start_problem(deployment_id: str, error: UnavailableError) -> str:
    """Return the problem of a deployment whose pods could not be requested."""
    return f"{deployment_id} cannot be started now: {error}"


def request_pods(
    channels: Channels, limits: ControlTimeouts, site: SitePort, deployment: Deployment
) -> tuple[str, ...]:
    """Start the pods of a deployment and return their ids. The function uses no records, only the interface
    `SitePort` of the site. Raises UnavailableError."""
    orders = [
        PodOrder(
            pod_id=pod.id,
            deployment_id=deployment.id,
            type=deployment.type.value,
            secret=channels.pod_secret(pod.id),
            home=site.pod_home(pod.id),
            link=site.link(),
            capacity=pod.capacity,
            keep_seconds=deployment.keep_seconds,
            orphan_seconds=limits.orphan_seconds,
            node=pod.node,
            settings=deployment.settings,
            pinned=deployment.pinned,
        )
        for pod in deployment.pods
        if pod.state == PodState.STARTING
    ]
    site.bring_up(orders)
    return tuple(order.pod_id for order in orders)
