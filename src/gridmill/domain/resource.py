"""A resource: a named, typed claim; its size and the reason for it; and the alternatives of a job.

A resource is sized from the job's size or by hand. `ResourceAlternative` and `ResourceChoice` record where a
job could run and the expected time to run, to wait and to transfer its data at each place.
"""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.amounts import Amounts, about, check_memory, show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind, JobSize
from gridmill.domain.route import Staging
from gridmill.domain.site import LOCAL, SiteKind
from gridmill.domain.usage import ParallelTiming

DEFAULT_KEEP_SECONDS = 300.0
"""How long a deployment stays up after its last job, unless its resource or its kind of site has another
value."""
KEEP_SECONDS = {SiteKind.SLURM: 0.0, SiteKind.CLOUD: 0.0}
"""The same for sites where others wait for the machine, or where it costs money."""


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


JOB_CPUS = {JobKind.DATASET: 4.0, JobKind.TRAINING: 4.0, JobKind.PREDICTION: 4.0}
"""CPUs that a job of these kinds is given at most where it declares none and CPUs are asked for (see
`asks_for_need`): they use threads or workers. Jobs of other kinds get one."""


def asks_for_need(site: SiteKind) -> bool:
    """Whether a site is asked for what jobs need and when they need it: others wait for what a deployment
    there holds, or it costs money. At other sites a deployment takes what is free."""
    return site in KEEP_SECONDS


def keep_of(resource: Resource, site: SiteKind | None) -> float:
    """Seconds that a deployment of the resource stays up at such a site after its last job."""
    if resource.keep_seconds is not None:
        return resource.keep_seconds
    return KEEP_SECONDS.get(site, DEFAULT_KEEP_SECONDS) if site else DEFAULT_KEEP_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A chosen size: amounts per worker, workers, and the reasons as sentences for people. `left_seconds` is
    what decides the job's place in line (gridmill.domain.ordering); None: nothing was measured."""

    amounts: Amounts
    workers: int = 1
    why: tuple[str, ...] = ()
    expected_seconds: float | None = None
    left_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUse:
    """What an attempt really used. Memory is the peak over all its processes (cgroup or sampled).

    `wall_seconds` is the time from the start of its process until its processes have ended and their output
    is read, as its pod measured it. Forecasts use it. The time of a job from its start to its end also holds
    bringing up its pod, transfers and commits.

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
    `declared` stands for the job's settings and command as they were, and `model_bytes` is what the model of
    its kind gave for them and this size (empty and 0: not known).
    """

    attempt_id: str
    subject: str
    job: str  # pipeline/job
    size: JobSize
    given: Amounts
    use: MeasuredUse
    ended: float
    memory_killed: bool = False
    waited_seconds: float = 0.0
    parallel: ParallelTiming | None = None
    resource: str = ""
    site: str = ""
    declared: str = ""
    model_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEstimate:
    """The expected transfers of a job to a site with its own storage, and back. Of what it reads
    `reused_bytes` are there and `upload_bytes` travel; `download_bytes` is what it makes. None is not known,
    and `unknown` says of what."""

    upload_bytes: int | None = None
    upload_seconds: float | None = None
    reused_bytes: int = 0
    download_bytes: int | None = None
    download_seconds: float | None = None
    upload_bytes_per_second: float | None = None
    download_bytes_per_second: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Seconds for both directions. The result is left out if its size is unknown."""
        if self.upload_seconds is None:
            return None
        return self.upload_seconds + (self.download_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAlternative:
    """A resource that a job may use. `transfer` is None if nothing is transferred. Seconds are None if
    they were not measured. `before` is the number of deployments that wait for room at its site.
    `problem` is the reason why the job cannot run there, `unreachable` why it cannot run there now."""

    resource: str
    site: str
    label: str
    run_seconds: float | None = None
    wait_seconds: float | None = 0.0
    before: int = 0
    transfer: TransferEstimate | None = None
    problem: str = ""
    unreachable: str = ""

    @property
    def quickest_seconds(self) -> float | None:
        """Seconds until the result is at home if the job need not wait."""
        travel = 0.0 if self.transfer is None else self.transfer.seconds
        return None if self.run_seconds is None or travel is None else self.run_seconds + travel

    @property
    def seconds(self) -> float | None:
        """Until what it makes is here."""
        quickest, wait = self.quickest_seconds, self.wait_seconds
        return None if quickest is None or wait is None else quickest + wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChoice:
    """The resource that was chosen among `alternatives`, and why, as a sentence."""

    resource: str
    alternatives: tuple[ResourceAlternative, ...]
    why: str

    @property
    def chosen(self) -> ResourceAlternative:
        """What is expected of it there."""
        return next(alternative for alternative in self.alternatives if alternative.resource == self.resource)


def alternative_text(one: ResourceAlternative) -> str:
    """`gpu-farm 6 min + 3 min transfer`."""
    if one.problem or one.unreachable:
        return f"{one.label} {'cannot run the job' if one.problem else one.unreachable}"
    words = [about(one.run_seconds) if one.run_seconds is not None else "not measured yet"]
    if one.transfer is not None:
        seconds = one.transfer.seconds
        words.append("transfer not known yet" if seconds is None else f"{about(seconds)} transfer")
    behind = f" behind {one.before}" if one.before else ""
    if one.wait_seconds is None:
        words.append(f"an unknown wait{behind}")
    elif one.wait_seconds >= 1:
        words.append(f"{about(one.wait_seconds)} wait{behind}")
    return f"{one.label} {' + '.join(words)}"


def transfer_lines(travel: TransferEstimate, site: str) -> tuple[str, ...]:
    """The amount, time and rate of the transfers as sentences, and what is unknown."""
    lines: list[str] = []
    if travel.upload_bytes is not None:
        message = f" ({show_bytes(travel.reused_bytes)} are there)" if travel.reused_bytes else ""
        size = show_bytes(travel.upload_bytes) if travel.upload_bytes else "nothing"
        lines.append(
            f"{size} to {site}{message}{_taking(travel, is_upload=True) if travel.upload_bytes else ''}"
        )
    if travel.download_bytes is not None:
        back = f"about {show_bytes(travel.download_bytes)}" if travel.download_bytes else "nothing"
        lines.append(f"{back} back{_taking(travel, is_upload=False) if travel.download_bytes else ''}")
    carried = (f"carries {', '.join(lines)}",) if lines else ()
    return (*carried, *(f"not known: {one}" for one in travel.unknown))


def _taking(travel: TransferEstimate, *, is_upload: bool) -> str:
    seconds = travel.upload_seconds if is_upload else travel.download_seconds
    rate = travel.upload_bytes_per_second if is_upload else travel.download_bytes_per_second
    if seconds is None:
        return ""
    return f" in {about(seconds)}" + (f" at {show_bytes(rate)}/s" if rate else "")
