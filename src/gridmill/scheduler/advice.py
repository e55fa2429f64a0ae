"""This module has a pure function that advises on the number of workers of a job, from the measurements of
its attempts."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from gridmill.domain.advice import (
    Advice,
    Bottleneck,
    Probe,
    ScalingLaw,
    ScalingMeasurement,
    WorkerForecast,
)
from gridmill.domain.amounts import Amounts, show_count, show_cpus, show_seconds
from gridmill.domain.footprint import PER_PROBE_WORKER, WORKER_BYTES
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job
from gridmill.domain.resource import Measurement, Resource
from gridmill.domain.usage import ParallelTiming
from gridmill.scheduler.bottleneck import blind_spot, bound_of, disturbed, has_workers, shares_of, why_bound
from gridmill.scheduler.history import PROBE
from gridmill.scheduler.scaling_law import TimeCurve, WorkMeasurement, fit, rival_laws

TIMING_SECONDS = 0.02
"""The standard deviation of the measured time of one shard, in seconds. The standard deviation is the same
for every shard, so the measured times of short shards are less precise."""
FAR = 4
"""Advice on the number of workers covers at most this many times the largest measured number."""
SHOWN = (1, 2, 4, 8, 16, 32)
MOST_WORKERS = 64
GROWING = 1.5
"""Two probes of different sizes measure the time of an attempt outside its shards. The time outside the
shards grows with the data if it is at least this many times as long in the larger probe. A smaller
difference between the probes could be noise, and the extrapolation to all data would make this noise about
twenty times as large."""
PROBE_SHARE, PROBE_SECONDS, PROBE_SHARD_SECONDS = 0.1, 60.0, 0.5
PROBE_WORKERS = 8
_BEYOND = 1.25
"""A recommended number of workers is measured by a probe if it is more than this many times the largest
measured number."""
_MATTERS = 1.1
"""A third number of workers is probed if the scaling laws that fit two measured numbers differ by more
than this factor."""
_LEAST_SECONDS = 1e-6
RULE = (
    "the number with the most speed-up for its cost, speed-up squared over workers"
    " (Eager, Zahorjan, Lazowska 1989), within what the site has room for ({room}) and {far} times the most"
    " workers measured"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceInput:
    """The values from which advice on the workers of a job is computed. `measured` are the attempts and
    probes of the job, oldest first. `pods` is the number of pods that the job may have, and `most` has the
    largest CPUs, memory and GPUs that one pod can get at its site."""

    name: str
    """The job, in the form `pipeline/job`."""
    job: Job
    measured: Sequence[Measurement]
    most: Amounts
    pods: int = 1

    @property
    def cpus(self) -> float:
        """The total number of CPUs that the workers of the job can have."""
        return self.most.cpus * self.pods

    @property
    def in_parts(self) -> bool:
        """Whether the job is divided into parts, where each part is a worker in its own pod."""
        return not has_workers(self.job)


def most_of(resource: Resource, largest: Amounts) -> Amounts:
    """Return the largest amounts of CPUs, memory and GPUs that one pod of a resource can get. `largest` has
    the CPUs, memory and GPUs of the largest pod at the site of the resource."""
    return replace(
        largest,
        cpus=resource.cpus or largest.cpus,
        memory_bytes=resource.memory_bytes or largest.memory_bytes,
    )


def advised_workers(advice_input: AdviceInput) -> int | None:
    """Return the recommended number of workers. The recommended number of workers is None if nothing was
    measured."""
    attempts = comparable(advice_input)
    return worth_of(curve_of(advice_input, attempts), advice_input, attempts) if attempts else None


def pace_of(advice_input: AdviceInput, workers: int) -> Callable[[Measurement], float]:
    """Return the factor by which an attempt with `workers` workers takes longer than a measured attempt with
    another number of workers."""
    attempts = comparable(advice_input)
    curve = curve_of(advice_input, attempts) if attempts else None
    alike = {one.attempt_id for one, _ in attempts}

    def pace(measurement: Measurement) -> float:
        if curve is None or measurement.parallel is None or measurement.attempt_id not in alike:
            return 1.0
        return curve.seconds(workers) / curve.seconds(measurement.parallel.workers)

    return pace


def comparable(advice_input: AdviceInput) -> list[tuple[Measurement, ParallelTiming]]:
    """Return the attempts whose workers did the same work as the workers of the newest attempt. The result
    is empty if the newest attempt had no workers."""
    timed = [(one, one.parallel) for one in advice_input.measured if one.parallel is not None]
    return [(one, parallel) for one, parallel in timed if parallel.work == timed[-1][1].work]


def advise(advice_input: AdviceInput) -> Advice | None:
    """Return the advice on the number of workers of a job. The result is None if no attempt has measured its
    workers."""
    attempts = comparable(advice_input)
    if not attempts:
        return None
    rows = attempts[-1][1].whole_rows
    newest = max(attempts, key=lambda one: (one[1].share, one[0].ended))[0]
    curve = curve_of(advice_input, attempts)
    shares = shares_of(newest)
    bound = bound_of(shares)
    forecasts = _forecasts(curve, attempts, advice_input)
    worth = worth_of(curve, advice_input, attempts)
    probes = _probes(curve, attempts, advice_input)
    return Advice(
        job=advice_input.name,
        work=attempts[-1][1].work,
        bound=bound,
        shares=shares,
        law=_law(curve),
        summary=_summary(curve, forecasts, worth),
        worth=worth,
        rule=RULE.format(far=FAR, room=show_count(_room(advice_input, attempts), "worker")),
        vertical=_vertical(curve, shares, bound, worth, advice_input),
        rows=rows,
        serial_seconds=curve.serial_seconds,
        opening_seconds=curve.opening(1),
        work_seconds=curve.law.alone,
        forecasts=forecasts,
        measured=tuple(_measured(one, parallel, curve) for one, parallel in attempts),
        why=tuple(why_bound(newest, shares, bound)),
        unknown=tuple(_unknown(curve, newest, advice_input, probes)),
        probes=probes,
    )


def curve_of(advice_input: AdviceInput, attempts: Sequence[tuple[Measurement, ParallelTiming]]) -> TimeCurve:
    """Return the expected time of the job as a function of the number of workers, computed from these
    attempts for the data of the newest attempt."""
    rows = attempts[-1][1].whole_rows
    cpus = advice_input.cpus
    law = fit([_trial(parallel, rows, advice_input.most) for _, parallel in attempts])
    opening_load = min(_opening_load(parallel, advice_input.most) for _, parallel in attempts)
    waits = [_opening_wait(parallel) for _, parallel in attempts]
    return TimeCurve(
        law=law,
        serial_seconds=_serial_seconds(attempts, rows),
        opening_wait_seconds=max(waits),
        opening_load_seconds=opening_load,
        cpus=cpus,
        cpu_share=fmean(_cpu_share(parallel, advice_input.most) for _, parallel in attempts),
        rows=rows,
        wanted=advice_input.job.prediction.shards if advice_input.job.prediction else None,
        even=advice_input.in_parts,
    )


def _trial(timing: ParallelTiming, rows: int, most: Amounts) -> WorkMeasurement:
    """Return the worker-seconds of an attempt for all rows. The time for which workers wait for a CPU is
    left out, because the curve of the expected time contains the number of CPUs itself, and because the load
    of other programs changes."""
    sampled = timing.deviation**2 / max(1, timing.shards) * (1.0 - timing.share)
    clocked = TIMING_SECONDS**2 * timing.shards / max(timing.busy_seconds, _LEAST_SECONDS) ** 2
    return WorkMeasurement(
        workers=timing.workers,
        work_seconds=max(_LEAST_SECONDS, _running_seconds(timing, most) * rows / max(1, timing.rows)),
        variance=sampled + clocked,
    )


def _running_seconds(timing: ParallelTiming, most: Amounts) -> float:
    """Return the worker-seconds for the shards, computed as if each worker had its own CPU. If the system
    does not measure the wait for a CPU, the function subtracts the wait that the workers must cause each
    other."""
    if timing.delay_seconds is not None:
        return max(timing.busy_seconds - timing.delay_seconds, min(timing.busy_seconds, timing.cpu_seconds))
    wanted = timing.workers * timing.cpu_seconds / timing.busy_seconds if timing.busy_seconds else 0.0
    cpus = most.cpus * timing.pods
    return timing.busy_seconds / max(1.0, wanted / cpus if cpus else 1.0)


def _cpu_share(timing: ParallelTiming, most: Amounts) -> float:
    """Return the number of CPUs that one worker keeps busy if enough CPUs are free."""
    return timing.cpu_seconds / max(_LEAST_SECONDS, _running_seconds(timing, most))


def _opening_wait(timing: ParallelTiming) -> float:
    return max(0.0, timing.opening_seconds - timing.opening_cpu_seconds - timing.opening_delay_seconds)


def _opening_load(timing: ParallelTiming, most: Amounts) -> float:
    """Return the seconds, in total and on a CPU, that one worker alone takes to open its inputs. All workers
    open their inputs at the same time and share the CPUs. If there are several attempts, the function uses
    the smallest time, because other programs disturbed that attempt least."""
    cpus = most.cpus * timing.pods
    crowd = max(1.0, timing.workers / cpus) if cpus else 1.0
    return (timing.opening_cpu_seconds + timing.opening_delay_seconds) / crowd


def _serial_seconds(attempts: Sequence[tuple[Measurement, ParallelTiming]], rows: int) -> float:
    """Return the seconds before and after the shards for that many rows. This time is constant, unless
    attempts of different sizes show that a part of it grows with the rows."""
    points = [
        (timing.rows, max(0.0, one.use.wall_seconds - timing.stage_seconds)) for one, timing in attempts
    ]
    whole = [seconds for size, seconds in points if size >= rows]
    if whole:
        return fmean(whole)
    small, large = min(points), max(points)
    if small[0] == large[0] or large[1] < GROWING * small[1]:
        return fmean(seconds for _, seconds in points)
    slope = (large[1] - small[1]) / (large[0] - small[0])
    return large[1] + slope * (rows - large[0])


def _law(curve: TimeCurve) -> ScalingLaw:
    """Return the scaling law of the whole job. All time that does not become shorter with more workers is
    treated as serial, whatever the reason is."""
    alone = curve.seconds(1)
    work = curve.law
    return ScalingLaw(
        kind=work.kind,
        serial=(curve.serial_seconds + curve.opening(1) + work.contention) / alone,
        coherence=work.coherence / alone,
        noise=work.noise,
    )


def _forecasts(
    curve: TimeCurve, attempts: Sequence[tuple[Measurement, ParallelTiming]], advice_input: AdviceInput
) -> tuple[WorkerForecast, ...]:
    numbers = {*SHOWN, *curve.law.numbers, worth_of(curve, advice_input, attempts)}
    careful = _careful(curve, attempts, advice_input)
    return tuple(careful(curve.forecast(number)) for number in sorted(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WidenedForecast:
    """A forecast of the time with any number of workers. Its interval also covers other scaling laws that
    fit the measurements."""

    curve: TimeCurve
    rivals: tuple[TimeCurve, ...]

    def __call__(self, line: WorkerForecast) -> WorkerForecast:
        largest = max(self.curve.law.numbers)
        if len(self.curve.law.numbers) == 1 and line.workers > 1:
            return replace(line, low=min(line.low, self._reached(largest, line.workers)))
        others = [rival.speedup(line.workers) for rival in self.rivals]
        if others and (self.curve.law.coherent or line.workers < largest):
            line = replace(line, high=max(line.high, *others))
        if others and line.workers > largest:
            line = replace(line, low=min(line.low, *others))
        return line

    def _reached(self, largest: int, workers: int) -> float:
        """Return the expected speed-up if only one number of workers was measured. With one measured number
        of workers, it is unknown whether these workers were faster than one worker, and whether more workers
        would be faster."""
        return 1.0 if workers <= largest or largest == 1 else self.curve.speedup(largest)


def _careful(
    curve: TimeCurve, attempts: Sequence[tuple[Measurement, ParallelTiming]], advice_input: AdviceInput
) -> _WidenedForecast:
    return _WidenedForecast(curve=curve, rivals=_rivals(curve, attempts, advice_input))


def _rivals(
    curve: TimeCurve, attempts: Sequence[tuple[Measurement, ParallelTiming]], advice_input: AdviceInput
) -> tuple[TimeCurve, ...]:
    """Return other scaling laws that fit the attempts. The result is empty unless the attempts had exactly
    two different numbers of workers."""
    if len(curve.law.numbers) != 2:
        return ()
    rows = attempts[-1][1].whole_rows
    trials = [_trial(timing, rows, advice_input.most) for _, timing in attempts]
    return tuple(replace(curve, law=law) for law in rival_laws(trials))


def worth_of(
    curve: TimeCurve, advice_input: AdviceInput, attempts: Sequence[tuple[Measurement, ParallelTiming]]
) -> int:
    """Return the recommended number of workers by the rule RULE. If several numbers are equally good, the
    function returns the smallest of them."""
    most = min(FAR * max(curve.law.numbers), _room(advice_input, attempts))
    numbers = range(1, max(1, most) + 1)
    return max(numbers, key=lambda n: (round(curve.speedup(n) ** 2 / n, 6), -n))


def _room(advice_input: AdviceInput, attempts: Sequence[tuple[Measurement, ParallelTiming]]) -> int:
    return max(1, min(MOST_WORKERS, _by_memory(advice_input, attempts)))


def _by_memory(advice_input: AdviceInput, attempts: Sequence[tuple[Measurement, ParallelTiming]]) -> int:
    """Return the number of workers that fit into the memory of the job's pods. Each part of a job in parts
    has its own pod."""
    if advice_input.in_parts:
        return advice_input.pods
    one, timing = max(attempts, key=lambda pair: pair[1].rows)
    left = advice_input.most.memory_bytes - one.use.peak_memory_bytes
    each = max(1, timing.workers // timing.pods + left // WORKER_BYTES)
    return each * advice_input.pods if advice_input.most.memory_bytes else MOST_WORKERS


def _measured(measurement: Measurement, timing: ParallelTiming, curve: TimeCurve) -> ScalingMeasurement:
    part = timing.rows / curve.rows if curve.rows else 1.0
    seconds = measurement.use.wall_seconds
    if 0.0 < part != 1.0:
        seconds = curve.serial_seconds + timing.opening_seconds + timing.busy_seconds / part / timing.workers
    return ScalingMeasurement(
        attempt_id=measurement.attempt_id,
        workers=timing.workers,
        share=timing.share,
        seconds=seconds,
        speedup=curve.seconds(1) / max(_LEAST_SECONDS, seconds),
        probe=measurement.subject.endswith(PROBE),
    )


def _summary(curve: TimeCurve, forecasts: Sequence[WorkerForecast], worth: int) -> str:
    """Return the advice in one line, such as `4 workers: 2.9 x (2.7-3.1); from 4 to 8 twice the workers give
    1.3 x the speed`."""
    line = next(forecast for forecast in forecasts if forecast.workers == worth)
    twice = curve.speedup(2 * worth) / curve.speedup(worth)
    more = f"from {worth} to {2 * worth} twice the workers give {twice:.2g} x the speed"
    if worth == 1:
        return f"1 worker, {show_seconds(line.seconds)}; {more}"
    return f"{worth} workers: {line.speedup:.1f} x ({line.low:.1f}-{line.high:.1f}); {more}"


def _vertical(
    curve: TimeCurve, shares: object, bound: Bottleneck, worth: int, advice_input: AdviceInput
) -> str:
    """Return sentences that compare the gain from more or faster CPUs for each worker with the gain from
    more workers."""
    cpus, share = curve.cpus, curve.cpu_share
    alone = curve.seconds(1)
    most = 1 / max(1e-9, 1 - min(1.0, curve.law.alone * min(1.0, share) / alone))
    gpu = f"a GPU can save at most the CPU time: at best {most:.1f} x, with one worker"
    if curve.law.work(2) >= 2 * curve.law.alone:
        return f"more workers do not make the job faster on any machine; {gpu}"
    if bound != Bottleneck.CPU:
        return (
            f"a worker uses {share:.2g} of a CPU: more or faster CPUs, or a GPU, give almost no speed-up;"
            " more workers do, as long as the disk or service for which they wait can serve more of them at"
            " once"
        )
    if worth * share >= 0.9 * cpus:
        return (
            f"{worth} workers at {share:.2g} CPUs each keep the {show_cpus(cpus)} of the site busy:"
            f" more workers need more CPUs (a larger machine or another machine); {gpu}"
        )
    if share > 1.2:
        return f"a worker uses {share:.1f} CPUs at once: more CPUs and more workers both help; {gpu}"
    busy = curve.most_busy()
    end = f", up to {int(busy)} on the {show_cpus(cpus)} of the site" if busy <= MOST_WORKERS else ""
    return f"a worker uses one CPU: more CPUs for it give no speed-up, more workers do{end}; {gpu}"


def _unknown(
    curve: TimeCurve, newest: Measurement, advice_input: AdviceInput, probes: Sequence[Probe]
) -> Iterator[str]:
    numbers = curve.law.numbers
    if len(numbers) == 1:
        yield (
            f"how much several workers slow each other down (locks, disks, memory): only runs with"
            f" {numbers[0]}"
            f" {'worker' if numbers[0] == 1 else 'workers'} were measured; the low ends of the ranges assume"
            f" that more workers do not help"
        )
    elif len(numbers) == 2:
        yield _third(curve, offered=bool(probes) or advice_input.in_parts)
    most = newest.parallel.whole_rows if newest.parallel else 0
    if newest.parallel and newest.parallel.share < 1.0:
        yield f"a whole run: all measurements are from parts of the {most:,} rows"
    yield from disturbed(newest, curve.cpus)
    hidden = blind_spot(newest)
    if hidden:
        yield hidden


def _third(curve: TimeCurve, *, offered: bool) -> str:
    """Return the question about the scaling of a job that measurements with only two numbers of workers
    cannot answer."""
    least, most = curve.law.numbers
    where = (
        "" if offered else "; the CPUs and the memory of this site have no room for one that would show it"
    )
    if curve.law.coherent:
        return (
            f"whether fewer than {most} workers help, as {most} were slower than {least}: this needs a"
            f" measurement of a third"
            f" number of workers{where}; the low ends of the ranges assume that they do not"
        )
    return (
        "whether workers slow each other down more as their number grows: this needs a measurement of a"
        " third number of workers"
        f"{where}; the low ends of the ranges assume that they do"
    )


def _probes(
    curve: TimeCurve, attempts: Sequence[tuple[Measurement, ParallelTiming]], advice_input: AdviceInput
) -> tuple[Probe, ...]:
    """Return the next probe, which runs in one pod. The first probe has one worker, and the second probe has
    several workers. A third probe has another number of workers; it is proposed only if its result can
    change the expected gain. The result is None for a job in parts, because each probe would be a whole
    run."""
    numbers = curve.law.numbers
    if advice_input.in_parts or len(numbers) > 2:
        return ()
    busy = round(min(curve.most_busy() / advice_input.pods, MOST_WORKERS))
    room = max(2, min(_by_memory(advice_input, attempts) // advice_input.pods, busy))
    number: int | None
    if 1 not in numbers:
        number = 1
    elif len(numbers) == 1:
        number = min(room, PROBE_WORKERS)
    else:
        number = _third_number(curve, attempts, advice_input, room)
    return () if number is None or number in numbers else (_probe(curve, number),)


def _third_number(
    curve: TimeCurve,
    attempts: Sequence[tuple[Measurement, ParallelTiming]],
    advice_input: AdviceInput,
    room: int,
) -> int | None:
    """Return the third number of workers to measure. If the recommended number exceeds the measured numbers,
    the function returns the recommended number. If workers slow each other down and no larger number is
    recommended, the function returns the largest number that advice covers, because the possible scaling
    laws differ most there. If the pods of the job cannot have that many workers, the function returns a
    number between the measured numbers. The third number of workers is None if the possible scaling laws
    agree."""
    least, largest = curve.law.numbers
    worth = worth_of(curve, advice_input, attempts)
    if worth > _BEYOND * largest and room > largest:
        return min(worth, room)
    if not (curve.law.contention or curve.law.coherence):
        return None
    far = min(FAR * largest, room)
    number = far if far > largest else round((least * largest) ** 0.5)
    said = [one.speedup(number) for one in (curve, *_rivals(curve, attempts, advice_input))]
    return number if max(said) > _MATTERS * min(said) else None


def _probe(curve: TimeCurve, workers: int) -> Probe:
    """Return a probe of a tenth of the data, or of less if a tenth takes longer than a minute. Each shard of
    the probe still takes at least half a second, so that the fixed cost of a shard is small in
    comparison."""
    stage = curve.stage(workers)
    least = workers * PER_PROBE_WORKER * PROBE_SHARD_SECONDS / curve.law.work(workers)
    share = min(1.0, max(least, min(PROBE_SHARE, PROBE_SECONDS / stage)))
    fixed = curve.serial_seconds + curve.opening(workers)
    return Probe(workers=workers, share=share, expected_seconds=fixed + stage * share)
