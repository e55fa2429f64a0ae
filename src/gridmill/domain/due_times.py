"""This module decides which run a schedule or a backfill starts next, and computes due times; all its
functions are pure functions of the time.

This module also formats the two times that a schedule passes to a run: the due time of the run, and the
previous due time.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from math import floor, inf, isfinite
from typing import Any

from gridmill.domain.backfill import Backfill, Chunk, ChunkState, chunk_id, spans
from gridmill.domain.calendar import local_time, months_later, zone_named
from gridmill.domain.drift import DriftPeriod
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.naming import read_moment
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun, Run
from gridmill.domain.schedule import CatchUp, Continuous, Overlap, Schedule, ScheduleSpec
from gridmill.domain.service import Service
from gridmill.domain.states import FINISHED_JOBS, RunState
from gridmill.errors import PipelineError

CLOCK_SET_BACK_SECONDS = 86_400.0
"""If the time of a record is further in the future than this number of seconds, the record was written
before the clock was corrected, and its time is ignored."""
GRACE_SECONDS = 60.0
"""If a due time is at most this number of seconds before the start of the control node, the run is due
now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueDecision:
    """The decision about the next run of a schedule. `start` is the due time for which a run must be
    started. All due times up to `done` were processed without starting a run. `look_at` is the time at which
    the schedule must be checked again. If only events can change the decision, `look_at` is infinite.
    `message` has the result of the decision, or the reason why no run can start."""

    start: float | None = None
    done: float | None = None
    look_at: float = inf
    message: str = ""


def check_spec(spec: ScheduleSpec) -> None:
    """Raise InputError for an invalid cron expression or time zone."""
    zone_named(spec.zone, "schedule.zone")
    if spec.cron is not None:
        _cron().check_cron(spec.cron, spec.zone)


def _cron() -> Any:  # noqa: ANN401  gridmill.domain.cron; most runs do not need its library
    from gridmill.domain import cron

    return cron


def next_after(spec: ScheduleSpec, since: float, time: float) -> float:
    """Return the first due time after `time`, in Unix seconds; infinite for a schedule without
    times."""
    if spec.every_seconds is not None:
        return since + (floor((time - since) / spec.every_seconds) + 1) * spec.every_seconds
    if spec.every_months is not None:
        return _months_due(spec, spec.every_months, since, time)[1]
    return float(_cron().next_after(spec.cron, spec.zone, time)) if spec.cron is not None else inf


def latest_until(spec: ScheduleSpec, since: float, time: float) -> float:
    """Return the last due time that is at most `time`, in Unix seconds."""
    if spec.every_seconds is not None:
        return since + floor((time - since) / spec.every_seconds) * spec.every_seconds
    if spec.every_months is not None:
        return _months_due(spec, spec.every_months, since, time)[0]
    return float(_cron().latest_until(spec.cron, spec.zone, time)) if spec.cron is not None else -inf


def _months_due(spec: ScheduleSpec, months: int, since: float, time: float) -> tuple[float, float]:
    """Return the last due time that is at most `time`, and the first due time after `time`."""
    zone = zone_named(spec.zone)
    first, here = local_time(since, zone), local_time(time, zone)
    number = ((here.year - first.year) * 12 + here.month - first.month) // months - 1
    due = _month_due(since, number * months, zone)
    while True:
        following = _month_due(since, (number + 1) * months, zone)
        if following > time:
            return due, following
        due, number = following, number + 1


def _month_due(since: float, months: int, zone: tzinfo) -> float:
    return since if months == 0 else months_later(since, months, zone)


def _base(schedule: Schedule, now: float) -> float:
    """Return the time up to which all due times of a schedule have been processed."""
    return now if _is_of_a_wrong_clock(schedule, now) else _dealt_with_until(schedule)


def _is_of_a_wrong_clock(schedule: Schedule, now: float) -> bool:
    return _dealt_with_until(schedule) > now + CLOCK_SET_BACK_SECONDS


