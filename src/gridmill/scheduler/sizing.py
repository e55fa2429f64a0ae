"""This module determines the sizes of jobs and resources, with the reasons for each size. A size comes from
a memory model for each kind of job, which is corrected by measurements."""

import re
from hashlib import sha256
from math import inf

from gridmill.domain.amounts import MIB, Amounts, show_bytes, show_count, show_cpus
from gridmill.domain.footprint import (
    KINDS,
    cells_of,
    data_bytes,
    footprint_of,
    is_plain,
    knows_settings,
    leaves_trials_open,
    memory_of,
    model_name,
    swarm_bytes,
    workers_of,
)
from gridmill.domain.frozen import dataclass, replace, text_of_changes
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.ordering import expected_left
from gridmill.domain.resource import Measurement, Resource, Sizing
from gridmill.domain.usage import ParallelTiming
from gridmill.scheduler.advice import AdviceInput, advised_workers, most_of, pace_of
from gridmill.scheduler.bottleneck import has_workers, leaves_workers_open
from gridmill.scheduler.feasibility import cpus_of, gpus_of, leave_room
from gridmill.scheduler.forecast import expected_seconds, lasted
from gridmill.scheduler.history import MeasurementHistory

SEVERAL_COMMANDS = 3
"""After this many different texts of a command, the text shows nothing about the memory of the command."""
_TIMES = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d){0,2}([.]\d+)?(Z|[+-]\d\d:?\d\d)?)?")
STEP = 16 * MIB
"""The sizes of jobs are multiples of this number of bytes. Jobs with similar needs therefore have equal
sizes and are in one class of the planner."""
MODEL_MARGIN = 1.5
"""The margin factor of an estimate that is not supported by measurements."""
MARGINS = {1: 1.5, 2: 1.4}
"""The margin factor above the largest peak of a job that was measured once or twice. With fewer
measurements, the variation of the peak is less certain."""
MARGIN = 1.3
"""The margin factor of a job that was measured more often. Fewer than 1 % of runs exceed the largest of
three measurements by more than 30 %."""
SPILLING_MARGIN = 1.5
"""The margin factor of a job that spills, however often it was measured. The engine of a job that spills
gets a share of the memory, and fails when this share is full. A measured job used 605 MiB of 928 MiB, but
with 896 MiB it failed at 590 MiB."""
NEAR = 1.5
"""Sizes of data that differ by at most this factor are treated as equal."""
SPILLED = 0.5
"""The memory of a job that spills grows with this power of its number of rows. In measurements of jobs that
spill, a quarter more rows needed 0 to 12 % more memory."""
ENOUGH = 1.25
"""If an attempt had more than this factor times the memory that other attempts needed, it used more memory
only because its limit was higher."""
GROWTH, LATER_GROWTH = 2, 4
"""The growth factors of the memory of a job that ran out of memory: after the first kill, and after later
kills of a job whose size was an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """An estimate of the memory in bytes, with its margin and the source of the estimate."""

    memory_bytes: int
    why: str


def subject_of(job: Job, pipeline: str) -> str:
    """Return the subject under which the measurements of this job are stored: its kind and variant
    (`training/lstm`, `sink/csv`)."""
    if job.training and job.runs_code:
        return f"training/custom/{pipeline}/{job.name}"
    if job.training:
        return f"training/{job.training.model}"
    if job.sink:
        source = job.sink.source
        kind = "sql" if source.sql else "jsonl" if source.stream else source.format
        return f"sink/{kind or _suffix(source.path)}"
    if job.dataset:
        return "dataset/sql" if job.dataset.sql else "dataset/features"
    if job.command:
        return f"command/{pipeline}/{job.name}"
    if job.service and job.service.calibrates:
        return "service/calibration"
    return str(job.kind)


def _suffix(path: str | tuple[str, ...]) -> str:
    first = path if isinstance(path, str) else next(iter(path), "")
    for part in reversed(first.lower().split(".")[1:]):
        if part in ("csv", "parquet", "jsonl", "json", "tsv"):
            return {"json": "jsonl", "tsv": "csv"}.get(part, part)
    return "csv"


def size_job(
    job: Job,
    size: JobSize,
    history: MeasurementHistory,
    *,
    pipeline: str,
    resource: Resource,
    largest: Amounts,
    nodes: int,
    parts: int = 1,
    pods: int = 1,
) -> Sizing:
    """Return the size of one attempt of a job. If the job is done in `parts`, the function returns the size
    of the attempt of one part. `largest` are the largest amounts that one pod can get at the resource's
    site, which has `nodes` nodes. The workers of the job may use up to `pods` pods.

    The memory of the attempt is the declared memory of the job. If no memory is declared, the memory comes
    from measurements of the same job, scaled by the size of the data. Without measurements of the job, the
    memory comes from the memory model of its kind, corrected by measurements of its subject. An estimate is
    cut at `largest` and at the memory of the resource, and the reasons of the size mention this. A declared
    amount is not cut, because the planner refuses the job if the amount is too large. A job that spills
    leaves memory for the other pods of its resource, because it would not be faster alone with all the
    memory.
    """
    if job.starts_service:
        return _OF_SERVICE_JOB
    size = _whole(job, size, resource)
    advice_input = _advice_input(job, history, pipeline, resource, largest, pods)
    advised = advised_workers(advice_input) if advice_input and leaves_workers_open(job) else None
    workers = advised or workers_of(job, size, (job.cpus or cpus_of(resource, largest)) * pods)
    estimate = _declared(job) or _estimate(job, size, history, pipeline, workers, parts)
    memory, why = estimate.memory_bytes, [estimate.why]
    if job.memory_bytes is None:
        memory, cut = _cut(memory, resource, largest)
        if _gets_by_with_less(job, history, pipeline):
            memory, extra_bytes = leave_room(memory, resource, largest, nodes)
            cut += extra_bytes
        why += cut
        if cut and leaves_trials_open(job):
            workers = max(1, int(workers * memory / estimate.memory_bytes))
            why.append(f"this is enough for {workers} trials at once")
    if workers > 1:
        why.append(f"shared by {workers} workers")
    if job.gang:
        why.append(f"for each of {job.gang} ranks")
    if advised:
        why.append(f"{show_count(workers, 'worker')}: the recommended number, based on past attempts")
    name, subject = f"{pipeline}/{job.name}", subject_of(job, pipeline)
    pace = pace_of(advice_input, workers) if advice_input else None
    return Sizing(
        amounts=Amounts(cpus=job.cpus or 1.0, memory_bytes=memory, gpus=_gpus(job, resource)),
        workers=job.gang or workers,
        why=tuple(why),
        expected_seconds=expected_seconds(name, subject, size, history, pace, resource),
        left_seconds=_left(name, subject, size, history),
    )


def _gpus(job: Job, resource: Resource) -> int:
    """Return the number of GPUs of a job. A service on a GPU that services share gets a part of the shares
    of the resource."""
    shares = job.service.gpus if job.service is not None else None
    return gpus_of(resource) if shares is None else min(shares, gpus_of(resource))


_OF_SERVICE_JOB = Sizing(
    amounts=Amounts(), why=("the service has a size of its own",), expected_seconds=0.0, left_seconds=0.0
)


def _left(name: str, subject: str, size: JobSize, history: MeasurementHistory) -> float | None:
    """Return the expected remaining time in seconds, which determines the position of the job in the queue.
    The result is None if nothing was measured."""
    durations = lasted(name, subject, size, history)
    return expected_left(durations, 0.0) if durations else None


def _advice_input(
    job: Job, history: MeasurementHistory, pipeline: str, resource: Resource, largest: Amounts, pods: int
) -> AdviceInput | None:
    """Return the measurements for advice on a job with workers."""
    if not has_workers(job):
        return None
    name = f"{pipeline}/{job.name}"
    measured = history.of_workers(name, subject_of(job, pipeline))
    return AdviceInput(name=name, job=job, measured=measured, most=most_of(resource, largest), pods=pods)


def _whole(job: Job, size: JobSize, resource: Resource) -> JobSize:
    """Return the size of the data of the job. Declared values take precedence over measured values. Values
    that are unknown are taken from the size that is set for the resource."""
    if job.rows is not None:
        size = replace(size, rows=job.rows)
    return size if resource.size is None else size.or_else(resource.size)


def _declared(job: Job) -> _Estimate | None:
    if job.memory_bytes is None:
        return None
    return _Estimate(
        memory_bytes=job.memory_bytes, why=f"{show_bytes(job.memory_bytes)}: declared by the job"
    )


def _estimate(
    job: Job, size: JobSize, history: MeasurementHistory, pipeline: str, workers: int, parts: int
) -> _Estimate:
    subject = subject_of(job, pipeline)
    same_job = history.of_job(f"{pipeline}/{job.name}", subject)
    alike = _declared_alike(job, same_job)
    if alike:
        return _by_job(job, size, alike, workers, parts)
    same_subject = () if is_plain(job) else history.of_subject(subject)
    by_model = _by_model(job, size, workers, same_subject)
    if same_job:
        by_job = _by_job(job, size, same_job, workers, parts)
        changed = f"{by_model.why}, as its code or settings changed since it was measured"
        return max(by_job, replace(by_model, why=changed), key=lambda one: one.memory_bytes)
    return by_model


def declared_as(job: Job) -> str:
    """Return a hash of the settings and the command that the memory of the job may depend on. Dates and
    times in a command do not change the hash, because a schedule changes them in each run."""
    spec = text_of_changes(job.spec)
    text = _TIMES.sub("", spec) if is_plain(job) else spec
    return sha256(text.encode()).hexdigest()[:16]


def _declared_alike(job: Job, measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """Return the measurements that are valid for the job as it is declared now. If the memory model uses the
    settings of the job, all measurements are valid. If the memory model does not use the settings of the
    job, only the measurements with the same command are valid. If several commands were measured, all
    measurements are valid, because the command changes each time."""
    if not measured or knows_settings(job):
        return measured
    now = declared_as(job)
    alike = tuple([one for one in measured if one.declared in ("", now)])
    return alike or (measured if len({one.declared for one in measured}) >= SEVERAL_COMMANDS else ())


def _by_job(
    job: Job, size: JobSize, measured: tuple[Measurement, ...], workers: int, parts: int
) -> _Estimate:
    """Return the largest peak, scaled to this size and these settings, plus a margin that shrinks with the
    number of attempts."""
    needed = {one.attempt_id: _needed(one) for one in measured}
    same = tuple([one for one in measured if _settings_ratio(job, one) == 1.0])
    measured = same or tuple([_as_declared(job, one) for one in measured])
    newest = max(measured, key=lambda known: known.ended)
    near = _alike(size, _crewed(measured, workers))
    measured = _frugal(job, size, near, parts)
    peak = max(_scaled_peak(job, size, measurement, workers, parts) for measurement in measured)
    margin = _margin(job, len(near)) if same else MODEL_MARGIN
    leap = _leap(job, size, measured, workers)
    if leap > peak:
        peak, margin = leap, MODEL_MARGIN
    memory = _at_least_floor(peak * margin, job)
    largest = max(needed[measurement.attempt_id] for measurement in measured)
    at = "at this size" if same else "with these settings"
    times = "attempt" if len(measured) == 1 else "attempts"
    scaled = "" if peak == largest else f" ({show_bytes(peak)} {at})"
    least = footprint_of(job).floor_bytes
    floor = f", and at least {show_bytes(least)}" if peak * margin < least else ""
    why = (
        f"peak {show_bytes(largest)} in {len(measured)} earlier {times}{scaled}, "
        f"plus {margin - 1:.0%}{floor}: {show_bytes(memory)}"
    )
    if newest.memory_killed and memory < (twice := GROWTH * newest.given.memory_bytes):
        memory, why = (
            twice,
            f"{why}; {show_bytes(twice)}, twice the limit at which the last attempt ran out of memory",
        )
    return _Estimate(memory_bytes=memory, why=why)


def _as_declared(job: Job, measurement: Measurement) -> Measurement:
    """Return the measurement with its memory scaled to the present settings of the job, by the ratio of the
    memory estimates for the present and the measured settings."""
    ratio = _settings_ratio(job, measurement)
    if ratio == 1.0:
        return measurement
    use, given = measurement.use, measurement.given
    return replace(
        measurement,
        use=replace(use, peak_memory_bytes=int(use.peak_memory_bytes * ratio)),
        given=replace(given, memory_bytes=int(given.memory_bytes * ratio)),
    )


def _settings_ratio(job: Job, measurement: Measurement) -> float:
    if not measurement.model_bytes or not measurement.declared or not knows_settings(job):
        return 1.0
    if measurement.declared == declared_as(job):
        return 1.0
    return model_bytes(job, measurement.size, measurement.parallel) / measurement.model_bytes


def model_bytes(job: Job, size: JobSize, parallel: ParallelTiming | None) -> int:
    """Return the memory estimate in bytes for an attempt with that many workers. The result is 0 if the
    memory does not depend on the settings of the job."""
    return memory_of(job, size, _crew(parallel) if parallel else 1) if knows_settings(job) else 0


def _alike(size: JobSize, measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """Return the measurements of about this size, if there are enough of them. Scaling by a small factor has
    only a small error."""
    alike = tuple(
        measurement for measurement in measured if 1 / NEAR <= _growth(size, measurement.size) <= NEAR
    )
    return alike if len(alike) >= len(MARGINS) + 1 else measured


def _frugal(
    job: Job, size: JobSize, measured: tuple[Measurement, ...], parts: int
) -> tuple[Measurement, ...]:
    """Return the measurements without the attempts that had far more memory than other attempts needed. The
    function leaves such attempts out for kinds of jobs that use more memory if their memory limit is
    higher."""
    if not footprint_of(job).spills:
        return measured
    had = [
        _grown(job, measurement.given.memory_bytes, _ratio(size, measurement, parts))
        for measurement in measured
    ]
    pairs = tuple(zip(had, measured, strict=True))
    enough = min((one for one, measurement in pairs if not measurement.memory_killed), default=inf)
    return tuple(
        measurement for one, measurement in pairs if measurement.memory_killed or one <= ENOUGH * enough
    )


def _margin(job: Job, attempts: int) -> float:
    learned = MARGINS.get(attempts, MARGIN)
    return max(learned, SPILLING_MARGIN) if footprint_of(job).spills else learned


def _leap(job: Job, size: JobSize, measured: tuple[Measurement, ...], workers: int) -> int:
    """Return the estimate if there is far more data than in any earlier attempt. Otherwise the result is 0.
    With little data, a peak consists almost only of the base and does not show the memory per row. The
    estimate grows at most in proportion to the data, and at most to the estimate of the kind of job."""
    if any(_growth(size, measurement.size) <= NEAR for measurement in measured):
        return 0
    most = max(_needed(measurement) * _growth(size, measurement.size) for measurement in measured)
    return min(int(most), memory_of(job, size, workers))


def _scaled_peak(job: Job, size: JobSize, measurement: Measurement, workers: int, parts: int) -> int:
    """Return the peak, scaled to this size of the data. If there are more workers than were measured, each
    of them may use as much memory as a measured worker. A smaller number of workers does not lower the
    peak."""
    peak = _needed(measurement)
    crowd = workers / _crew(measurement.parallel) if measurement.parallel else 1.0
    return int(max(_grown(job, peak, _ratio(size, measurement, parts)), peak * crowd if crowd > 1 else 0))


def _ratio(size: JobSize, measurement: Measurement, parts: int) -> float:
    """Return the factor by which a part is larger than the measured part. A larger number of parts than was
    measured does not lower the factor, because parts may be unequal."""
    timing = measurement.parallel
    fewer = timing.pods / parts if timing is not None and timing.pods > parts else 1.0
    return _growth(size, measurement.size) * fewer


def _grown(job: Job, memory_bytes: int, ratio: float) -> float:
    """Return the memory in bytes, scaled to the size of the data. The base of the memory does not depend on
    the size of the data. The memory above the base grows with the cells (or with the bytes that are read),
    and more slowly for jobs that spill."""
    footprint = footprint_of(job)
    fixed = min(footprint.base_bytes, memory_bytes)
    return fixed + (memory_bytes - fixed) * (ratio**SPILLED if footprint.spills else ratio)


def _crewed(measured: tuple[Measurement, ...], workers: int) -> tuple[Measurement, ...]:
    """Return the measurements with the same number of workers, otherwise with the next larger number,
    otherwise with the largest number. Scaling up to more workers has a larger error than scaling down."""
    crews = sorted({_crew(measurement.parallel) for measurement in measured if measurement.parallel})
    nearest = next((crew for crew in crews if crew >= workers), max(crews, default=0))
    return tuple(
        measurement
        for measurement in measured
        if not measurement.parallel or _crew(measurement.parallel) == nearest
    )


def _crew(timing: ParallelTiming) -> int:
    """Return the number of workers in one pod."""
    return max(1, timing.workers // timing.pods)


def _growth(size: JobSize, before: JobSize) -> float:
    for now, then in ((cells_of(size), cells_of(before)), (size.input_bytes, before.input_bytes)):
        if now is not None and then:
            return now / then
    return 1.0


def _needed(measurement: Measurement) -> int:
    """Return the memory that an attempt needed, in bytes. An attempt that was killed needed more than its
    limit by an unknown amount, so its limit is used."""
    peak = measurement.use.peak_memory_bytes
    return max(peak, measurement.given.memory_bytes) if measurement.memory_killed else peak


def _by_model(job: Job, size: JobSize, workers: int, measured: tuple[Measurement, ...]) -> _Estimate:
    model = memory_of(job, size, workers)
    factors = [_needed(measurement) / memory_of(job, measurement.size, workers) for measurement in measured]
    factor = max(
        [1.0, *factors]
    )  # measurements of other jobs only raise an estimate; only the job's own measurements lower it
    margin = MARGIN if len(factors) > 2 else MODEL_MARGIN
    memory = _at_least_floor(model * factor * margin, job)
    why = f"{_size_text(size)}{show_bytes(memory)} estimated for {model_name(job)}"
    if factors:
        why += f", adjusted from {show_count(len(factors), 'attempt')} of similar jobs (x {factor:.2g})"
    return _Estimate(memory_bytes=memory, why=why)


def _size_text(size: JobSize) -> str:
    if size.rows is not None and size.columns is not None:
        return f"{size.rows:,} rows x {size.columns:,} columns: "
    if size.rows is not None:
        return f"{size.rows:,} rows: "
    if size.input_bytes is not None:
        return f"{show_bytes(size.input_bytes)} of input: "
    return "size unknown: "


def _at_least_floor(memory: float, job: Job) -> int:
    return _in_steps(max(memory, footprint_of(job).floor_bytes))


def _in_steps(memory: float) -> int:
    return -int(-memory // STEP) * STEP


def _cut(memory: int, resource: Resource, largest: Amounts) -> tuple[int, list[str]]:
    """Return the estimate, but at most the available memory. An estimate is never a reason to refuse a
    job."""
    bounds = [
        (resource.memory_bytes, f"the memory of resource {resource.name}"),
        (largest.memory_bytes or None, f"the largest node of site {resource.site}"),
    ]
    why: list[str] = []
    for bound, what in bounds:
        if bound is not None and memory > bound:
            why.append(f"cut to {show_bytes(bound)}, {what}")
            memory = bound
    return memory, why


def _gets_by_with_less(job: Job, history: MeasurementHistory, pipeline: str) -> bool:
    """Return whether the job spills and never ran out of memory."""
    measurements = history.of_job(f"{pipeline}/{job.name}", subject_of(job, pipeline))
    return footprint_of(job).spills and not any(measured.memory_killed for measured in measurements)


def size_resource(
    resource: Resource, history: MeasurementHistory, largest: Amounts, *, node_cpus: float | None = None
) -> Sizing:
    """Return the amounts that one worker of a resource gets if it runs one job of the resource's size.

    CPUs, memory and GPUs that a user has set for the resource take precedence. `largest` has the CPUs,
    memory and GPUs of the largest pod at the site, which limit the estimates. If the deployments of the site
    request only the amounts that jobs need, the worker gets fewer CPUs than the node (`node_cpus`).
    """
    memory, why = _resource_memory(resource, history, largest)
    gpus = gpus_of(resource)
    cpus = cpus_of(resource, largest)
    whole = cpus == (largest.cpus if node_cpus is None else node_cpus)
    part = "the share that belongs to the GPUs" if gpus else "for one job; more if several jobs are ready"
    usual = "all of a node, shared by its jobs" if whole else part
    source = "set" if resource.cpus else usual
    why.append(f"{show_cpus(cpus)}: {source}")
    if resource.gpus and not resource.default:
        why.append(f"{show_count(resource.gpus, 'GPU')}: set")
    return Sizing(
        amounts=Amounts(cpus=cpus, memory_bytes=memory, gpus=gpus),
        workers=resource.workers or 1,
        why=tuple(why),
    )


def _resource_memory(
    resource: Resource, history: MeasurementHistory, largest: Amounts
) -> tuple[int, list[str]]:
    if resource.memory_bytes is not None:
        return resource.memory_bytes, [f"{show_bytes(resource.memory_bytes)} memory: set"]
    footprint, size = KINDS[resource.type], resource.size or JobSize()
    swarm = resource.type == JobKind.PREDICTION
    data = swarm_bytes(size, max(1, int(largest.cpus))) if swarm else data_bytes(footprint, size)
    model = footprint.base_bytes + data
    memory = _in_steps(max(model * MODEL_MARGIN, footprint.floor_bytes))
    why = [f"{_size_text(size)}{show_bytes(memory)} estimated for {resource.type}"]
    memory, cut = _cut(memory, resource, largest)
    return memory, why + cut


def after_memory_kill(sizing: Sizing, killed_at_bytes: int, largest: int, growth: int = GROWTH) -> Sizing:
    """Return the sizing with more memory: the limit at which the attempt was killed, multiplied by `growth`,
    but at most `largest` bytes. The sizing does not change if no more memory is available."""
    memory = min(growth * killed_at_bytes, largest)
    if memory <= killed_at_bytes:
        return sizing
    why = f"ran out of memory at {show_bytes(killed_at_bytes)}: {show_bytes(memory)} for the next attempt"
    return replace(sizing, amounts=replace(sizing.amounts, memory_bytes=memory), why=(*sizing.why, why))
