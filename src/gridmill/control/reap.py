"""The tick that gives back: it tears deployments down that are being released."""

from dataclasses import replace

from gridmill.control.settle import LOST, settle_attempt
from gridmill.control.state import Control
from gridmill.errors import UnavailableError
from gridmill.model.deployment import Deployment
from gridmill.model.message import Goodbye
from gridmill.model.state import DeploymentState, PodState


def reap(control: Control) -> bool:
    """Tear down what is being released; when the site says its pods are gone, so is the deployment.

    True when any is gone: there is room for another.
    """
    leaving = [
        deployment
        for deployment in control.ledger.snapshot.deployments.values()
        if deployment.state == DeploymentState.RELEASING
    ]
    gone = [_tear_down(control, deployment) for deployment in leaving]
    return any(gone)


def _tear_down(control: Control, deployment: Deployment) -> bool:
    for pod in deployment.pods:
        channel = control.channels.pop(pod.id, None)
        if channel is not None:
            control.links.send(channel, [Goodbye(reason=deployment.message)])
            control.links.drop(channel)
    site = control.sites.get(deployment.site)
    try:
        if site is not None:
            site.tear_down([pod.id for pod in deployment.pods])
    except UnavailableError as error:
        control.warn(f"{deployment.id} cannot be torn down now: {error}")
        return False
    transaction = control.begin()
    pods = tuple(replace(pod, state=PodState.GONE) for pod in deployment.pods)
    transaction.put(replace(deployment, state=DeploymentState.GONE, pods=pods))
    for attempt in control.ledger.snapshot.attempts_on(deployment.id):  # a pod that hung had some
        settle_attempt(control, transaction, attempt, replace(LOST, message=deployment.message))
    control.ledger.commit(transaction)
    control.brought_up.difference_update(pod.id for pod in pods)
    control.silent_since.pop(deployment.id, None)
    return True
