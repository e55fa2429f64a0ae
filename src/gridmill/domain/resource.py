"""This module defines a resource, which is a named amount of CPUs, memory, GPUs and workers for one kind of
job, the reasons for its size, and the alternative resources of a job.

The size of a resource follows from the size of its jobs, or is set by a user. `ResourceAlternative` and
`ResourceChoice` record on which resources a job could run, with the expected run time, wait and transfer
time on each resource.
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
"""The seconds for which a deployment is kept after its last job, unless its resource or its kind of site has
another value."""
KEEP_SECONDS = {SiteKind.SLURM: 0.0, SiteKind.CLOUD: 0.0, SiteKind.BATCH: 0.0}
"""The keep time at sites where other users wait for the machine, or where the machine costs money."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The amounts that jobs of one type may use at one site; an amount of None is chosen from `size` and
    from the jobs themselves.

    `cpus`, `memory_bytes` and `gpus` are amounts of each worker. `jobs` has the names of the jobs (`job` or
    `pipeline/job`) that were assigned to the resource. `default` is true for the resource that Gridmill
    makes for jobs without a resource: it never has GPUs. A deployment of the resource is kept for
    `keep_seconds` after its last job. If `keep_seconds` is None, the deployment is kept for 5 minutes, or
    not at all at Slurm, cloud and batch sites. `settings` are settings for the kind of the site; for this
    resource they replace the settings of the site. `staging` is the way in which the data of the jobs is
    transferred to a site of kind cluster (None: direct).
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
        """Raise InputError if the memory size of the resource is implausible."""
        check_memory(self.memory_bytes, "resource.memory")


def default_name(kind: JobKind, site: str = LOCAL) -> str:
    """Return the name of the resource of jobs that name no resource."""
    return f"default-{kind}" if site == LOCAL else f"default-{kind}-{site}"


def default_resource(kind: JobKind, site: str = LOCAL) -> Resource:
    """Return the resource of jobs that name no resource."""
    return Resource(name=default_name(kind, site), type=kind, site=site, default=True)


JOB_CPUS = {JobKind.DATASET: 4.0, JobKind.TRAINING: 4.0, JobKind.PREDICTION: 4.0}
"""For each kind of job that uses threads or workers: the largest number of CPUs that Gridmill requests for a
job that declares none. Sites such as Slurm need this number (see `asks_for_need`). A job of any other kind
gets one CPU if it declares no number of CPUs."""


def asks_for_need(site: SiteKind) -> bool:
    """Return whether a deployment at a site of this kind requests only the amounts that jobs need, and only
    when jobs need them, because the machine costs money or other users wait for it. At all other sites, a
    deployment takes all amounts that are free."""
    return site in KEEP_SECONDS


def keep_of(resource: Resource, site: SiteKind | None) -> float:
    """Return the seconds for which a deployment of the resource is kept after its last job, at a site of
    this kind."""
    if resource.keep_seconds is not None:
        return resource.keep_seconds
    return KEEP_SECONDS.get(site, DEFAULT_KEEP_SECONDS) if site else DEFAULT_KEEP_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The size that Gridmill chose for a job: CPUs, memory and GPUs of each worker, the number of workers,
    and the reasons as sentences for people. `left_seconds` determines the position of the job in the queue
    (gridmill.domain.ordering); it is None if nothing was measured."""

    amounts: Amounts
    workers: int = 1
    why: tuple[str, ...] = ()
    expected_seconds: float | None = None
    left_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUse:
    """The measured resource use of an attempt. The memory is the peak over all processes of the attempt
    (from the cgroup or sampled).

    `wall_seconds` is the time from the start of the attempt's process until its processes have ended and
    their output is read, as its pod measured it. Forecasts use the time in `wall_seconds`. The time of a job
    from its start to its end also includes the start of its pod, transfers and commits.

    `system_seconds` is the part of the CPU seconds that the kernel used for the attempt. `disk_seconds` is
    the number of seconds in which a process of the attempt waited for a disk (sampled). A value is None if
    it was not measured.
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
    """The measured use of one attempt together with the size of its data, from which later jobs are sized.

    `subject` is the kind of job with its variant, such as `training/lstm`, `sink/csv` or
    `command/<pipeline>/<job>`. `waited_seconds` is the time from the moment when the job was ready to the
    moment when the attempt was placed. `parallel` has the times of the workers of the attempt, if it had
    workers. `resource` and `site` are the resource and the site where the attempt ran (empty in older
    records). `declared` identifies the settings and the command of the job at that time (empty if unknown).
    `model_bytes` is the estimate of the memory model for these settings and this size (0 if unknown).
    """

    attempt_id: str
    subject: str
    job: str
    """The job, in the form `pipeline/job`."""
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
    """The amounts of data that are expected to be transferred for a job to a site with its own storage, and
    back from this site. Of the inputs of the job, `reused_bytes` are already at the site and `upload_bytes`
    must be transferred. `download_bytes` is the size of the result of the job. A size is None if it is
    unknown, and `unknown` lists the inputs and results whose size is unknown."""

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
        """The seconds that the transfers in both directions take. If the size of the result is unknown, its
        transfer is not included."""
        if self.upload_seconds is None:
            return None
        return self.upload_seconds + (self.download_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAlternative:
    """A resource on which a job may run, with the expected times. `transfer` is None if no data is
    transferred. A number of seconds is None if it was not measured. `before` is the number of deployments
    that wait at the site of the resource. `problem` is the reason why the job cannot run on this resource,
    and `unreachable` is the reason why it cannot run there now."""

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
        """The seconds until the result is at home if the job does not have to wait."""
        travel = 0.0 if self.transfer is None else self.transfer.seconds
        return None if self.run_seconds is None or travel is None else self.run_seconds + travel

    @property
    def seconds(self) -> float | None:
        """The seconds until the result is at home, including the wait of the job."""
        quickest, wait = self.quickest_seconds, self.wait_seconds
        return None if quickest is None or wait is None else quickest + wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChoice:
    """The resource that was chosen for a job among `alternatives`, and the reason as a sentence."""

    resource: str
    alternatives: tuple[ResourceAlternative, ...]
    why: str

    @property
    def chosen(self) -> ResourceAlternative:
        """The alternative that belongs to the chosen resource."""
        return next(alternative for alternative in self.alternatives if alternative.resource == self.resource)


def alternative_text(one: ResourceAlternative) -> str:
    """Format an alternative resource as `gpu-farm 6 min + 3 min transfer`."""
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
    """Return sentences about the amount, time and rate of the transfers, and about the inputs and results
    whose size is unknown."""
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