def _dealt_with_until(schedule: Schedule) -> float:
    first = schedule.since if schedule.spec.cron is not None else schedule.since - 1e-6
    return first if schedule.done is None else schedule.done


def upcoming(schedule: Schedule, now: float, count: int) -> tuple[float, ...]:
    """Return the next due times of a schedule, without due times that were missed."""
    if schedule.paused or schedule.spec.continuous is not None:
        return ()
    times: list[float] = []
    base = max(now, _base(schedule, now))
    while len(times) < count and isfinite(base := next_after(schedule.spec, schedule.since, base)):
        times.append(base)
    return tuple(times)


def decide(schedule: Schedule, now: float, *, awake_since: float, active: str = "") -> DueDecision:
    """Decide whether a run is started for the due times up to now. `awake_since` is the time when the
    control node started: due times before it were missed. `active` is the name of an active run of the
    pipeline. Due times up to `done` are not considered again."""
    spec = schedule.spec
    if schedule.paused or spec.continuous is not None:
        return DueDecision()
    if _is_of_a_wrong_clock(schedule, now):
        return DueDecision(done=now, message="the clock was set back: due times are counted from that moment")
    first = next_after(spec, schedule.since, _base(schedule, now))
    if first > now:
        return DueDecision(look_at=first)
    at = first if spec.catch_up is CatchUp.ALL else latest_until(spec, schedule.since, now)
    if spec.catch_up is CatchUp.NONE and at < awake_since - GRACE_SECONDS:
        return DueDecision(done=at, message="missed runs are not repeated")
    if active and spec.overlap is Overlap.SKIP:
        return DueDecision(done=at, message=f"skipped one: {active} was still active")
    if active and spec.overlap is Overlap.QUEUE:
        return DueDecision(
            look_at=next_after(spec, schedule.since, now), message=f"waits for the end of {active}"
        )
    return DueDecision(start=at, done=at)


def drift_name(drift: DriftPeriod) -> str:
    """Return the name of a drift, which no other drift of the service has."""
    return f"{drift.version} since {drift.since:.3f}"


def decide_drift(
    schedule: Schedule, service: Service | None, now: float, *, active: str = "", has_failed: bool = False
) -> DueDecision | None:
    """Decide whether the drift of a service starts a run now. The result is None if nothing drifts. `service`
    is None if there is no such service. `active` is the name of an active run of the pipeline. `has_failed`
    means that the last run that a drift started has failed or was stopped."""
    trigger = schedule.spec.drift
    if trigger is None or schedule.paused:
        return None
    if service is None:
        return DueDecision(message=f"there is no service {trigger.service!r} whose drift could start a run")
    drift, checked = service.drift, schedule.drift_checked
    if drift is None:
        return None
    drifts = f"{drift.version} drifts in service {service.name}"
    if schedule.drift_seen == drift_name(drift) and has_failed:
        run = f"{schedule.drift_run} failed" if schedule.drift_run else "its run could not begin"
        return DueDecision(message=f"{drifts}; {run}, so only the next drift starts a run")
    again = -inf if checked is None else checked + trigger.pause_seconds
    if now < again <= now + trigger.pause_seconds + CLOCK_SET_BACK_SECONDS:
        return DueDecision(look_at=again, message=f"{drifts}; the pause after the last run is not over")
    if active:
        return DueDecision(message=f"{drifts}; waits for the end of {active}")
    return DueDecision(start=drift.since)


def room_for_block(continuous: Continuous, active: Sequence[Run], job_runs: Iterable[JobRun]) -> str:
    """Return the reason why no block can be loaded now, given the active runs of the pipeline and their
    jobs; empty if a block can be loaded."""
    for job_run in job_runs:
        if job_run.job.kind is JobKind.SINK and job_run.state not in FINISHED_JOBS:
            return f"{job_run.run_id} loads the block before"
    if len(active) >= continuous.in_flight:
        return f"{len(active)} runs are in flight"
    return ""


