"""This module has the records of the advice on workers: the bottleneck of a job, the gain of more workers,
and the best number of workers."""

from collections.abc import Mapping
from enum import StrEnum

from gridmill.domain.frozen import dataclass


class Bottleneck(StrEnum):
    """The resource or the kind of waiting on which the workers of a job spend most of their time."""

    CPU = "cpu"
    DISK = "disk"
    WAITING = "waiting"
    """The job waits for the network, a lock, another process, or a model that runs in another process."""


class ScalingLawKind(StrEnum):
    """The law that the measured times of a job follow when its number of workers grows."""

    AMDAHL = "amdahl"
    USL = "usl"
    QUEUE = "queue"
    """A part of the work is done by one worker at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """A law that was fitted to measured times; its values are fractions of the time with one worker.
    `serial` is the fraction of the time that more workers do not shorten (Amdahl's serial fraction, the
    contention of the USL, or the part of a queue that only one worker can process at a time). `coherence` is
    the cost of each pair of workers (the second cost of the USL; 0 for all other laws). `noise` is the
    standard deviation of single attempts from the law, as a fraction of their time."""

    kind: ScalingLawKind
    serial: float
    coherence: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMeasurement:
    """The measured time of one attempt with its number of workers. `seconds` is the time that the attempt
    needs for all of the data. A probe processes only the fraction `share` of the data; its measured time is
    scaled to all of the data. `speedup` is the speed-up over one worker according to the fitted law.
    """

    attempt_id: str
    workers: int
    share: float
    seconds: float
    speedup: float
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForecast:
    """The forecast for a number of workers: wall seconds, speed-up over one worker with its 90 % prediction
    interval, and `cost`, which is the number of worker-seconds relative to one worker."""

    workers: int
    seconds: float
    speedup: float
    low: float
    high: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A proposed run that would add a measurement. It has `workers` workers and processes the fraction
    `share` of the data. Gridmill does not store the results of a proposed run."""

    workers: int
    share: float
    expected_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advice on the number of workers of one job, `pipeline/job`. `shares` are the fractions of the
    workers' time in four states, and add up to 1: on a CPU (`cpu`), ready without a CPU (`delay`), waiting
    for the disk (`disk`) and other waiting (`waiting`). `why` explains in sentences how the workers spend
    their time. `unknown` lists the facts about the job that are not known yet, and `probes` lists the
    smallest runs that would measure these facts. `worth` is the recommended number of workers, and `rule` is
    the rule that recommends it. `serial_seconds` is the time before and after the shards, `opening_seconds`
    is the time to load inputs such as the model, and `work_seconds` is the time for the shards. These three
    fields are times of one worker for all `rows`."""

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
        """Return the forecast for that number of workers, or None if the advice has no such forecast."""
        return next((line for line in self.forecasts if line.workers == workers), None)
