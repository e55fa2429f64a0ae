"""The advice of a grid in memory, which is always based on the same two attempts."""

from gridmill.domain.advice import Advice
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.job import Job, JobSize
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import MeasuredUse, Measurement
from gridmill.domain.usage import ParallelTiming
from gridmill.domain.views import RunView
from gridmill.errors import NotFoundError
from gridmill.scheduler.advice import AdviceInput, advise

ADVISED = "weather/predict"
"""The only job for which a FakeGrid has measurements."""


def parallel_attempt(
    number: int,
    *,
    workers: int,
    work_seconds: float,
    serial_seconds: float = 2.0,
    opening_seconds: float = 0.5,
    cpu_share: float = 0.1,
    rows: int = 64_000,
    share: float = 1.0,
    deviation: float = 0.01,
) -> Measurement:
    """Returns an attempt of the job ADVISED in the form in which its pod would report it. `work_seconds` is
    the sum of the seconds that all workers need for all rows."""
    busy = work_seconds * share
    stage = opening_seconds + busy / workers
    timing = ParallelTiming(
        work="weather/train (lstm)",
        workers=workers,
        shards=4 * workers,
        rows=round(rows * share),
        whole_rows=rows,
        stage_seconds=stage,
        opening_seconds=opening_seconds,
        opening_cpu_seconds=0.2,
        opening_delay_seconds=0.0,
        busy_seconds=busy,
        longest_seconds=busy / (4 * workers),
        deviation=deviation,
        cpu_seconds=busy * cpu_share,
        delay_seconds=0.0,
        disk_seconds=0.0,
        read_bytes=0,
        written_bytes=0,
    )
    return Measurement(
        attempt_id=f"weather-{number}.predict.1",
        subject="prediction",
        job=ADVISED,
        size=JobSize(rows=rows),
        given=Amounts(cpus=1.0, memory_bytes=GIB),
        use=MeasuredUse(
            wall_seconds=serial_seconds + stage, cpu_seconds=busy * cpu_share, peak_memory_bytes=GIB // 2
        ),
        ended=float(number),
        parallel=timing,
    )


def known_of(*measured: Measurement, cpus: float = 8.0, shards: int | None = None) -> AdviceInput:
    """Returns the measurements on which advice for the job ADVISED is based."""
    spec = PredictionSpec(dataset="features", models=("train",), shards=shards)
    return AdviceInput(
        name=ADVISED,
        job=Job(name="predict", prediction=spec),
        measured=measured,
        most=Amounts(cpus=cpus, memory_bytes=64 * GIB),
    )


class FakeAdvising:
    """Implements gridmill.ports.grid."""

    __slots__ = ()

    def advise(self, name: str) -> Advice:
        """See Advising."""
        known = known_of(
            parallel_attempt(1, workers=1, work_seconds=60.0),
            parallel_attempt(2, workers=4, work_seconds=64.0),
        )
        result = advise(known) if name == ADVISED else None
        if result is None:
            raise NotFoundError(f"there is no job {name!r}")
        return result

    def probe(self, name: str, *, workers: int, share: float = 0.1) -> RunView:
        """See Advising."""
        raise NotFoundError(f"there is no job {name!r}")
