"""The tick that starts the runs that are due. A run and the note that it was started are one commit."""

from dataclasses import replace
from math import inf

from gridmill.control.continuous import keep_continuous
from gridmill.control.defects import defect
from gridmill.control.ledger import Transaction
from gridmill.control.listings import listed
from gridmill.control.scheduled import active_runs, scheduled_pipeline, start_scheduled
from gridmill.control.state import Alarms, Control
from gridmill.errors import GridmillError, StorageError
from gridmill.model.schedule import Schedule
from gridmill.model.view import ScheduleView
from gridmill.planning.schedules import Verdict, decide, upcoming

ASLEEP_SECONDS = 60.0
"""The wall clock moved this much against the monotonic one: the machine slept, or its clock was set."""


def keep_schedules(control: Control) -> float:
    """Start what is due; seconds until something may be due again (infinite: only events change that).

    Goes by the wall clock, which people mean by six o'clock; `Control.now` would be late by as long as the
    machine slept.
    """
    alarms = control.alarms
    if alarms is None:
        return inf
    now = control.clock.now()
    _notice_sleep(control, alarms, now)
    waits = [_keep(control, alarms, schedule, now) for schedule in _schedules(control, alarms)]
    return max(0.0, min(waits, default=inf))


def _notice_sleep(control: Control, alarms: Alarms, now: float) -> None:
    offset = now - control.clock.monotonic()
    if alarms.offset is None or abs(offset - alarms.offset) > ASLEEP_SECONDS:
        alarms.awake_since = now
        alarms.times.clear()
    alarms.offset = offset


def _schedules(control: Control, alarms: Alarms) -> list[Schedule]:
    known = control.ledger.snapshot.schedules
    for table in (alarms.times, alarms.watches):
        for gone in table.keys() - known.keys():
            del table[gone]
    return list(known.values())


def _keep(control: Control, alarms: Alarms, schedule: Schedule, now: float) -> float:
    if schedule.spec.continuous is not None:
        continuous = schedule.spec.continuous
        return inf if schedule.paused else keep_continuous(control, alarms, schedule, continuous)
    known, look_at = alarms.times.get(schedule.name, (None, -inf))
    if known is schedule and now < look_at:
        return look_at - now
    verdict = decide(schedule, now, awake_since=alarms.awake_since, active=_active(control, schedule))
    if verdict.done is None:
        alarms.times[schedule.name] = (schedule, verdict.look_at if not verdict.message else -inf)
        return verdict.look_at - now
    transaction = control.begin()
    after = _dealt_with(control, transaction, schedule, verdict)
    if after is None:
        return inf
    transaction.put(after)
    control.ledger.commit(transaction)
    return 0.0


def _active(control: Control, schedule: Schedule) -> str:
    """The id of the oldest run that the next one would overlap with, backfills aside; empty without one."""
    active = [run for run in active_runs(control, schedule) if not run.chunk]
    return min(active, key=lambda run: run.order).id if active else ""


def _dealt_with(
    control: Control, transaction: Transaction, schedule: Schedule, verdict: Verdict
) -> Schedule | None:
    """The schedule after its due time, and in the transaction the run, if one is to start; None while its
    sources are being listed, or files of its versions looked at."""
    after = replace(schedule, done=verdict.done, message=verdict.message)
    if verdict.start is None:
        is_later = verdict.done is not None and verdict.done >= (schedule.done or schedule.since)
        return replace(after, skipped=schedule.skipped + is_later)  # a clock that was set back skips nothing
    try:
        pipeline = scheduled_pipeline(control, schedule, verdict.start)
        key = f"schedule {schedule.name} at {verdict.start}"
        found = listed(control, key, pipeline.jobs, pipeline.folder)
        if found is None:
            return None
        return start_scheduled(control, transaction, after, verdict.start, pipeline, found)
    except StorageError:  # the store, not the pipeline: tried again
        raise
    except GridmillError as error:
        return replace(after, message=f"{error} {error.hint}".strip(), skipped=schedule.skipped + 1)
    except Exception as error:  # noqa: BLE001  tried again for ever, it would hold up every run
        told = defect(control, f"schedule {schedule.name}", error)
        return replace(after, message=str(told), skipped=schedule.skipped + 1)


UPCOMING = 3
"""Due times shown ahead."""


def schedule_view(control: Control, schedule: Schedule) -> ScheduleView:
    """A schedule as it stands now."""
    now = control.clock.now()
    if control.alarms is None:
        return ScheduleView(schedule=schedule, why="waits for `gridmill up`")
    active = _active(control, schedule)
    verdict = decide(schedule, now, awake_since=control.alarms.awake_since, active=active)
    watch = control.alarms.watches.get(schedule.name)
    if watch is not None and not schedule.paused:
        return ScheduleView(schedule=schedule, why=watch.message)
    why = "paused" if schedule.paused else verdict.message or schedule.message
    return ScheduleView(schedule=schedule, next=upcoming(schedule, now, UPCOMING), why=why)
