"""How long a job takes with so many workers, and how sure that is."""

from math import exp, log

from gridmill.model.advice import Forecast
from gridmill.model.noun import dataclass
from gridmill.planning.shards import stretch
from gridmill.planning.speedup import WorkLaw, terms

_FARTHEST = log(1000.0)
"""How far an interval reaches to either side: attempts that contradict each other wildly say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
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

    def forecast(self, workers: int) -> Forecast:
        """With the interval in which an attempt's speed-up lies nine times of ten, by the delta method."""
        seconds, speedup = self.seconds(workers), self.speedup(workers)
        reach = min(_FARTHEST, self.law.quantile * self._deviation(workers))
        return Forecast(
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
        known = sum(
            slope[row] * slope[column] * self.law.covariance[row][column]
            for row in range(3)
            for column in range(3)
        )
        serial = (slope[3] * self.serial_seconds * self.law.noise) ** 2
        return float((max(0.0, known) + serial + 2 * self.law.noise**2) ** 0.5)

    def _slope(self, workers: int) -> tuple[float, float, float, float]:
        """How T(n) changes with the law's parameters and the serial seconds."""
        if self.stage(workers) == self._least:
            return self.cpu_share / self.cpus, 0.0, 0.0, 1.0
        factor = self._stretch(workers) / workers
        alone, contention, coherence = (term * factor for term in terms(workers))
        return alone, contention, coherence, 1.0
