"""Nodes that lack what they promised for a resource's pods: they are left aside while others will do."""

from collections.abc import Collection, Mapping

from gridmill.control.state import Control
from gridmill.model.deployment import Deployment, Pod
from gridmill.model.run import JobRun
from gridmill.model.state import JobState
from gridmill.planning.limits import will_do_without

UNFIT_SECONDS = 600.0
"""So long nobody looks at such a node again: it may have been put right, or other pods have left it."""


def note_unfit(control: Control, deployment: Deployment, pod: Pod, message: str) -> bool:
    """Note that a pod's node is unfit for its resource. Whether other nodes will do."""
    known = control.unfit.setdefault(deployment.resource, {})
    known[pod.node] = (control.now(), message)
    snapshot = control.ledger.snapshot
    resource = snapshot.resource_of(deployment.resource, deployment.type)
    return resource is not None and will_do_without(snapshot, resource, unfit_of(control, resource.name))


def unfit_of(control: Control, resource: str) -> tuple[str, ...]:
    """The nodes left aside for a resource; what was noted long ago is forgotten."""
    known = control.unfit.get(resource, {})
    for node in [node for node, (at, _) in known.items() if at <= control.now() - UNFIT_SECONDS]:
        del known[node]
    return tuple(known)


def unfit_nodes(control: Control) -> Mapping[str, Collection[str]]:
    """By resource, where there are any."""
    return {resource: nodes for resource in control.unfit if (nodes := unfit_of(control, resource))}


def why_left_aside(control: Control, job_run: JobRun) -> str:
    """Of a job that waits: which nodes are left aside for its resource, with the last one's reason; or
    nothing."""
    nodes = unfit_of(control, job_run.resource) if job_run.state is JobState.WAITING else ()
    if not nodes:
        return ""
    _, message = control.unfit[job_run.resource][nodes[-1]]
    others = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"node {nodes[-1]}{others} left aside: {message}"
