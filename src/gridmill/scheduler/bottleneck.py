"""Finds what limits a job's workers (CPU, disk or waiting), and plans probes that measure it.

The shares come from the workers' own records. A probe runs the job alone, with a given number of workers on a
part of its data.
"""

from collections.abc import Iterator, Mapping

from gridmill.domain.advice import Bound
from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Measurement

_NAMES = {
    Bound.CPU: "CPU-bound: its workers compute",
    Bound.DISK: "IO-bound: its workers wait for the disk",
    Bound.WAITING: "waiting: its workers stand still for something else than CPU and disk"
    " (the network, a lock, another process, a model that answers elsewhere)",
}
_MENTIONED = 0.05
_DISTURBED = 0.1
_TIMED_SECONDS = 0.001


def shares_of(known: Measurement) -> Mapping[str, float]:
    """Parts of the workers' time at their shards, as in Advice: of one whole. CPU seconds are counted of all
    their threads, those ready without one of the first: of these no more are told than it had left.
    `known` has a parallel part."""
    told = known.parallel
    if told is None or not told.busy_seconds:
        return {"cpu": 0.0, "delay": 0.0, "disk": 0.0, "waiting": 0.0}
    busy = told.busy_seconds
    delay = min(1.0, (told.delay_seconds or 0.0) / busy)
    cpu = min(1.0 - delay, told.cpu_seconds / busy)
    left = 1.0 - delay - cpu
    disk = min(left, _disk_seconds(known) / busy)
    return {"cpu": cpu, "delay": delay, "disk": disk, "waiting": max(0.0, left - disk)}


def _disk_seconds(known: Measurement) -> float:
    """The kernel's figure, else what the pod saw of all processes."""
    told = known.parallel
    if told is not None and told.disk_seconds is not None:
        return told.disk_seconds
    return known.use.disk_seconds or 0.0


def bound_of(shares: Mapping[str, float]) -> Bound:
    """The largest part. Time without a CPU is left aside: it is long for those who compute, and for whoever
    shares a busy machine."""
    parts = {
        Bound.CPU: shares["cpu"],
        Bound.DISK: shares["disk"],
        Bound.WAITING: shares["waiting"],
    }
    return max(parts, key=lambda bound: parts[bound])


def why_bound(known: Measurement, shares: Mapping[str, float], bound: Bound) -> Iterator[str]:
    """Sentences with the numbers."""
    told = known.parallel
    if told is None:
        return
    parts = [
        f"{shares['cpu']:.0%} of their time on a CPU",
        f"{shares['disk']:.0%} for the disk",
        f"{shares['waiting']:.0%} waiting",
    ]
    if shares["delay"] >= _MENTIONED:
        parts.insert(1, f"{shares['delay']:.0%} ready without a CPU")
    yield f"{_NAMES[bound]} ({', '.join(parts)}; {known.attempt_id}, {told.workers} workers)"
    moved = (told.read_bytes or 0) + (told.written_bytes or 0)
    if bound != Bound.CPU and moved and told.stage_seconds >= _TIMED_SECONDS:
        speed = show_bytes(int(moved / told.stage_seconds))
        yield (
            f"they read {show_bytes(told.read_bytes or 0)} and wrote {show_bytes(told.written_bytes or 0)}"
            f" on disks, {speed}/s"
        )
    if known.waited_seconds > known.use.wall_seconds / 2:
        yield (
            f"before it began it waited {show_seconds(known.waited_seconds)} for a place or its turn:"
            " more workers do not shorten that"
        )


def disturbed(known: Measurement, cpus: float) -> Iterator[str]:
    """A sentence where others had the CPUs for which the workers were ready."""
    told, shares = known.parallel, shares_of(known)
    crowded = told is not None and told.workers * told.cpu_seconds >= cpus * told.busy_seconds
    if shares["delay"] >= _DISTURBED and not crowded:
        yield (
            f"how long it takes while others compute: {shares['delay']:.0%} of their time the workers were"
            " ready and others had the CPUs; the times are for free CPUs"
        )


def blind_spot(known: Measurement) -> str:
    """What the records cannot tell apart; empty when they can."""
    told = known.parallel
    if told is None or told.disk_seconds is not None or known.use.disk_seconds is not None:
        return ""
    return (
        "how much of the waiting is for the disk: the kernel does not count it"
        " (`sysctl kernel.task_delayacct=1` lets it)"
    )


def has_workers(job: Job) -> bool:
    """Whether a job's work is done by workers of its own, of which there may be any number."""
    return job.prediction is not None


def may_be_cut(job: Job) -> bool:
    """Whether a job without workers of its own may be done in parts, on several machines at once."""
    if job.dataset is not None:
        return bool(entity_of(job.dataset))
    return job.sink is not None and job.sink.source.splits


def leaves_workers_open(job: Job) -> bool:
    """Whether Gridmill is to choose how many."""
    return job.prediction is not None and job.prediction.workers is None


def entity_of(spec: DatasetSpec) -> tuple[str, ...]:
    """The columns by which its rows are cut; none: it is done in one."""
    return spec.basis.entity if spec.basis else spec.entity if spec.time else ()


def probe_job(job: Job, pipeline: str, workers: int) -> Job:
    """The job with so many workers, needing nothing in its run: it reads the newest versions there are."""
    spec = job.prediction
    assert spec is not None
    return replace(job, needs=(), retries=0, prediction=_outside(replace(spec, workers=workers), pipeline))


def _outside(spec: PredictionSpec, pipeline: str) -> PredictionSpec:
    def named(reference: str) -> str:
        return reference if "/" in reference else f"{pipeline}/{reference}"

    return replace(spec, dataset=named(spec.dataset), models=tuple(map(named, spec.models)))
