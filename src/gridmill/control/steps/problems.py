"""This module has lasting problems, which are reported once until they change or end, and nodes that are
unfit for a resource.

A node is unfit if it lacks properties that the pods of a resource need. An unfit node is not used while
other nodes are sufficient.
"""

from collections.abc import Collection, Mapping

from gridmill.control.background import BackgroundRunner
from gridmill.control.ledger import Ledger
from gridmill.control.state import BringUps, Problems, Timeline
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.run import JobRun
from gridmill.domain.states import JobState
from gridmill.scheduler.feasibility import will_do_without


def set_problem(problems: Problems, what: str, trouble: str) -> None:
    """Set the problem of the subject `what`, and warn of the problem if it is new. If the text of the
    problem is empty, the problem ends."""
    if not trouble:
        problems.lasting.pop(what, None)
    elif problems.lasting.get(what) != trouble:
        problems.lasting[what] = trouble
        problems.warn(trouble)


def set_problems(problems: Problems, kind: str, troubles: Mapping[str, str]) -> None:
    """Set the problems of that kind, by subject, and end all other problems of that kind."""
    now = {f"{kind} {what}": trouble for what, trouble in troubles.items()}
    for known in [key for key in problems.lasting if key.startswith(f"{kind} ")]:
        if known not in now:
            del problems.lasting[known]
    for what, trouble in now.items():
        set_problem(problems, what, trouble)


def surveyed(
    ledger: Ledger, problems: Problems, background_runner: BackgroundRunner, site: str, trouble: str
) -> None:
    """Record the result of a poll of a site. If a site does not answer, the problem is reported once, by the
    poll or by the observation of its pods. A later observation of the pods ends the problem that the site
    does not answer. A later poll ends the problem that the site does not answer only if the site has no
    pods, or while an observation is running."""
    subject = f"site {site}"
    pods = any(deployment.site == site for deployment in ledger.snapshot.deployments.values())
    if not trouble and (not pods or background_runner.is_running(f"observe {site}")):
        set_problem(problems, subject, "")
    set_problem(problems, f"look {site}", "" if subject in problems.lasting else trouble)


def clear_ended(ledger: Ledger, problems: Problems) -> None:
    """Clear the problems of deployments and sites that have ended."""
    snapshot = ledger.snapshot
    for what in tuple(problems.lasting):
        kind, _, name = what.rpartition(" ")
        deployments = snapshot.deployments if not kind else snapshot.sites
        if kind in ("", "site", "look") and name not in deployments:
            del problems.lasting[what]


def problem_of_site(problems: Problems, site: str) -> str:
    """Return the reason why a site does not answer. The result is empty if the site answers."""
    return problems.lasting.get(f"site {site}") or problems.lasting.get(f"look {site}") or ""


DISK = "disk"
"""The subject of the lasting problem of a disk that is nearly full."""


def problems(problems: Problems) -> tuple[str, ...]:
    """Return all lasting problems of the control node."""
    # a copy, because a tick may add a problem meanwhile
    return tuple(dict.fromkeys(tuple(problems.lasting.values())))


UNFIT_SECONDS = 600.0
"""The number of seconds for which an unfit node is not used again. After this time, the node may have been
repaired, or other pods on the node may have ended."""


def note_unfit(
    ledger: Ledger, bring_ups: BringUps, timeline: Timeline, deployment: Deployment, pod: Pod, message: str
) -> bool:
    """Record that the node of a pod is unfit for its resource. The function returns whether other nodes are
    sufficient."""
    nodes = bring_ups.unfit.setdefault(deployment.resource, {})
    nodes[pod.node] = (timeline.now(), message)
    snapshot = ledger.snapshot
    resource = snapshot.resource_of(deployment.resource, deployment.type)
    return resource is not None and will_do_without(
        snapshot, resource, unfit_of(bring_ups, timeline, resource.name)
    )


def unfit_of(bring_ups: BringUps, timeline: Timeline, resource: str) -> tuple[str, ...]:
    """Return the nodes that a resource does not use because they are unfit for it. Records of unfit nodes
    that are too old are removed."""
    nodes = bring_ups.unfit.get(resource, {})
    for node in [node for node, (at, _) in nodes.items() if at <= timeline.now() - UNFIT_SECONDS]:
        del nodes[node]
    return tuple(nodes)


def unfit_nodes(bring_ups: BringUps, timeline: Timeline) -> Mapping[str, Collection[str]]:
    """Return the unfit nodes by resource. Resources without unfit nodes are left out."""
    return {
        resource: nodes for resource in bring_ups.unfit if (nodes := unfit_of(bring_ups, timeline, resource))
    }


def why_excluded(bring_ups: BringUps, timeline: Timeline, job_run: JobRun) -> str:
    """For a waiting job, return a text about the nodes that its resource does not use, with the last reason.
    The result is empty if its resource uses all nodes."""
    nodes = unfit_of(bring_ups, timeline, job_run.resource) if job_run.state is JobState.WAITING else ()
    if not nodes:
        return ""
    _, message = bring_ups.unfit[job_run.resource][nodes[-1]]
    others = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"node {nodes[-1]}{others} not used: {message}"
