"""Times in `--json`: ISO 8601 in UTC, of each noun that has times."""

import json
from dataclasses import is_dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import Cli

from gridmill import domain as model
from gridmill.cli.session import TIMES, with_times, written
from gridmill.cli.show import PipelineWithRun
from gridmill.codec import encode
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun, Run
from gridmill.domain.schedule import Schedule, ScheduleSpec
from gridmill.domain.states import JobState, RunState
from gridmill.domain.views import JobView, RunView, ScheduleView

NAMES = frozenset().union(*TIMES.values())
NOT_SHOWN = {
    "AliasMove",
    "CodeList",
    "Heartbeat",
    "LogRecord",
    "Measurement",
    "Plan",
    "PodEvent",
    "Provenance",
    "SentView",
    "ViewOrders",
    "DueDecision",
}
"""Nouns that no command prints as JSON."""
ELSEWHERE = {"TenantView"}
"""Of a farm's records."""
NOT_TIMES = {("PlannedJob", "ends")}
"""Fields that are called like a time and are seconds from the start of a run."""


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capfd)


def test_each_field_that_is_a_time_is_known() -> None:
    found = {
        (name, field)
        for module in iter_modules(model.__path__)
        for name, one in vars(import_module(f"gridmill.domain.{module.name}")).items()
        if isinstance(one, type) and is_dataclass(one) and name not in NOT_SHOWN
        for field, kind in get_type_hints(one).items()
        if "float" in str(kind) and (field in NAMES or field.endswith(("_at", "_since")))
    }
    assert found - NOT_TIMES == {
        (name, field) for name, fields in TIMES.items() for field in fields if name not in ELSEWHERE
    }


def test_a_run_its_jobs_and_a_schedule() -> None:
    run = Run(id="w-1", pipeline="w", order=1, state=RunState.ACTIVE, created=1_700_000_000.25, due=0.0)
    job = JobRun(
        id="w-1/a",
        run_id="w-1",
        pipeline="w",
        job=Job(name="a", command=CommandSpec(run="true")),
        order=0,
        state=JobState.RUNNING,
        resource="r",
        started=1_700_000_001.0,
        served_seconds=3.5,
    )
    view = json.loads(encode(with_times(RunView(run=run, jobs=(JobView(job=job, progress={"done": 3.0}),)))))
    assert view["run"]["created"] == "2023-11-14T22:13:20.250Z"
    assert (view["run"]["due"], view["run"]["ended"], view["jobs"][0]["job"]["not_before"]) == (None,) * 3
    assert view["jobs"][0]["job"]["started"] == "2023-11-14T22:13:21.000Z"
    assert view["jobs"][0]["job"]["served_seconds"] == 3.5
    assert view["jobs"][0]["progress"] == {"done": 3.0}
    schedule = Schedule(name="w", spec=ScheduleSpec(every_seconds=60.0), since=1.0)
    (following,) = with_times(ScheduleView(schedule=schedule, next=(1_700_000_000.0,)))["next"]
    assert datetime.fromisoformat(following) == datetime.fromtimestamp(1_700_000_000, UTC)


def test_but_for_times_it_is_what_the_codec_writes() -> None:
    pipeline = Pipeline(name="w", jobs=(Job(name="a", command=CommandSpec(run=("x", "y"))),))
    assert json.loads(encode(with_times(pipeline))) == json.loads(encode(pipeline))
    fields = PipelineWithRun(pipeline=pipeline, last=None).fields()
    assert {**json.loads(encode(with_times(pipeline))), "file": None, "last_run": None} == json.loads(
        encode(fields)
    )


def test_commands_print_them(cli: Cli) -> None:
    view = cli.json("run", cli.file)
    assert view["run"]["created"].endswith("Z")
    assert cli.json("list", "runs")[0]["created"] == view["run"]["created"]
    assert cli("logs", "demo", "--json") == 0
    times = [json.loads(line)["time"] for line in cli.out.splitlines()]
    assert times == sorted(times)


@given(st.floats(min_value=1.0, max_value=4e9), st.floats(min_value=1.0, max_value=4e9))
def test_texts_are_ordered_as_times_and_read_back(one: float, other: float) -> None:
    assert datetime.fromisoformat(written(one)).timestamp() == pytest.approx(one, abs=0.00051)
    if one + 0.001 < other:
        assert written(one) < written(other)
