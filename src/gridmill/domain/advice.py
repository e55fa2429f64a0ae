"""Records of the advice on workers: what limits a job, what more workers would gain, and the best number."""

from collections.abc import Mapping
from enum import StrEnum

from gridmill.domain.frozen import dataclass


class Bottleneck(StrEnum):
    """What a job's workers spend most of their time on."""

    CPU = "cpu"
    DISK = "disk"
    WAITING = "waiting"  # for the network, a lock, another process, a model that answers elsewhere


class ScalingLawKind(StrEnum):
    """The law that the measured times follow."""

    AMDAHL = "amdahl"
    USL = "usl"
    QUEUE = "queue"  # a part of the work is done by one worker at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """What was fitted, as shares of the time with one worker.

    `serial` is the part that no number of workers makes shorter (Amdahl's serial share, the USL's
    contention, what a queue leaves to one worker at a time), `coherence` what each pair of workers costs (the
    USL's second cost; 0 for other laws).
    `noise` is how far single attempts lie from it (standard deviation, as a share).
    """

    kind: ScalingLawKind
    serial: float
    coherence: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMeasurement:
    """An attempt that was learned from. `seconds` are for all of the data: those of one that had a `share` of
    it, as a `probe` may, are scaled. `speedup` is against one worker by the law."""

    attempt_id: str
    workers: int
    share: float
    seconds: float
    speedup: float
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForecast:
    """What so many workers would come to: wall seconds, speed-up over one worker with its 90 % prediction
    interval, and worker-seconds against those of one worker (`cost`)."""

    workers: int
    seconds: float
    speedup: float
    low: float
    high: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A run that would tell more: so many workers on a share of the data; nothing of it is kept."""

    workers: int
    share: float
    expected_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on one job, `pipeline/job`.

    `shares` are parts of the workers' time, 1 together: on a CPU (`cpu`), ready without one (`delay`), for
    the disk (`disk`), and standing still otherwise (`waiting`). `why` says it in sentences,
    `unknown` what is not known yet, `probes` the smallest runs that would tell. `worth` is the number of
    workers worth paying for, by `rule`. `serial_seconds`, `opening_seconds` and `work_seconds` are what one
    worker needs for all `rows`: before and after the shards, to load what it works with, and at the shards.
    """

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
        """The line of that number of workers, where there is one."""
        return next((line for line in self.forecasts if line.workers == workers), None)
