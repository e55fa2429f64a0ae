"""The tick that looks at sites: pods that are gone, and those a crash kept from being brought up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gridmill.control.ledger import Transaction
from gridmill.control.receive import hear, with_pod
from gridmill.control.settle import LOST, settle_attempt
from gridmill.control.state import Control
from gridmill.errors import UnavailableError
from gridmill.model.deployment import Deployment, Pod
from gridmill.model.message import PodOrder
from gridmill.model.run import Attempt
from gridmill.model.state import LIVE_ATTEMPTS, DeploymentState, PodState
from gridmill.ports.site import PodSight, Sight


def observe(control: Control) -> None:
    """One question per site for all its pods; what is gone is recorded, its attempts are lost."""
    if control.clock.monotonic() < control.next_observe:
        return
    control.next_observe = control.clock.monotonic() + control.limits.observe_seconds
    by_site: dict[str, list[Deployment]] = {}
    for deployment in list(control.ledger.snapshot.deployments.values()):
        by_site.setdefault(deployment.site, []).append(deployment)
    for site, deployments in by_site.items():
        _observe_site(control, site, deployments)


def _observe_site(control: Control, name: str, deployments: Sequence[Deployment]) -> None:
    site = control.sites.get(name)
    if site is None:
        return
    standing = [d for d in deployments if d.state != DeploymentState.RELEASING]
    missing = [d for d in standing if any(_is_missing(control, pod) for pod in d.pods)]
    for deployment in missing:
        bring_up(control, deployment)
    pods = [pod.id for d in standing for pod in d.pods if pod.state != PodState.GONE]
    try:
        sights = site.observe(pods) if pods else {}
    except UnavailableError as error:
        control.warn(f"site {name} does not answer: {error}")
        return
    transaction = control.begin()
    for deployment in standing:
        _record(control, transaction, deployment, sights)
    control.ledger.commit(transaction)


def _is_missing(control: Control, pod: Pod) -> bool:
    return pod.state == PodState.STARTING and pod.id not in control.brought_up


def _record(
    control: Control, transaction: Transaction, deployment: Deployment, sights: Mapping[str, PodSight]
) -> None:
    for pod in deployment.pods:
        sight = sights.get(pod.id)
        if sight is not None and sight.sight == Sight.GONE and pod.state != PodState.GONE:
            _pod_gone(control, transaction, deployment.id, pod, sight.message)
    current = transaction.get(Deployment, deployment.id)
    if current is not None and current.state in (DeploymentState.STARTING, DeploymentState.UP):
        _mind_silence(control, transaction, current, sights)


def _mind_silence(
    control: Control, transaction: Transaction, deployment: Deployment, sights: Mapping[str, PodSight]
) -> None:
    """Release a deployment whose pods all run, and none of which has had a link for too long: it never
    greeted, or hangs. What it was running is lost."""
    running = {name for name, sight in sights.items() if sight.sight == Sight.RUNNING}
    now = control.clock.monotonic()
    if not all(pod.id in running and pod.id not in control.channels for pod in deployment.pods):
        control.silent_since.pop(deployment.id, None)
    elif now - control.silent_since.setdefault(deployment.id, now) >= control.limits.greeting_seconds:
        control.silent_since.pop(deployment.id)
        _count_failure(control, deployment)
        message = f"no pod of it has answered for {control.limits.greeting_seconds:g} s"
        transaction.put(replace(deployment, state=DeploymentState.RELEASING, message=message))


def _count_failure(control: Control, deployment: Deployment) -> None:
    failures = control.failed_bring_ups.get(deployment.resource, 0)
    control.failed_bring_ups[deployment.resource] = failures + 1


def _pod_gone(control: Control, transaction: Transaction, deployment_id: str, pod: Pod, message: str) -> None:
    """Its attempts are lost; a deployment without pods is gone."""
    deployment = transaction.get(Deployment, deployment_id)
    if deployment is None:
        return
    if pod.state == PodState.STARTING:
        _count_failure(control, deployment)
    deployment = with_pod(deployment, replace(pod, state=PodState.GONE, message=message))
    if all(p.state == PodState.GONE for p in deployment.pods):
        deployment = replace(deployment, state=DeploymentState.GONE, message=message)
    transaction.put(deployment)
    for event in control.sites[deployment.site].last_words(pod.id):
        if event.number > pod.acknowledged:
            hear(control, transaction, pod.id, event)
    for known in control.ledger.snapshot.attempts_on(pod.id):
        attempt = transaction.get(Attempt, known.id) or known
        if attempt.state in LIVE_ATTEMPTS:
            _lost(control, transaction, attempt, message)
    control.brought_up.discard(pod.id)
    control.silent_since.pop(deployment_id, None)


def _lost(control: Control, transaction: Transaction, attempt: Attempt, message: str) -> None:
    settle_attempt(control, transaction, attempt, replace(LOST, message=message or LOST.message))


def bring_up(control: Control, deployment: Deployment) -> None:
    """Ask the site for the deployment's pods; the site starts each pod id at most once."""
    site = control.sites.get(deployment.site)
    if site is None:  # not opened yet; asked again with the next look
        return
    orders = [
        PodOrder(
            pod_id=pod.id,
            deployment_id=deployment.id,
            type=deployment.type.value,
            secret=control.pod_secret(pod.id),
            home=site.pod_home(pod.id),
            link=site.link(),
            capacity=pod.capacity,
            keep_seconds=deployment.keep_seconds,
            orphan_seconds=control.limits.orphan_seconds,
        )
        for pod in deployment.pods
        if pod.state == PodState.STARTING
    ]
    try:
        site.bring_up(orders)
    except UnavailableError as error:
        control.warn(f"{deployment.id} cannot be brought up now: {error}")
        return
    control.brought_up.update(order.pod_id for order in orders)
