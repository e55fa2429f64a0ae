"""`workers: auto`: open at first, then the number that attempts say is worth paying for."""

from dataclasses import replace

import pytest

from gridmill.declarations import parse_declarations
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.job import Job, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Sizing, default_resource
from gridmill.errors import PipelineError
from gridmill.scheduler.history import PROBE, MeasurementHistory
from gridmill.scheduler.sizing import size_job
from gridmill.testing.fake_advising import parallel_attempt

TEXT = """
pipeline: weather
jobs:
  predict: {prediction: {dataset: other/features, models: [other/train], workers: WORKERS}}
"""


def sized(history: MeasurementHistory, workers: int | None = None) -> Sizing:
    job = Job(
        name="predict", prediction=PredictionSpec(dataset="features", models=("train",), workers=workers)
    )
    return size_job(
        job,
        JobSize(rows=64_000, columns=4),
        history,
        pipeline="weather",
        resource=default_resource(job.kind),
        largest=Amounts(cpus=8, memory_bytes=64 * GIB),
        nodes=1,
    )


def is_advised(sizing: Sizing) -> bool:
    return any("recommended number" in why for why in sizing.why)


@pytest.mark.parametrize(("written", "read"), [("auto", None), ("3", 3)])
def test_auto_is_read(written: str, read: int | None) -> None:
    (pipeline,) = parse_declarations(TEXT.replace("WORKERS", written))
    assert isinstance(pipeline, Pipeline)
    job = pipeline.jobs[0]
    assert job.prediction is not None
    assert job.prediction.workers == read


def test_another_word_is_refused() -> None:
    with pytest.raises(PipelineError, match="a whole number or auto"):
        parse_declarations(TEXT.replace("WORKERS", "many"))


def test_the_number_comes_from_attempts_and_probes() -> None:
    history = MeasurementHistory()
    assert not is_advised(sized(history))
    history.add(parallel_attempt(1, workers=1, work_seconds=57.5))
    assert sized(history).workers == 4
    assert is_advised(sized(history))
    probe = parallel_attempt(2, workers=8, work_seconds=57.5, share=0.1)
    history.add(replace(probe, subject="prediction" + PROBE))
    assert sized(history).workers > 4


def test_a_declared_number_stands() -> None:
    history = MeasurementHistory()
    history.add(parallel_attempt(1, workers=1, work_seconds=57.5))
    assert sized(history, 2).workers == 2
    assert not is_advised(sized(history, 2))


def test_more_workers_than_were_measured_get_more_memory() -> None:
    history = MeasurementHistory()
    history.add(parallel_attempt(1, workers=2, work_seconds=57.5))
    few, many = (sized(history, workers).amounts.memory_bytes for workers in (2, 16))
    assert many > 4 * few
    assert sized(history, 1).amounts.memory_bytes == few
    history.add(parallel_attempt(2, workers=8, work_seconds=57.5))
    assert sized(history, 16).amounts.memory_bytes < many / 3  # it took no more memory with 8


def test_the_forecast_follows_the_workers() -> None:
    history = MeasurementHistory()
    history.add(parallel_attempt(1, workers=1, work_seconds=57.5))
    one, four = (sized(history, workers).expected_seconds for workers in (1, 4))
    assert one is not None
    assert four is not None
    assert four / one == pytest.approx((2.5 + 57.5 / 4) / 60, rel=0.01)


def test_probes_do_not_change_sizes_and_forecasts() -> None:
    history = MeasurementHistory()
    history.add(parallel_attempt(1, workers=2, work_seconds=57.5))
    before = sized(history, 2)
    probe = parallel_attempt(2, workers=2, work_seconds=57.5, share=0.1)
    history.add(replace(probe, subject="prediction" + PROBE))
    assert sized(history, 2) == before
