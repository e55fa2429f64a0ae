"""Advice in a grid in memory: always on the same two attempts."""

from gridmill.errors import NotFoundError
from gridmill.model.advice import Advice
from gridmill.model.amounts import GIB, Amounts
from gridmill.model.job import Job, JobSize
from gridmill.model.parallel import Parallel
from gridmill.model.prediction import PredictionSpec
from gridmill.model.resource import Measurement, Use
from gridmill.model.view import RunView
from gridmill.planning.advice import Known, advise

ADVISED = "weather/predict"
"""The one job that a FakeGrid knows something of."""


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
    """An attempt of ADVISED as its pod would tell of it; `work_seconds` are worker-seconds for all rows."""
    busy = work_seconds * share
    stage = opening_seconds + busy / workers
    told = Parallel(
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
        use=Use(
            wall_seconds=serial_seconds + stage, cpu_seconds=busy * cpu_share, peak_memory_bytes=GIB // 2
        ),
        ended=float(number),
        parallel=told,
    )


def known_of(*measured: Measurement, cpus: float = 8.0, shards: int | None = None) -> Known:
    """What advice on ADVISED is made from."""
    spec = PredictionSpec(dataset="features", models=("train",), shards=shards)
    return Known(
        name=ADVISED,
        job=Job(name="predict", prediction=spec),
        measured=measured,
        most=Amounts(cpus=cpus, memory_bytes=64 * GIB),
    )


class FakeAdvising:
    """Implements gridmill.ports.advising."""

    __slots__ = ()

    def advise(self, name: str) -> Advice:
        """See Advising."""
        known = known_of(
            parallel_attempt(1, workers=1, work_seconds=60.0),
            parallel_attempt(2, workers=4, work_seconds=64.0),
        )
        found = advise(known) if name == ADVISED else None
        if found is None:
            raise NotFoundError(f"there is no job {name!r}")
        return found

    def probe(self, name: str, *, workers: int, share: float) -> RunView:
        """See Advising."""
        raise NotFoundError(f"there is no job {name!r}")
