"""This module fits scaling laws (Amdahl's law, a queue, the USL) to the measured work of a job for each
number of workers.

The shards of a job take W(n) worker-seconds with n workers, and therefore at best W(n)/n seconds. If workers
did not affect each other, W would be the same for every n. Workers cost each other time in two ways, with the
costs q and d:

    W(n) = a + q (n - 1) + d n (n - 1)

The cost q arises because workers queue for something that only one worker can have at a time. With q alone,
W(n) follows Amdahl's law with the serial fraction q/a (Amdahl, Validity of the single processor approach to
achieving large scale computing capabilities, AFIPS 1967).

The cost d arises because each pair of workers has to synchronise. With d, W(n)/a is the denominator of the
Universal Scalability Law, whose contention is q/a and whose coherence is d/a (Gunther, A Simple Capacity
Model of Massively Parallel Transaction Systems, CMG 1993, and Guerrilla Capacity Planning, Springer 2007).

If a part of the work runs under a lock, or on a server that serves one worker at a time, workers lose time
only when they need this part at the same time. Then W(n)/a is the cycle time of the machine repairman's
model: each worker computes alone for the fraction 1 - D of its time, and needs the shared part for the
fraction D. Two cases bound the possible cycle times of the machine repairman's model. In the first case, the
times of the pieces of work are exponential, and the cycle time follows from exact mean value analysis
(Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks, JACM 27, 1980). In the
second case, the times of the pieces of work are constant, and W(n)/a = max(1, n D). In both cases the
speed-up approaches 1/D, as in Amdahl's law with the serial fraction D. Below this limit, Amdahl's law
predicts a lower speed-up than both cases. If Amdahl's law is fitted to measurements below the limit, it
predicts a higher speed-up than both cases for more workers. Measurements with a third number of workers
distinguish both cases from Amdahl's law.

The parameters are fitted by weighted linear least squares on relative errors with a, q, d >= 0 and q <= a.
(If q = a, all work is done by one worker at a time, and the job is as fast as with one worker, not slower.)
If three numbers of workers were measured, d is fitted only if an F-test shows that d explains more than
noise. If two numbers of workers were measured, d is fitted only if more workers were slower than any law
without d allows; then all work is assumed to be done by one worker at a time. With three numbers of workers,
a queue, or coherence alone, replaces Amdahl's law if it explains the measurements better. Amdahl's law, a
queue, and coherence alone have two parameters each. The fraction D of a queue is found on a grid.

`TimeCurve` returns the expected time for a number of workers with its confidence interval.
"""

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import NormalDist

from gridmill.domain.advice import ScalingLawKind, WorkerForecast
from gridmill.domain.footprint import stretch
from gridmill.domain.frozen import dataclass

NOISE = 0.03
"""The assumed standard deviation of the times of attempts of one job, as a fraction, before any attempts
were compared."""
NOISE_FREEDOM = 4
"""The degrees of freedom with which the assumed noise is weighted."""
LEVEL = 0.90
"""The confidence level of the intervals."""
_KEEP_CONTENTION = 1.5
"""The contention must be at least this number of standard errors above zero. A smaller contention may be
noise, and extrapolation would increase this noise."""
_COHERENCE_LEVEL = 0.95
_KEEP_AMDAHL = 1.0
"""Another law with two parameters replaces Amdahl's law only if its sum of squares is smaller by this
number, in units of NOISE."""
_SHARES = tuple(0.002 * 1.06**step for step in range(107))
"""The fractions of the work that only one worker can do at a time. The fit of a queue tries each of these
fractions, up to 1."""

_LEAST_SECONDS = 1e-6

