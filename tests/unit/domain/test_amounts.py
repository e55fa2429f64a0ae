"""How sizes, durations and periods are read: a unit that can be misread is refused."""

from datetime import UTC, datetime

import pytest

from gridmill.declarations import parse_declarations
from gridmill.domain.amounts import (
    Months,
    parse_bytes,
    parse_count,
    parse_number,
    parse_period,
    parse_seconds,
    show_cpus,
    show_number,
    show_period,
)
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.sink import Retain
from gridmill.errors import GridmillError, InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("5m", 300), ("5 min", 300), ("2H", 7200), ("1d", 86_400), ("2w", 1_209_600), (90, 90)],
)
def test_durations(text: str | int, seconds: float) -> None:
    assert parse_seconds(text) == parse_period(text) == seconds


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (parse_seconds, "6M", "minutes or months"),
        (parse_seconds, "6 M", "minutes or months"),
        (parse_seconds, "100Ms", "milliseconds or months"),
        (parse_seconds, "6mo", "have no fixed length"),
        (parse_seconds, "1y", "have no fixed length"),
        (parse_period, "6M", "mo for months"),
        (parse_period, "1.5mo", "whole number of months"),
        (parse_bytes, "2Gb", "means bits; write GB"),
        (parse_bytes, "2Mib", "means bits; write MiB"),
        (parse_number, "2m", "not a number"),
        (parse_count, "2Mi", "not a count"),
    ],
)
def test_a_unit_that_can_be_misread_is_refused(parse, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse(text)


def test_months_and_years() -> None:
    assert [parse_period(text) for text in ("6mo", "1y")] == [Months(6), Months(12)]
    assert isinstance(parse_period("6mo"), Months)
    assert [show_period(None, 18), show_period(None, 24)] == ["18mo", "2y"]
    assert [show_period(one) for one in (604_800, 5400, 90, 0.5)] == ["7d", "90m", "90s", "0.5s"]


PIPELINE = """
pipeline: p
schedule: {{every: {every}, zone: Europe/Amsterdam}}
jobs:
  load:
    sink:
      source: {{path: data/*.csv}}
      retain: {{time: t, keep: {keep}}}
"""


def test_a_pipeline_declares_months() -> None:
    (pipeline,) = parse_declarations(PIPELINE.format(every="1mo", keep="1y"))
    assert isinstance(pipeline, Pipeline)
    assert pipeline.schedule is not None
    assert pipeline.schedule.every_months == 1
    assert pipeline.schedule.text == "every 1mo Europe/Amsterdam"
    (job,) = pipeline.jobs
    assert job.sink is not None
    assert job.sink.retain == Retain(time="t", keep_seconds=None, keep_months=12)
    leap_day = datetime(2028, 2, 29, 12, tzinfo=UTC)
    assert job.sink.retain.cutoff(leap_day.timestamp()) == datetime(2027, 2, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("every", "keep", "says"),
    [
        ("6M", "1y", "schedule.every: expected a period .* M can mean minutes or months"),
        ("1h", "6M", "retain.keep: expected a period .* M can mean minutes or months"),
        ("1h", "0mo", "`keep` must be 1mo or more"),
        ("0mo", "1d", "`every` must be 1mo or more"),
        ("1h", "null", "needs `keep`"),
    ],
)
def test_a_pipeline_with_a_period_that_can_be_misread_is_refused(every: str, keep: str, says: str) -> None:
    with pytest.raises(GridmillError, match=says):
        parse_declarations(PIPELINE.format(every=every, keep=keep))


def test_negative_zero_is_shown_as_zero():
    assert [show_number(value) for value in (-0.0, 0.0, -0.25, 3.0)] == ["0", "0", "-0.25", "3"]


@pytest.mark.parametrize(
    ("cpus", "text"), [(1, "1 CPU"), (0.999999, "1 CPU"), (0, "0 CPUs"), (0.5, "0.5 CPUs"), (8.0, "8 CPUs")]
)
def test_one_cpu_is_singular(cpus: float, text: str) -> None:
    assert show_cpus(cpus) == text
