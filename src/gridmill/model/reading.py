"""Which kind of version a job reads under a name of another pipeline's."""

from gridmill.errors import InputError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.job import Job

_TABLES = (ArtifactKind.SINK, ArtifactKind.DATASET, ArtifactKind.PREDICTION)


def check_kind(job: Job, reference: str, artifact: Artifact) -> None:
    """Raise InputError for a model where a table is read, a sink where a model is asked for, and the like."""
    wanted = _wanted(job, reference)
    if wanted and artifact.kind not in wanted:
        raise InputError(
            f"job {job.name!r} reads {reference!r} as a {wanted[0]}: it is a {artifact.kind}",
            hint=f"`gridmill list {wanted[0]}` shows those that there are.",
        )


def _wanted(job: Job, reference: str) -> tuple[ArtifactKind, ...]:
    """Empty: any kind will do."""
    learned = job.training or job.prediction
    if learned is not None:
        return (ArtifactKind.MODEL,) if reference in learned.models else (ArtifactKind.DATASET,)
    if job.sink is not None:
        return (ArtifactKind.SINK,)
    return _TABLES if job.dataset is not None else ()
