"""Fits laws of scaling (Amdahl's, a queue, the USL) to the measured work of a job per number of workers.

With n workers the shards of a job take W(n) worker-seconds, and at best W(n)/n seconds. If workers did not
affect each other, W would be the same for every n. They cost each other time in two ways:

    W(n) = a + q (n - 1) + d n (n - 1)

q: they queue for something that only one can have at a time. This is Amdahl's law (G. M. Amdahl, Validity of
the single processor approach to achieving large scale computing capabilities, AFIPS 1967): q/a is a serial
share.

d: each pair of them has to synchronise. With it W(n)/a is the denominator of the Universal Scalability Law
(N. J. Gunther, A Simple Capacity Model of Massively Parallel Transaction Systems, CMG 1993; Guerrilla
Capacity Planning, Springer 2007): contention q/a, coherence d/a.

Where the part under a lock, or at a server, is done by one worker at a time, the others lose nothing until
they meet there. Then W(n)/a is the cycle time of the machine repairman's model: each worker computes alone
for 1 - D and needs the one place for D. Two cases bound what comes: exponential times, by exact mean value
analysis (M. Reiser, S. S. Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks, JACM 27,
1980), and constant times, W(n)/a = max(1, n D). Both end at a speed-up of 1/D, as Amdahl's law does with D as
its serial share; on the way there it promises less than they do, and where it was fitted on the way, more
beyond. They are told from Amdahl's law by a third number of workers.

The fit is weighted linear least squares on relative errors with a, q, d >= 0 and q <= a (if all work is done
in turn, the job is as fast as with one worker, not slower). d is fitted only if three numbers of workers were
measured and an F-test says that it explains more than noise; with two only if more workers were slower than
any such line allows: all their work is then taken to be done in turn. With three numbers of workers a queue,
or coherence alone, takes the place of Amdahl's law where it explains them better; all three have two
parameters. The share D of a queue is found on a grid.

`TimeCurve` gives the expected time for a number of workers with its confidence interval.
"""

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import NormalDist

from gridmill.domain.advice import ScalingLawKind, WorkerForecast
from gridmill.domain.footprint import stretch
from gridmill.domain.frozen import dataclass

NOISE = 0.03
"""Standard deviation of attempts of one job, as a share, before any were compared."""
NOISE_FREEDOM = 4
"""The degrees of freedom that this prior is worth."""
LEVEL = 0.90
"""The confidence level of the intervals."""
_KEEP_CONTENTION = 1.5
"""Standard errors that contention must be above zero; less is noise, which grows when it is extrapolated."""
_COHERENCE_LEVEL = 0.95
_KEEP_AMDAHL = 1.0
"""How much smaller the sum of squares of another law with two parameters must be, in units of NOISE."""
_SHARES = tuple(0.002 * 1.06**step for step in range(107))
"""Shares of the work that only one worker can do at a time: those tried for a queue, up to 1."""

_LEAST_SECONDS = 1e-6

