"""The times that a schedule gives to a run, as texts: when it is due, and the due time before."""

from collections.abc import Mapping
from datetime import datetime
from math import floor

from gridmill.errors import PipelineError
from gridmill.model.calendar import zone_named
from gridmill.model.pipeline import Pipeline
from gridmill.model.schedule import ScheduleSpec
from gridmill.planning.schedules import latest_until

_EARLIER_SECONDS = 0.5
"""Due times are a second apart, or more."""


def due_times(spec: ScheduleSpec, since: float, due: float) -> Mapping[str, str]:
    """`due` and `due_before` of a run: ISO 8601 in whole seconds, in the schedule's zone."""
    before = latest_until(spec, since, due - _EARLIER_SECONDS)
    return {"due": _text(spec, due), "due_before": _text(spec, before)}


def _text(spec: ScheduleSpec, time: float) -> str:
    return datetime.fromtimestamp(floor(time), zone_named(spec.zone)).isoformat()


def check_times(pipeline: Pipeline) -> None:
    """Raise PipelineError for a pipeline that uses times of a schedule and was not given them."""
    if not pipeline.awaits:
        return
    names = " and ".join(f"`${{{name}}}`" for name in pipeline.awaits)
    given = " ".join(f"--set {name}=2026-01-31T06:00:00+00:00" for name in pipeline.awaits)
    raise PipelineError(
        f"pipeline {pipeline.name!r} uses {names}, which a schedule gives, and no schedule starts this run",
        hint=f"Give them: gridmill run {pipeline.name} {given}",
    )
