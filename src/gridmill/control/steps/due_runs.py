"""This module has the active runs of schedules, and the current state of a schedule."""

from gridmill.control.ledger import Ledger
from gridmill.control.state import ScheduleTimers
from gridmill.domain.due_times import decide, decide_drift, upcoming
from gridmill.domain.run import Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.service import Service
from gridmill.domain.states import FINISHED_JOBS, RunState
from gridmill.domain.views import ScheduleView
from gridmill.ports.clock import Clock


def active_runs(ledger: Ledger, schedule: Schedule) -> list[Run]:
    """Return the active runs that a schedule must not overlap. For a schedule of a single job, these are the
    runs in which this job has not ended. For a schedule of a pipeline, these are the runs of all jobs of the
    pipeline."""
    snapshot = ledger.snapshot
    runs = [run for run in snapshot.runs.values() if run.pipeline == schedule.pipeline]
    if not schedule.only:
        return [run for run in runs if not run.only]
    jobs = ((run, snapshot.job_runs.get(f"{run.id}/{schedule.only[0]}")) for run in runs)
    return [run for run, job in jobs if job is not None and job.state not in FINISHED_JOBS]


def overlapping_run(ledger: Ledger, schedule: Schedule) -> str:
    """Return the id of the oldest active run with which the next run of the schedule would overlap. Runs of
    backfills are not considered. The result is empty if there is no such run."""
    active = [run for run in active_runs(ledger, schedule) if not run.chunk]
    return min(active, key=lambda run: run.order).id if active else ""


def has_drift_run_failed(ledger: Ledger, schedule: Schedule) -> bool:
    """Return whether the last run that a drift has started failed, was stopped, or could not begin."""
    if not schedule.drift_seen:
        return False
    run = ledger.read(Run, schedule.drift_run) if schedule.drift_run else None
    return run.state in (RunState.FAILED, RunState.STOPPED) if run is not None else not schedule.drift_run


UPCOMING = 3
"""The number of future due times that are shown."""


def schedule_view(
    ledger: Ledger, clock: Clock, timers: ScheduleTimers | None, schedule: Schedule
) -> ScheduleView:
    """Return the current state of a schedule, for display."""
    now = clock.now()
    if timers is None:
        return ScheduleView(schedule=schedule, why="waits until `gridmill up` runs")
    active = overlapping_run(ledger, schedule)
    verdict = decide(schedule, now, awake_since=timers.awake_since, active=active)
    watch = timers.watches.get(schedule.name)
    if watch is not None and not schedule.paused:
        return ScheduleView(schedule=schedule, why=watch.message)
    trigger = schedule.spec.drift
    service = ledger.read(Service, trigger.service) if trigger is not None else None
    has_failed = has_drift_run_failed(ledger, schedule)
    by_drift = decide_drift(schedule, service, now, active=active, has_failed=has_failed)
    drifts = by_drift.message if by_drift is not None else ""
    why = "paused" if schedule.paused else verdict.message or drifts or schedule.message
    return ScheduleView(schedule=schedule, next=upcoming(schedule, now, UPCOMING), why=why)