Matrix = list[list[float]]
Direction = tuple[float, float, float]
"""One of the parameters, or several that grow together."""
_ALONE: Direction = (1.0, 0.0, 0.0)
_QUEUE: Direction = (0.0, 1.0, 0.0)
_PAIRS: Direction = (0.0, 0.0, 1.0)
_IN_LINE: Direction = (1.0, 1.0, 0.0)  # q = a: one at a time does all there is


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkMeasurement:
    """Worker-seconds that `workers` needed for all of the data. `variance` is that of the relative error it
    has beside the noise: that a part of the data stands for all."""

    workers: int
    work_seconds: float
    variance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLaw:
    """W(n) = `alone` + `contention` (n - 1) + `coherence` n (n - 1), in worker-seconds; with a `cycle`
    `alone` times that of n workers, of whose work `contention` is done by one at a time.

    `covariance` is that of the three; `noise` the standard deviation of one attempt's relative error, known
    to `freedom` degrees. `coherent`: coherence was found. `numbers` are the numbers of workers measured.
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
        """Its name."""
        if self.cycle is not None:
            return ScalingLawKind.QUEUE
        return ScalingLawKind.USL if self.coherent else ScalingLawKind.AMDAHL

    def work(self, workers: int) -> float:
        """Worker-seconds with so many workers."""
        return _work(self.parameters, self.cycle, workers)

    def gradient(self, workers: int) -> tuple[float, float, float]:
        """How the worker-seconds change with each of the parameters."""
        return _gradient(self.parameters, self.cycle, workers)

    @property
    def parameters(self) -> tuple[float, float, float]:
        """The three, in order."""
        return self.alone, self.contention, self.coherence

    @property
    def quantile(self) -> float:
        """The half-width of the intervals, in standard deviations."""
        return student((1 + LEVEL) / 2, self.freedom)


Cycle = Callable[[int, float], float]
"""The time in which each of n workers does its next piece of work, with a share of it that only one can do at
a time; 1 where it waits for nobody."""


def exponential_cycle(workers: int, share: float) -> float:
    """Pieces of random length (exponential), by exact mean value analysis."""
    waiting, response = 0.0, share
    for number in range(1, workers + 1):
        response = share * (1.0 + waiting)
        waiting = number * response / (1.0 - share + response)
    return 1.0 - share + response


def constant_cycle(workers: int, share: float) -> float:
    """Pieces of one length, whose workers have come to take turns."""
    return max(1.0, workers * share)


CYCLES: tuple[Cycle, ...] = (exponential_cycle, constant_cycle)


def terms(workers: int) -> tuple[float, float, float]:
    """What the three parameters are multiplied with."""
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
    """The law of these trials (one at least, with positive work)."""
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
    """None where these trials cannot tell of pairs."""
    if numbers > 2:
        return _fitted(trials, (_ALONE, _QUEUE, _PAIRS))
    alone, contention, _ = amdahl.parameters
    return _fitted(trials, (_IN_LINE, _PAIRS)) if numbers == 2 and contention >= alone else None


def rival_laws(trials: Sequence[WorkMeasurement]) -> tuple[WorkLaw, ...]:
    """Laws that two numbers of workers do not tell from the one that `fit` gives."""
    numbers = tuple(sorted({trial.workers for trial in trials}))
    queues = [_law(_queue(trials, cycle), trials, numbers, coherent=False) for cycle in CYCLES]
    return fit_coherent(trials), *queues


def fit_coherent(trials: Sequence[WorkMeasurement]) -> WorkLaw:
    """As if all that was seen to grow were coherence: the law that says the least of many workers."""
    numbers = tuple(sorted({trial.workers for trial in trials}))
    return _law(_fitted(trials, (_ALONE, _PAIRS)), trials, numbers, coherent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedLaw:
    """Parameters (0 for those left out), what was free to grow, and the sum of squares in units of NOISE."""

    parameters: tuple[float, float, float]
    free: tuple[Direction, ...]
    error: float
    cycle: Cycle | None = None


def _fitted(trials: Sequence[WorkMeasurement], free: tuple[Direction, ...]) -> _FittedLaw:
    """Least squares with no parameter below 0 and contention within the work: the best of those solutions,
    with some of them at their bounds, that are so."""
    fitted_laws: list[_FittedLaw] = []
    for some in _bounded(free):
        solved = _least_squares(trials, some)
        if solved is None or min(solved) < 0:
            continue
        alone, queue, pairs = (
            sum(value * way[at] for value, way in zip(solved, some, strict=True)) for at in range(3)
        )
        if queue <= alone:
            parameters = (alone, queue, pairs)
            fitted_laws.append(_FittedLaw(parameters=parameters, free=free, error=_error(trials, parameters)))
    return min(fitted_laws, key=lambda one: one.error)


def _queue(trials: Sequence[WorkMeasurement], cycle: Cycle) -> _FittedLaw:
    """The queue that explains the trials best; of shares that do so equally the smallest."""

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
    """The solutions with some free parameters at a bound: contention at none or all, coherence at none."""
    lines = [(_ALONE,), (_ALONE, _QUEUE), (_IN_LINE,)] if _QUEUE in free else [(free[0],)]
    pairs = [(), (_PAIRS,)] if _PAIRS in free else [()]
    return [(*line, *pair) for line in lines for pair in pairs]


def _grows(gradient: tuple[float, float, float], way: Direction) -> float:
    return sum(x * y for x, y in zip(gradient, way, strict=True))


def _weight(trial: WorkMeasurement) -> float:
    """One over the variance of its work, in units of NOISE."""
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
    ways: Sequence[Direction],
    gradients: Sequence[tuple[float, float, float]] | None = None,
) -> Matrix:
    grown = gradients or [terms(trial.workers) for trial in trials]
    weighted = [(_weight(trial), gradient) for trial, gradient in zip(trials, grown, strict=True)]
    return [
        [
            sum(w * _grows(gradient, row) * _grows(gradient, column) for w, gradient in weighted)
            for column in ways
        ]
        for row in ways
    ]


def _least_squares(trials: Sequence[WorkMeasurement], ways: Sequence[Direction]) -> list[float] | None:
    right = [sum(_weight(t) * _grows(terms(t.workers), way) * t.work_seconds for t in trials) for way in ways]
    inverse = invert(_normal(trials, ways))
    if inverse is None:
        return None
    return [sum(x * y for x, y in zip(row, right, strict=True)) for row in inverse]


def _noise(error: float, freedom: int) -> tuple[float, int]:
    """The noise that the trials show, and what is known of it beforehand, weighed by degrees of freedom."""
    freedom = max(0, freedom)
    shown = error * NOISE**2 if freedom else 0.0
    total = NOISE_FREEDOM + freedom
    return ((NOISE_FREEDOM * NOISE**2 + shown) / total) ** 0.5, total


def _without_noise(fitted: _FittedLaw, trials: Sequence[WorkMeasurement]) -> _FittedLaw:
    """Contention that may as well be noise is none."""
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
    """Of the three parameters."""
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
    """The inverse of a small symmetric matrix, by Gauss and Jordan; None where there is none."""
    size = len(matrix)
    scale = [row[index] ** 0.5 for index, row in enumerate(matrix)]  # columns of very different size
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
    """The quantile of Student's t distribution, by Cornish and Fisher's series: to 1 % from 4 degrees on."""
    z = NormalDist().inv_cdf(level)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


_FARTHEST = log(1000.0)
"""The largest half-width of an interval: attempts that contradict each other widely are not informative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCurve:
    """T(n) = serial + opening(n) + the longer of W(n)/n, in whole rounds of shards, and the CPU time over the
    CPUs there are.

    The second bound is that of operational analysis (P. J. Denning, J. P. Buzen, The Operational Analysis of
    Queueing Network Models, ACM Computing Surveys 1978): no number of workers computes faster than the CPUs.
    `cpu_share` is CPU seconds per worker-second at the shards; `wanted` the declared number of shards.
    `even`: each worker has one, as large as the others'.
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
        """Wall seconds of an attempt."""
        return self.serial_seconds + self.opening(workers) + self.stage(workers)

    def opening(self, workers: int) -> float:
        """Until a worker can begin: they all load at the same time, on the CPUs there are."""
        crowd = max(1.0, workers / self.cpus) if self.cpus else 1.0
        return self.opening_wait_seconds + self.opening_load_seconds * crowd

    def stage(self, workers: int) -> float:
        """The shards."""
        free = self.law.work(workers) * self._stretch(workers) / workers
        return max(free, self._least)

    def _stretch(self, workers: int) -> float:
        return 1.0 if self.even else stretch(self.rows, workers, self.wanted)

    @property
    def _least(self) -> float:
        return self.law.alone * self.cpu_share / self.cpus if self.cpus else 0.0

    def most_busy(self) -> float:
        """Workers that keep all CPUs busy: more of them compute no faster."""
        return self.cpus / self.cpu_share if self.cpu_share and self.cpus else float("inf")

    def speedup(self, workers: int) -> float:
        """Against one worker."""
        return self.seconds(1) / self.seconds(workers)

    def forecast(self, workers: int) -> WorkerForecast:
        """With the interval in which an attempt's speed-up lies nine times of ten, by the delta method."""
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
        """Standard deviation of the logarithm of a measured speed-up: of the law, and of two attempts."""
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
        """How T(n) changes with the law's parameters and the serial seconds."""
        if self.stage(workers) == self._least:
            return self.cpu_share / self.cpus, 0.0, 0.0, 1.0
        factor = self._stretch(workers) / workers
        alone, contention, coherence = (term * factor for term in self.law.gradient(workers))
        return alone, contention, coherence, 1.0
