"""This module finds the bottleneck of a job's workers (CPU, disk or waiting), and plans probes that measure
it.

The fractions of the workers' time on a CPU, at the disk and in waiting are computed from the records of the
workers. A probe runs the job alone, with a given number of workers, on a part of its data.
"""

from collections.abc import Iterator, Mapping

from gridmill.domain.advice import Bottleneck
from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Measurement

_NAMES = {
    Bottleneck.CPU: "CPU-bound: its workers compute",
    Bottleneck.DISK: "IO-bound: its workers wait for the disk",
    Bottleneck.WAITING: "waiting: its workers wait for something other than CPU and disk"
    " (the network, a lock, another process, a model on another machine)",
}
_MENTIONED = 0.05
_DISTURBED = 0.1
_TIMED_SECONDS = 0.001


def shares_of(measurement: Measurement) -> Mapping[str, float]:
    """Return the fractions of the workers' time at their shards. The fractions add up to 1; the docstring of
    the class `Advice` explains their meaning. The CPU seconds include all threads of a worker, but the time
    ready without a CPU includes only the first thread. The CPU time is limited to the remaining time,
    because it includes more threads than the time ready without a CPU. `measurement` must contain the times
    of the workers (`parallel`)."""
    timing = measurement.parallel
    if timing is None or not timing.busy_seconds:
        return {"cpu": 0.0, "delay": 0.0, "disk": 0.0, "waiting": 0.0}
    busy = timing.busy_seconds
    delay = min(1.0, (timing.delay_seconds or 0.0) / busy)
    cpu = min(1.0 - delay, timing.cpu_seconds / busy)
    left = 1.0 - delay - cpu
    disk = min(left, _disk_seconds(measurement) / busy)
    return {"cpu": cpu, "delay": delay, "disk": disk, "waiting": max(0.0, left - disk)}


def _disk_seconds(measurement: Measurement) -> float:
    """Return the seconds of waiting for a disk: the value of the kernel, or otherwise the value that the pod
    sampled for all processes."""
    timing = measurement.parallel
    if timing is not None and timing.disk_seconds is not None:
        return timing.disk_seconds
    return measurement.use.disk_seconds or 0.0


def bound_of(shares: Mapping[str, float]) -> Bottleneck:
    """Return the bottleneck of the workers, which is the resource or wait with the largest fraction of their
    time. The time ready without a CPU is not considered, because it is long for CPU-bound workers and for
    all workers on a busy machine."""
    parts = {
        Bottleneck.CPU: shares["cpu"],
        Bottleneck.DISK: shares["disk"],
        Bottleneck.WAITING: shares["waiting"],
    }
    return max(parts, key=lambda bound: parts[bound])


def why_bound(measurement: Measurement, shares: Mapping[str, float], bound: Bottleneck) -> Iterator[str]:
    """Return the reasons why this is the bottleneck of the workers, as sentences with the measured
    values."""
    timing = measurement.parallel
    if timing is None:
        return
    parts = [
        f"{shares['cpu']:.0%} of the time on a CPU",
        f"{shares['disk']:.0%} waiting for the disk",
        f"{shares['waiting']:.0%} waiting for something else",
    ]
    if shares["delay"] >= _MENTIONED:
        parts.insert(1, f"{shares['delay']:.0%} ready to run without a free CPU")
    yield f"{_NAMES[bound]} ({', '.join(parts)}; {measurement.attempt_id}, {timing.workers} workers)"
    moved = (timing.read_bytes or 0) + (timing.written_bytes or 0)
    if bound != Bottleneck.CPU and moved and timing.stage_seconds >= _TIMED_SECONDS:
        speed = show_bytes(int(moved / timing.stage_seconds))
        yield (
            f"they read {show_bytes(timing.read_bytes or 0)} and wrote"
            f" {show_bytes(timing.written_bytes or 0)}"
            f" on disk at {speed}/s"
        )
    if measurement.waited_seconds > measurement.use.wall_seconds / 2:
        yield (
            f"the job waited {show_seconds(measurement.waited_seconds)} for room or its turn before it"
            f" started:"
            " more workers do not shorten this wait"
        )


def disturbed(measurement: Measurement, cpus: float) -> Iterator[str]:
    """Return a sentence if other programs used the CPUs that the workers needed. The result is empty if
    other programs did not use these CPUs."""
    timing, shares = measurement.parallel, shares_of(measurement)
    crowded = timing is not None and timing.workers * timing.cpu_seconds >= cpus * timing.busy_seconds
    if shares["delay"] >= _DISTURBED and not crowded:
        yield (
            f"how long the job takes while other programs use the CPUs: for {shares['delay']:.0%} of the"
            f" time the"
            " workers were ready and other programs had the CPUs; the times above assume free CPUs"
        )


def blind_spot(measurement: Measurement) -> str:
    """Return a sentence about possible causes of waiting that the measurements cannot distinguish. The
    result is empty if there are no such causes."""
    timing = measurement.parallel
    if timing is None or timing.disk_seconds is not None or measurement.use.disk_seconds is not None:
        return ""
    return (
        "how much of the wait is for the disk: the kernel does not count it"
        " (to make it count: `sysctl kernel.task_delayacct=1`)"
    )


def has_workers(job: Job) -> bool:
    """Return whether the job uses several workers and their number can be chosen."""
    return job.prediction is not None


def may_be_cut(job: Job) -> bool:
    """Return whether a job whose number of workers cannot be chosen may run in parts, on several machines at
    the same time."""
    if job.dataset is not None:
        return bool(entity_of(job.dataset))
    return job.sink is not None and job.sink.source.splits


def leaves_workers_open(job: Job) -> bool:
    """Return whether Gridmill chooses the number of workers of the job."""
    return job.prediction is not None and job.prediction.workers is None


def entity_of(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the columns by which the rows are divided into parts. The result is empty if the job runs as a
    whole."""
    return spec.basis.entity if spec.basis else spec.entity if spec.time else ()


def probe_job(job: Job, pipeline: str, workers: int) -> Job:
    """Return the job as the only job of a probe: with that number of workers, and without the jobs that it
    needs. The returned job reads the newest existing versions of its inputs."""
    spec = job.prediction
    assert spec is not None
    return replace(job, needs=(), retries=0, prediction=_outside(replace(spec, workers=workers), pipeline))


def _outside(spec: PredictionSpec, pipeline: str) -> PredictionSpec:
    def named(reference: str) -> str:
        return reference if "/" in reference else f"{pipeline}/{reference}"

    return replace(spec, dataset=named(spec.dataset), models=tuple(map(named, spec.models)))
