"""A resource: a named, typed claim, sized from the job's size or by hand; and the size chosen, with why."""

from dataclasses import dataclass

from gridmill.model.amounts import Amounts
from gridmill.model.job import JobKind, JobSize

DEFAULT_KEEP_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What jobs of one type may use. None means: choose from `size` and from the jobs themselves.

    `cpus`, `memory_bytes` and `gpus` are per worker. `jobs` names the jobs (`job` or `pipeline/job`)
    that were assigned to it. `default` marks the one made for jobs without a resource: it never has GPUs.
    A deployment of it stays up `keep_seconds` after its last job.
    """

    name: str
    type: JobKind
    site: str = "local"
    size: JobSize | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    workers: int | None = None
    keep_seconds: float = DEFAULT_KEEP_SECONDS
    jobs: tuple[str, ...] = ()
    default: bool = False


def default_resource(kind: JobKind) -> Resource:
    """The resource of a job that names none."""
    return Resource(name=f"default-{kind}", type=kind, default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A chosen size: amounts per worker, workers, and the reasons as sentences for people."""

    amounts: Amounts
    workers: int = 1
    why: tuple[str, ...] = ()
    expected_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What an attempt really used. Memory is the peak over all its processes (cgroup or sampled PSS)."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One attempt's use beside the size it had: what the next sizing learns from.

    `subject` is the kind with its variant, e.g. `training/lstm`, `sink/csv`, `command/<pipeline>/<job>`.
    """

    attempt_id: str
    subject: str
    job: str  # pipeline/job
    size: JobSize
    given: Amounts
    use: Use
    ended: float
    memory_killed: bool = False