def closes_in(continuous: Continuous, files: int, size_bytes: int, waited_seconds: float) -> float:
    """Return the number of seconds until a block with that many new files is closed. The result is 0 if the
    block is closed now."""
    if continuous.max_files is not None and files >= continuous.max_files:
        return 0.0
    if continuous.max_bytes is not None and size_bytes >= continuous.max_bytes:
        return 0.0
    return max(0.0, continuous.max_wait_seconds - waited_seconds)


_STATES = {
    RunState.SUCCEEDED: ChunkState.DONE,
    RunState.FAILED: ChunkState.FAILED,
    RunState.STOPPED: ChunkState.STOPPED,
}


def chunk_ids(backfill: Backfill) -> tuple[str, ...]:
    """Return the ids of the chunks of the backfill, oldest chunk first."""
    return tuple(chunk_id(backfill.name, *span) for span in spans(backfill))


def decide_chunk(backfill: Backfill, left: Iterable[Chunk], active: int) -> Chunk | None:
    """Return the chunk to process now, out of the chunks in `left`. `active` is the number of runs of the
    backfill that are active."""
    if backfill.stopped or active >= backfill.parallel:
        return None
    ordered = sorted(left, key=lambda chunk: read_moment(chunk.begins))
    if not ordered:
        return None
    return ordered[-1] if backfill.newest_first else ordered[0]


def outage_over(pipeline: Pipeline, begins: str, ends: str) -> str:
    """Return a description of the outage of a sink that covers the whole range of time; empty if there is no
    such outage."""
    for job in pipeline.jobs:
        for outage in job.sink.outages if job.sink is not None else ():
            if outage.covers(read_moment(begins), read_moment(ends)):
                why = f": {outage.reason}" if outage.reason else ""
                return f"in the outage of sink {job.name} from {outage.begins} to {outage.ends}{why}"
    return ""


def state_of(chunk: Chunk, run: Run | None) -> ChunkState:
    """Return the state of a chunk, given the run that was started for the chunk."""
    if chunk.skipped:
        return ChunkState.SKIPPED
    if chunk.failed or (chunk.run and run is None):
        return ChunkState.FAILED
    return ChunkState.LEFT if run is None else _STATES.get(run.state, ChunkState.RUNNING)


def is_chunk_kept(chunk: Chunk, run: Run | None, *, force: bool) -> bool:
    """Return whether a chunk stays unchanged when its backfill is started again, because the chunk is
    running or has succeeded."""
    state = state_of(chunk, run)
    return state == ChunkState.RUNNING or (state == ChunkState.DONE and not force)


_EARLIER_SECONDS = 0.5
"""Two due times differ by at least one second, and this constant is half of that difference."""


def due_times(spec: ScheduleSpec, since: float, due: float) -> Mapping[str, str]:
    """Return the parameters `due` and `due_before` of a run. The times `due` and `due_before` are in ISO
    8601 with whole seconds, in the time zone of the schedule."""
    before = latest_until(spec, since, due - _EARLIER_SECONDS)
    return {"due": _text(spec, due), "due_before": _text(spec, before)}


def _text(spec: ScheduleSpec, time: float) -> str:
    return datetime.fromtimestamp(floor(time), zone_named(spec.zone)).isoformat()


def check_times(pipeline: Pipeline) -> None:
    """Raise PipelineError if a pipeline uses the times of a schedule but has not received them."""
    if not pipeline.awaits:
        return
    names = " and ".join(f"`${{{name}}}`" for name in pipeline.awaits)
    given = " ".join(f"--set {name}=2026-01-31T06:00:00+00:00" for name in pipeline.awaits)
    raise PipelineError(
        f"pipeline {pipeline.name!r} uses {names}, which a schedule gives, and no schedule starts this run",
        hint=f"Pass the values: gridmill run {pipeline.name} {given}",
    )
