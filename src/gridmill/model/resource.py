"""A resource: a named, typed claim, sized from the job's size or by hand; and the size chosen, with why."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.model.amounts import Amounts, check_memory
from gridmill.model.job import JobKind, JobSize
from gridmill.model.noun import dataclass
from gridmill.model.parallel import Parallel
from gridmill.model.site import LOCAL, SiteKind
from gridmill.model.staging import Staging

DEFAULT_KEEP_SECONDS = 300.0
"""How long a deployment stays up after its last job, unless its resource says it;"""
KEEP_SECONDS = {SiteKind.SLURM: 0.0, SiteKind.CLOUD: 0.0}
"""but where others wait for the machine, or it costs money."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What jobs of one type may use. None means: choose from `size` and from the jobs themselves.

    `cpus`, `memory_bytes` and `gpus` are per worker. `jobs` names the jobs (`job` or `pipeline/job`)
    that were assigned to it. `default` marks the one made for jobs without a resource: it never has GPUs.
    A deployment of it stays up `keep_seconds` after its last job (None: 5 minutes; at Slurm or a cloud 0).
    `settings` are of the site's kind, and stand for this resource before the site's own. `staging` says how
    its jobs' data gets to a site of kind cluster (None: direct).
    """

    name: str
    type: JobKind
    site: str = LOCAL
    size: JobSize | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    workers: int | None = None
    keep_seconds: float | None = None
    staging: Staging | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    default: bool = False

    def check(self) -> None:
        """Raise InputError for memory that was meant otherwise."""
        check_memory(self.memory_bytes, "resource.memory")


def default_name(kind: JobKind, site: str = LOCAL) -> str:
    """What the resource of jobs that name none is called."""
    return f"default-{kind}" if site == LOCAL else f"default-{kind}-{site}"


def default_resource(kind: JobKind, site: str = LOCAL) -> Resource:
    """The resource of a job that names none."""
    return Resource(name=default_name(kind, site), type=kind, site=site, default=True)


def keep_of(resource: Resource, site: SiteKind | None) -> float:
    """Seconds for which a deployment of it at such a site stays up after its last job."""
    if resource.keep_seconds is not None:
        return resource.keep_seconds
    return KEEP_SECONDS.get(site, DEFAULT_KEEP_SECONDS) if site else DEFAULT_KEEP_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A chosen size: amounts per worker, workers, and the reasons as sentences for people. `left_seconds` is
    what decides the job's place in line (gridmill.planning.service); None: nothing was measured."""

    amounts: Amounts
    workers: int = 1
    why: tuple[str, ...] = ()
    expected_seconds: float | None = None
    left_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What an attempt really used. Memory is the peak over all its processes (cgroup or sampled PSS).

    `system_seconds` is the part of the CPU seconds that the kernel worked for it. `disk_seconds` counts each
    second that a process stood still for a disk (sampled). None: it was not measured.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    system_seconds: float | None = None
    disk_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One attempt's use beside the size it had: what the next sizing learns from.

    `subject` is the kind with its variant, e.g. `training/lstm`, `sink/csv`, `command/<pipeline>/<job>`.
    `waited_seconds` is how long the job was ready before the attempt had a place. `parallel` tells of its
    workers, where it had any. `resource` and `site` are where it ran (empty: older ones do not say).
    """

    attempt_id: str
    subject: str
    job: str  # pipeline/job
    size: JobSize
    given: Amounts
    use: Use
    ended: float
    memory_killed: bool = False
    waited_seconds: float = 0.0
    parallel: Parallel | None = None
    resource: str = ""
    site: str = ""