Matrix = list[list[float]]
Direction = tuple[float, float, float]
"""The direction of one parameter, or of several parameters that grow together."""
_ALONE: Direction = (1.0, 0.0, 0.0)
_QUEUE: Direction = (0.0, 1.0, 0.0)
_PAIRS: Direction = (0.0, 0.0, 1.0)
_IN_LINE: Direction = (1.0, 1.0, 0.0)  # q = a: all work is done by one worker at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkMeasurement:
    """The worker-seconds that `workers` workers needed for all of the data. `variance` is the variance of
    the relative error that is added to the noise because a part of the data represents all data."""

    workers: int
    work_seconds: float
    variance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLaw:
    """A scaling law in worker-seconds. The law is W(n) = `alone` + `contention` (n - 1) + `coherence` n (n -
    1). If `cycle` is set, the law is instead W(n) = `alone` times the cycle time of n workers, where only
    one worker at a time does the fraction `contention` of the work.

    `covariance` is the covariance matrix of the three parameters. `noise` is the standard deviation of the
    relative error of one attempt, with `freedom` degrees of freedom. `coherent` is true if the measurements
    show coherence. `numbers` are the numbers of workers that were measured.
    """

    alone: float
    contention: float
    coherence: float
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    freedom: int
    coherent: bool
    numbers: tuple[int, ...]
    cycle: "Cycle | None" = None

    @property
    def kind(self) -> ScalingLawKind:
        """The kind of the scaling law."""
        if self.cycle is not None:
            return ScalingLawKind.QUEUE
        return ScalingLawKind.USL if self.coherent else ScalingLawKind.AMDAHL

    def work(self, workers: int) -> float:
        """Return the worker-seconds with that many workers."""
        return _work(self.parameters, self.cycle, workers)

    def gradient(self, workers: int) -> tuple[float, float, float]:
        """Return the derivatives of the worker-seconds with respect to each parameter."""
        return _gradient(self.parameters, self.cycle, workers)

    @property
    def parameters(self) -> tuple[float, float, float]:
        """The three parameters of the law, in order."""
        return self.alone, self.contention, self.coherence

    @property
    def quantile(self) -> float:
        """The half-width of the confidence intervals, in standard deviations."""
        return student((1 + LEVEL) / 2, self.freedom)


Cycle = Callable[[int, float], float]
"""A function that returns the time in which each of n workers does its next piece of work, if only one
worker at a time can do a given fraction of each piece. The time is 1 if no worker has to wait."""


def exponential_cycle(workers: int, share: float) -> float:
    """Return the cycle time for pieces of work with random, exponential length, by exact mean value
    analysis."""
    waiting, response = 0.0, share
    for number in range(1, workers + 1):
        response = share * (1.0 + waiting)
        waiting = number * response / (1.0 - share + response)
    return 1.0 - share + response


def constant_cycle(workers: int, share: float) -> float:
    """Return the cycle time for pieces of work with equal length, after the workers have begun to take
    turns."""
    return max(1.0, workers * share)


CYCLES: tuple[Cycle, ...] = (exponential_cycle, constant_cycle)


def terms(workers: int) -> tuple[float, float, float]:
    """Return the factors for n workers: in W(n), each of the three parameters of the law is multiplied by
    its factor."""
    return 1.0, workers - 1, workers * (workers - 1)


def _work(parameters: tuple[float, float, float], cycle: Cycle | None, workers: int) -> float:
    if cycle is not None:
        return parameters[0] * cycle(workers, parameters[1] / parameters[0])
    return sum(x * y for x, y in zip(terms(workers), parameters, strict=True))


def _gradient(
    parameters: tuple[float, float, float], cycle: Cycle | None, workers: int
) -> tuple[float, float, float]:
    if cycle is None:
        return terms(workers)
    share = parameters[1] / parameters[0]
    low, high = share * 0.99, min(1.0, share * 1.01)
    slope = (cycle(workers, high) - cycle(workers, low)) / (high - low)
    return cycle(workers, share) - share * slope, slope, 0.0


def fit(trials: Sequence[WorkMeasurement]) -> WorkLaw:
    """Return the law that fits these trials. The function needs at least one trial, with positive work."""
    numbers = tuple(sorted({trial.workers for trial in trials}))
    amdahl = _fitted(trials, (_ALONE, _QUEUE) if len(numbers) > 1 else (_ALONE,))
    simple = amdahl
    if len(numbers) > 2:
        others = [_fitted(trials, (_ALONE, _PAIRS)), *(_queue(trials, cycle) for cycle in CYCLES)]
        simple = min((amdahl, *others), key=lambda one: one.error + (one is not amdahl) * _KEEP_AMDAHL)
    usl = _usl(trials, len(numbers), amdahl)
    if usl is not None:
        noise, freedom = _noise(usl.error, len(trials) - len(usl.free))
        if (
            _PAIRS in simple.free
            or simple.error - usl.error > (student(_COHERENCE_LEVEL, freedom) * noise) ** 2 / NOISE**2
        ):
            return _law(usl, trials, numbers, coherent=True)
    return _law(_without_noise(simple, trials), trials, numbers, coherent=False)


