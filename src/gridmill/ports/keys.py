"""The key, the parent and the liveness of each noun, as every store uses them."""

from gridmill.model.alias import Alias
from gridmill.model.alteration import Alterations
from gridmill.model.artifact import Artifact
from gridmill.model.backfill import Backfill, Chunk
from gridmill.model.deployment import Deployment
from gridmill.model.latest import Latest
from gridmill.model.origin import Origin
from gridmill.model.pipeline import Pipeline
from gridmill.model.project import Project
from gridmill.model.provenance import CodeList, Provenance
from gridmill.model.resource import Measurement, Resource
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.schedule import Schedule
from gridmill.model.site import Site
from gridmill.model.state import FINISHED_RUNS, LIVE_ATTEMPTS, DeploymentState
from gridmill.ports.store import Noun

_Named = Site | Resource | Project | Pipeline | Schedule | Backfill | Alterations | Latest | Origin
"""Known by their names, and below nothing."""


def key_of(noun: Noun) -> str:
    """The key: unique within the class."""
    if isinstance(noun, _Named):
        return noun.name
    match noun:
        case Measurement():
            return noun.attempt_id
        case CodeList():
            return noun.hash
        case Run() | JobRun() | Attempt() | Deployment() | Artifact() | Alias() | Chunk() | Provenance():
            return noun.id


def parent_of(noun: Noun) -> str:
    """What `Store.list(parent=...)` filters by: a run's pipeline, a JobRun's run, an attempt's run,
    the name of an artifact, an alias or a provenance, a measurement's subject, a deployment's resource, a
    chunk's pipeline; else empty."""
    if isinstance(noun, _Named):
        return ""
    match noun:
        case Run():
            return noun.pipeline
        case JobRun() | Attempt():
            return noun.run_id
        case Artifact() | Alias() | Provenance():
            return noun.name
        case Measurement():
            return noun.subject
        case Deployment():
            return noun.resource
        case Chunk():
            return noun.pipeline.name
        case CodeList():
            return ""


def is_live(noun: Noun) -> bool:
    """False for what is finished by itself. (A JobRun is live while its run is: stores join the two.)"""
    match noun:
        case Run():
            return noun.state not in FINISHED_RUNS
        case Attempt():
            return noun.state in LIVE_ATTEMPTS
        case Deployment():
            return noun.state != DeploymentState.GONE
        case Chunk():
            return noun.left
        case Artifact() | Alias() | Alterations() | Measurement() | Pipeline() | Latest() | Origin():
            return False
        case Provenance() | CodeList():
            return False
        case Site() | Resource() | Project() | Schedule() | Backfill() | JobRun():
            return True
