"""This module has the active runs of schedules, and the current state of a schedule."""

from gridmill.control.ledger import Ledger
from gridmill.control.state import ScheduleTimers
from gridmill.domain.due_times import decide, upcoming
from gridmill.domain.run import Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.states import FINISHED_JOBS
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
    why = "paused" if schedule.paused else verdict.message or schedule.message
    return ScheduleView(schedule=schedule, next=upcoming(schedule, now, UPCOMING), why=why)
