"""Records of the advice on workers: the bottleneck of a job, the gain of more workers, and the best
number."""

from collections.abc import Mapping
from enum import StrEnum

from gridmill.domain.frozen import dataclass


class Bottleneck(StrEnum):
    """The resource or the wait that takes most of the time of a job's workers."""

    CPU = "cpu"
    DISK = "disk"
    WAITING = "waiting"  # for the network, a lock, another process, a model that runs in another process


class ScalingLawKind(StrEnum):
    """The law that the measured times follow."""

    AMDAHL = "amdahl"
    USL = "usl"
    QUEUE = "queue"  # a part of the work is done by one worker at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """The fitted law, as shares of the time with one worker. `serial` is the part that more workers do not
    shorten (Amdahl's serial share, the contention of the USL, or the part of a queue that one worker does at
    a time). `coherence` is the cost of each pair of workers (the second cost of the USL; 0 for other laws).
    `noise` is the standard deviation of single attempts from the law, as a share."""

    kind: ScalingLawKind
    serial: float
    coherence: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMeasurement:
    """A measured attempt. `seconds` is the time for all of the data. If the attempt had only a `share` of the
    data, as a `probe` has, the measured time is scaled. `speedup` is the speed-up over one worker by the law.
    """

    attempt_id: str
    workers: int
    share: float
    seconds: float
    speedup: float
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForecast:
    """The forecast for a number of workers: wall seconds, speed-up over one worker with its 90 %
    prediction interval, and `cost`, worker-seconds relative to those of one worker."""

    workers: int
    seconds: float
    speedup: float
    low: float
    high: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A run that would add a measurement, with `workers` workers on a share of the data. The results of the
    run are not kept."""

    workers: int
    share: float
    expected_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on one job, `pipeline/job`. `shares` are the parts of the workers' time and add up to 1: on a
    CPU (`cpu`), ready without a CPU (`delay`), waiting for the disk (`disk`) and other waiting (`waiting`).
    `why` explains the shares in sentences. `unknown` lists the facts that are not known yet, and `probes` the
    smallest runs that would measure these facts. `worth` is the recommended number of workers, by `rule`.
    `serial_seconds`, `opening_seconds` and `work_seconds` are the times of one worker for all `rows`: before
    and after the shards, for loading inputs such as the model, and for the shards."""

    job: str
    work: str
    bound: Bottleneck
    shares: Mapping[str, float]
    law: ScalingLaw
    summary: str
    worth: int
    rule: str
    vertical: str
    rows: int
    serial_seconds: float
    opening_seconds: float
    work_seconds: float
    forecasts: tuple[WorkerForecast, ...]
    measured: tuple[ScalingMeasurement, ...]
    why: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()

    def forecast(self, workers: int) -> WorkerForecast | None:
        """The forecast for that number of workers, or None if there is none."""
        return next((line for line in self.forecasts if line.workers == workers), None)
