"""What a site says of a pod, as it is noted: where it stands, and what ended with it."""

from dataclasses import replace

from gridmill.control.ledger import Transaction
from gridmill.control.receive import with_pod
from gridmill.control.settle import LOST
from gridmill.model.deployment import Deployment, Pod
from gridmill.model.message import Outcome
from gridmill.model.resource import Use
from gridmill.model.run import Attempt
from gridmill.model.state import AttemptState, Cause, PodState
from gridmill.ports.site import PodSight, Sight

_MEMORY_HINT = "Give the job or its resource more memory, for example `memory: 4GiB`."


def note(transaction: Transaction, deployment_id: str, pod: Pod, sight: PodSight) -> None:
    """Why a pod is not up yet, and when its site will end it."""
    deployment = transaction.get(Deployment, deployment_id)
    if deployment is None:
        return
    waits = pod.state == PodState.STARTING and sight.sight != Sight.RUNNING
    now = replace(
        pod,
        message=sight.message if waits else "",
        began=pod.began if sight.began is None else sight.began,
        ends=pod.ends if sight.ends is None else sight.ends,
    )
    if now != pod:
        transaction.put(with_pod(deployment, now))


def lost_with(attempt: Attempt, sight: PodSight, now: float) -> Outcome:
    """How an attempt ended whose pod is gone. One that ran out of memory there has failed for that; what the
    site measured of the pod stands in for what nobody could measure any more."""
    use = Use(wall_seconds=now - (attempt.started or attempt.placed))
    if sight.use is not None:
        use = replace(sight.use, wall_seconds=use.wall_seconds)
    if sight.cause == Cause.MEMORY:
        return Outcome(
            state=AttemptState.FAILED, cause=Cause.MEMORY, message=sight.message, hint=_MEMORY_HINT, use=use
        )
    return replace(LOST, message=sight.message or LOST.message, use=use)