def _usl(trials: Sequence[WorkMeasurement], numbers: int, amdahl: "_FittedLaw") -> "_FittedLaw | None":
    """Return the law that includes coherence. The result is None if these trials do not show that pairs of
    workers cost each other time."""
    if numbers > 2:
        return _fitted(trials, (_ALONE, _QUEUE, _PAIRS))
    alone, contention, _ = amdahl.parameters
    return _fitted(trials, (_IN_LINE, _PAIRS)) if numbers == 2 and contention >= alone else None


def rival_laws(trials: Sequence[WorkMeasurement]) -> tuple[WorkLaw, ...]:
    """Return the laws that two numbers of workers cannot distinguish from the law that `fit` returns."""
    numbers = tuple(sorted({trial.workers for trial in trials}))
    queues = [_law(_queue(trials, cycle), trials, numbers, coherent=False) for cycle in CYCLES]
    return fit_coherent(trials), *queues


def fit_coherent(trials: Sequence[WorkMeasurement]) -> WorkLaw:
    """Return the law that attributes all measured growth to coherence. Of all laws that fit, this law
    predicts the smallest gain from many workers."""
    numbers = tuple(sorted({trial.workers for trial in trials}))
    return _law(_fitted(trials, (_ALONE, _PAIRS)), trials, numbers, coherent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedLaw:
    """A fitted law: its parameters (0 for a parameter that was not fitted), the directions in which
    parameters were fitted, and the sum of squared errors in units of NOISE."""

    parameters: tuple[float, float, float]
    free: tuple[Direction, ...]
    error: float
    cycle: Cycle | None = None


def _fitted(trials: Sequence[WorkMeasurement], free: tuple[Direction, ...]) -> _FittedLaw:
    """Return the least-squares fit with no parameter below 0 and with contention at most equal to the work:
    the best admissible solution of the fits with some parameters at their bounds."""
    fitted_laws: list[_FittedLaw] = []
    for some in _bounded(free):
        solved = _least_squares(trials, some)
        if solved is None or min(solved) < 0:
            continue
        alone, queue, pairs = (
            sum(value * direction[at] for value, direction in zip(solved, some, strict=True))
            for at in range(3)
        )
        if queue <= alone:
            parameters = (alone, queue, pairs)
            fitted_laws.append(_FittedLaw(parameters=parameters, free=free, error=_error(trials, parameters)))
    return min(fitted_laws, key=lambda one: one.error)


def _queue(trials: Sequence[WorkMeasurement], cycle: Cycle) -> _FittedLaw:
    """Return the queue (the fraction D of a law with a queue) that explains the trials best. If several
    fractions D explain the trials equally well, the function returns the queue with the smallest
    fraction."""

    def fitted(share: float) -> _FittedLaw:
        paces = [cycle(trial.workers, share) for trial in trials]
        weights = [_weight(trial) for trial in trials]
        alone = sum(
            w * pace * t.work_seconds for w, pace, t in zip(weights, paces, trials, strict=True)
        ) / sum(w * pace**2 for w, pace in zip(weights, paces, strict=True))
        parameters = (alone, alone * share, 0.0)
        return _FittedLaw(
            parameters=parameters, free=(_ALONE, _QUEUE), error=_error(trials, parameters, cycle), cycle=cycle
        )

    at = min(range(len(_SHARES)), key=lambda step: (round(fitted(_SHARES[step]).error, 6), step))
    low, high = _SHARES[max(0, at - 1)], _SHARES[min(len(_SHARES) - 1, at + 1)]
    finer = [low + (high - low) * step / 20 for step in range(21)]
    return min((fitted(share) for share in finer), key=lambda one: round(one.error, 6))


def _bounded(free: tuple[Direction, ...]) -> list[tuple[Direction, ...]]:
    """Return the sets of directions to fit when some parameters are at a bound: contention zero or equal to
    all work, coherence zero."""
    lines = [(_ALONE,), (_ALONE, _QUEUE), (_IN_LINE,)] if _QUEUE in free else [(free[0],)]
    pairs = [(), (_PAIRS,)] if _PAIRS in free else [()]
    return [(*line, *pair) for line in lines for pair in pairs]


def _grows(gradient: tuple[float, float, float], direction: Direction) -> float:
    return sum(x * y for x, y in zip(gradient, direction, strict=True))


def _weight(trial: WorkMeasurement) -> float:
    """Return the weight of a trial: the inverse of the variance of its work, in units of NOISE."""
    return 1.0 / ((1.0 + trial.variance / NOISE**2) * trial.work_seconds**2)


def _error(
    trials: Sequence[WorkMeasurement],
    parameters: tuple[float, float, float],
    cycle: Cycle | None = None,
) -> float:
    return sum(
        _weight(trial) * (trial.work_seconds - _work(parameters, cycle, trial.workers)) ** 2
        for trial in trials
    ) / (NOISE**2)


def _normal(
    trials: Sequence[WorkMeasurement],
    directions: Sequence[Direction],
    gradients: Sequence[tuple[float, float, float]] | None = None,
) -> Matrix:
    grown = gradients or [terms(trial.workers) for trial in trials]
    weighted = [(_weight(trial), gradient) for trial, gradient in zip(trials, grown, strict=True)]
    return [
        [
            sum(w * _grows(gradient, row) * _grows(gradient, column) for w, gradient in weighted)
            for column in directions
        ]
        for row in directions
    ]


def _least_squares(trials: Sequence[WorkMeasurement], directions: Sequence[Direction]) -> list[float] | None:
    right = [
        sum(_weight(t) * _grows(terms(t.workers), direction) * t.work_seconds for t in trials)
        for direction in directions
    ]
    inverse = invert(_normal(trials, directions))
    if inverse is None:
        return None
    return [sum(x * y for x, y in zip(row, right, strict=True)) for row in inverse]


def _noise(error: float, freedom: int) -> tuple[float, int]:
    """Return the noise of the trials, combined with the assumed noise, weighted by degrees of freedom."""
    freedom = max(0, freedom)
    shown = error * NOISE**2 if freedom else 0.0
    total = NOISE_FREEDOM + freedom
    return ((NOISE_FREEDOM * NOISE**2 + shown) / total) ** 0.5, total


def _without_noise(fitted: _FittedLaw, trials: Sequence[WorkMeasurement]) -> _FittedLaw:
    """Return the law without contention if the contention may be noise; otherwise return the law
    unchanged."""
    if not fitted.parameters[1]:
        return fitted
    law = _law(fitted, trials, (), coherent=False)
    if fitted.parameters[1] >= _KEEP_CONTENTION * max(0.0, law.covariance[1][1]) ** 0.5:
        return fitted
    alone = _fitted(trials, (_ALONE,))
    return _FittedLaw(parameters=alone.parameters, free=fitted.free, error=alone.error)


def _law(
    fitted: _FittedLaw, trials: Sequence[WorkMeasurement], numbers: tuple[int, ...], *, coherent: bool
) -> WorkLaw:
    noise, freedom = _noise(fitted.error, len(trials) - len(fitted.free))
    alone, contention, coherence = fitted.parameters
    return WorkLaw(
        alone=max(_LEAST_SECONDS, alone),
        contention=contention,
        coherence=coherence,
        covariance=_covariance(fitted, trials, noise),
        noise=noise,
        freedom=freedom,
        coherent=coherent,
        numbers=numbers,
        cycle=fitted.cycle,
    )


def _covariance(
    fitted: _FittedLaw, trials: Sequence[WorkMeasurement], noise: float
) -> tuple[tuple[float, ...], ...]:
    """Return the covariance matrix of the three parameters."""
    free = fitted.free
    gradients = [_gradient(fitted.parameters, fitted.cycle, trial.workers) for trial in trials]
    inverse = invert(_normal(trials, free, gradients)) or [[0.0] * len(free)] * len(free)
    pairs = [
        (one, other, inverse[i][j] * noise**2) for i, one in enumerate(free) for j, other in enumerate(free)
    ]
    return tuple(
        tuple(sum(one[row] * other[column] * value for one, other, value in pairs) for column in range(3))
        for row in range(3)
    )


def invert(matrix: Matrix) -> Matrix | None:
    """Return the inverse of a small symmetric matrix, by Gauss-Jordan elimination. The result is None if the
    matrix is singular."""
    size = len(matrix)
    # scales the matrix, because its columns have very different magnitudes
    scale = [row[index] ** 0.5 for index, row in enumerate(matrix)]
    if not all(scale):
        return None
    rows = [
        [matrix[i][j] / (scale[i] * scale[j]) for j in range(size)] + [float(i == j) for j in range(size)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-10:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = [value / rows[column][column] for value in rows[column]]
        rows = [
            head
            if number == column
            else [value - row[column] * of for value, of in zip(row, head, strict=True)]
            for number, row in enumerate(rows)
        ]
    return [[rows[i][size + j] / (scale[i] * scale[j]) for j in range(size)] for i in range(size)]


def student(level: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution, by the Cornish-Fisher series. The error of the
    quantile is at most 1 % if there are at least 4 degrees of freedom."""
    z = NormalDist().inv_cdf(level)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


_FARTHEST = log(1000.0)
"""Half of the width that a confidence interval may have at most, as the natural logarithm of a factor.
Attempts that contradict each other strongly contain no information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCurve:
    """The time of an attempt as a function of its number of workers n. The time of an attempt with n workers
    is T(n) = serial + opening(n) + the longer of two times. The first time is W(n)/n, in whole rounds of
    shards; the second time is the CPU time divided by the number of available CPUs.

    The second time is a bound from operational analysis (Denning and Buzen, The Operational Analysis of
    Queueing Network Models, ACM Computing Surveys 1978): no number of workers computes faster than the CPUs.
    `cpu_share` is the number of CPU seconds per worker-second at the shards. `wanted` is the declared number
    of shards. With `even`, each worker has one shard, and all shards have the same size.
    """

    law: WorkLaw
    serial_seconds: float
    opening_wait_seconds: float
    opening_load_seconds: float
    cpus: float
    cpu_share: float
    rows: int
    wanted: int | None = None
    even: bool = False

    def seconds(self, workers: int) -> float:
        """Return the wall-clock seconds of an attempt with that many workers."""
        return self.serial_seconds + self.opening(workers) + self.stage(workers)

    def opening(self, workers: int) -> float:
        """Return the seconds until a worker can begin its first shard. All workers load at the same time and
        share the available CPUs."""
        crowd = max(1.0, workers / self.cpus) if self.cpus else 1.0
        return self.opening_wait_seconds + self.opening_load_seconds * crowd

    def stage(self, workers: int) -> float:
        """Return the seconds in which the shards are processed."""
        free = self.law.work(workers) * self._stretch(workers) / workers
        return max(free, self._least)

    def _stretch(self, workers: int) -> float:
        return 1.0 if self.even else stretch(self.rows, workers, self.wanted)

    @property
    def _least(self) -> float:
        return self.law.alone * self.cpu_share / self.cpus if self.cpus else 0.0

    def most_busy(self) -> float:
        """The number of workers that keep all CPUs busy. More workers than this do not shorten the run."""
        return self.cpus / self.cpu_share if self.cpu_share and self.cpus else float("inf")

    def speedup(self, workers: int) -> float:
        """Return the speed-up in comparison with one worker."""
        return self.seconds(1) / self.seconds(workers)

    def forecast(self, workers: int) -> WorkerForecast:
        """Return the expected speed-up, with the interval that contains the speed-up of nine out of ten
        attempts. The interval is computed by the delta method."""
        seconds, speedup = self.seconds(workers), self.speedup(workers)
        reach = min(_FARTHEST, self.law.quantile * self._deviation(workers))
        return WorkerForecast(
            workers=workers,
            seconds=seconds,
            speedup=speedup,
            low=exp(log(speedup) - reach),
            high=exp(log(speedup) + reach),
            cost=workers / speedup,
        )

    def _deviation(self, workers: int) -> float:
        """Return the standard deviation of the logarithm of a measured speed-up. The deviation includes the
        error of the law and the noise of two attempts."""
        if workers == 1:
            return 0.0
        slope = [
            x / self.seconds(1) - y / self.seconds(workers)
            for x, y in zip(self._slope(1), self._slope(workers), strict=True)
        ]
        variance = sum(
            slope[row] * slope[column] * self.law.covariance[row][column]
            for row in range(3)
            for column in range(3)
        )
        serial = (slope[3] * self.serial_seconds * self.law.noise) ** 2
        return float((max(0.0, variance) + serial + 2 * self.law.noise**2) ** 0.5)

    def _slope(self, workers: int) -> tuple[float, float, float, float]:
        """Return the derivatives of T(n) with respect to the parameters of the law and the serial
        seconds."""
        if self.stage(workers) == self._least:
            return self.cpu_share / self.cpus, 0.0, 0.0, 1.0
        factor = self._stretch(workers) / workers
        alone, contention, coherence = (term * factor for term in self.law.gradient(workers))
        return alone, contention, coherence, 1.0
