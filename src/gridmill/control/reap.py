"""The tick that gives back: it tears deployments down that are being released.

In three steps, for ending pods takes seconds: `leaving` and `record_gone` want the lock, `torn_down` not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gridmill.control.settle import LOST, settle_attempt
from gridmill.control.state import Control
from gridmill.errors import UnavailableError
from gridmill.model.deployment import Deployment
from gridmill.model.message import Goodbye
from gridmill.model.state import DeploymentState, PodState


def leaving(control: Control) -> tuple[Deployment, ...]:
    """What is being released; its pods are told goodbye."""
    deployments = control.ledger.snapshot.deployments.values()
    released = tuple(known for known in deployments if known.state == DeploymentState.RELEASING)
    for deployment in released:
        for pod in deployment.pods:
            channel = control.channels.pop(pod.id, None)
            if channel is not None:
                control.links.send(channel, [Goodbye(reason=deployment.message)])
                control.links.drop(channel)
    return released


def torn_down(control: Control, deployments: Iterable[Deployment]) -> tuple[str, ...]:
    """The ids of those whose pods are gone now; the others are tried again. Touches nothing but sites."""
    return tuple(deployment.id for deployment in deployments if _tear_down(control, deployment))


def _tear_down(control: Control, deployment: Deployment) -> bool:
    site = control.sites.get(deployment.site)
    try:
        if site is not None:
            site.tear_down([pod.id for pod in deployment.pods])
    except UnavailableError as error:
        control.warn(f"{deployment.id} cannot be torn down now: {error}")
        return False
    return True


def record_gone(control: Control, deployment_ids: Sequence[str]) -> None:
    """Deployments that were torn down are gone, unless somebody has recorded it meanwhile."""
    for deployment_id in deployment_ids:
        deployment = control.ledger.snapshot.deployments.get(deployment_id)
        if deployment is not None and deployment.state == DeploymentState.RELEASING:
            _record_gone(control, deployment)


def _record_gone(control: Control, deployment: Deployment) -> None:
    transaction = control.begin()
    pods = tuple(replace(pod, state=PodState.GONE) for pod in deployment.pods)
    transaction.put(replace(deployment, state=DeploymentState.GONE, pods=pods))
    for attempt in control.ledger.snapshot.attempts_on(deployment.id):  # a pod that hung had some
        settle_attempt(control, transaction, attempt, replace(LOST, message=deployment.message))
    control.ledger.commit(transaction)
    control.brought_up.difference_update(pod.id for pod in pods)
    control.silent_since.pop(deployment.id, None)
