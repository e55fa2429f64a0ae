"""This module has the tick that starts the due runs of schedules, and watches sources for continuous
schedules.

A run and the record of its schedule are written in one commit. For a continuous schedule, the tick checks
for new files, closes blocks and starts their runs.
"""

from collections.abc import Mapping
from math import inf

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Control, ScheduleTimers, SourceWatch
from gridmill.control.steps.due_runs import _active, active_runs
from gridmill.control.steps.end_attempt import defect
from gridmill.control.steps.reuse_forecast import unchanged_jobs, why_broken
from gridmill.control.steps.run_lifecycle import as_altered, begin_run, chosen
from gridmill.control.steps.source_listing import SourceListing, listed
from gridmill.control.steps.stored_pipelines import with_values
from gridmill.domain.artifact import Artifact
from gridmill.domain.due_times import DueDecision, closes_in, decide, due_times, room_for_block
from gridmill.domain.frozen import replace
from gridmill.domain.job import When
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.schedule import Continuous, Schedule
from gridmill.errors import GridmillError, PipelineError, StorageError
from gridmill.ports.clock import Clock
from gridmill.ports.storage import FileStat


def start_scheduled(
    control: Control,
    transaction: Transaction,
    schedule: Schedule,
    due: float,
    pipeline: Pipeline,
    listings: Mapping[str, SourceListing],
) -> Schedule | None:
    """Start the run that is due, unless all its jobs would be unchanged. The function returns the schedule,
    changed to contain the result. The function returns None while the files of the versions that would be
    restored are being checked."""
    standing = unchanged_jobs(
        control.catalog, control.code, control.timeline, pipeline, listings, scheduled=True
    )
    all_stand = standing.keys() >= {job.name for job in pipeline.jobs if job.when == When.SUCCESS}
    broken = why_broken(control.reads, standing.values(), schedule.name) if all_stand else ""
    if broken is None:
        return None
    if all_stand and not broken:
        return replace(schedule, unchanged=schedule.unchanged + 1, message=_nothing_new(standing))
    inner = transaction.within()
    run = begin_run(control.run_creation, inner, pipeline, force=False, only=schedule.only, due=due)
    transaction.join(inner)
    return replace(schedule, last_run=run.id, runs=schedule.runs + 1, message="")


_SHOWN = 3


def _nothing_new(standing: Mapping[str, Artifact]) -> str:
    """Return a sentence with the reason why no run was started."""
    names = [f"`{name}` since {version.id}" for name, version in standing.items()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there was no new data: no change of {', '.join(names[:_SHOWN])}{more}"


def scheduled_pipeline(ledger: Ledger, schedule: Schedule, due: float | None = None) -> Pipeline:
    """Return the stored pipeline with the values for that due time. Raises PipelineError."""
    pipeline = ledger.read(Pipeline, schedule.pipeline)
    if pipeline is None:
        raise PipelineError(
            f"pipeline {schedule.pipeline!r} is not stored any more",
            hint="Store the pipeline: `gridmill apply -f FILE`.",
        )
    if pipeline.awaits and due is not None:
        times = due_times(schedule.spec, schedule.since, due)
        pipeline = with_values(pipeline, {name: times[name] for name in pipeline.awaits})
    return chosen(as_altered(ledger, pipeline), schedule.only)


def keep_continuous(
    control: Control, alarms: ScheduleTimers, schedule: Schedule, continuous: Continuous
) -> float:
    """Start a run if a block of new files is complete, and if the schedule allows one more active run. The
    function returns the seconds until the next check."""
    watch = alarms.watches.setdefault(schedule.name, SourceWatch())
    now = control.clock.monotonic()
    if now < watch.look_at:
        return watch.look_at - now
    wait = continuous.check_seconds
    try:
        watch.message = _blocking_reason(control.ledger, schedule, continuous)
        if watch.message:
            # forgotten, because this listing will be outdated once there is room for another run
            control.pending_reads.listings.pop(_key(schedule), None)
        else:
            wait = _look(control, watch, schedule, continuous, now)
    except StorageError:  # the store failed, not the pipeline: the next tick tries again
        raise
    except GridmillError as error:
        watch.message = f"{error} {error.hint}".strip()
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        watch.message = str(defect(control.problems, f"schedule {schedule.name}", error))
    watch.look_at = now + wait
    return wait or continuous.check_seconds


def _blocking_reason(ledger: Ledger, schedule: Schedule, continuous: Continuous) -> str:
    active = active_runs(ledger, schedule)
    jobs = (job for run in active for job in ledger.snapshot.job_runs_of(run.id))
    return room_for_block(continuous, active, jobs)


def _look(
    control: Control, watch: SourceWatch, schedule: Schedule, continuous: Continuous, now: float
) -> float:
    """Check the sources for new files, and start a run if a block is closed. The function returns the
    seconds until the next check; 0 while the sources are being listed. If only the load itself can find out
    whether a source has new data, the source is treated as new at each check."""
    pipeline = scheduled_pipeline(control.ledger, schedule)
    listings = listed(
        control.reads,
        _key(schedule),
        pipeline.jobs,
        pipeline.folder,
    )
    if listings is None:
        return 0.0
    files = frozenset(_by_content(file) for one in listings.values() for file in one.files_or_raise())
    new = files - watch.seen
    watch.message = ", ".join(f"{name}: {one.waiting}" for name, one in listings.items() if one.waiting)
    live = any(job.sink is not None and job.sink.source.live for job in pipeline.jobs)
    if not new and not live:
        watch.waiting_since = None
        return continuous.check_seconds
    since = watch.waiting_since if watch.waiting_since is not None else now
    watch.waiting_since = since
    left = closes_in(continuous, len(new), sum(file.size_bytes for file in new), now - since)
    if left > 0:
        watch.message = f"{len(new)} new files wait for their block to be closed"
        return min(left, continuous.check_seconds)
    sinks = {job.name for job in pipeline.jobs if job.sink is not None}
    # no run is needed if the data was already loaded before a restart of the control node
    as_before = (
        unchanged_jobs(control.catalog, control.code, control.timeline, pipeline, listings).keys() >= sinks
    )
    if not as_before and not _start(control, schedule, pipeline, listings):
        return 0.0
    watch.seen, watch.waiting_since = files, None
    return continuous.check_seconds


def _by_content(file: FileStat) -> FileStat:
    """Return the file. If the hash of its content is known, the times and the inode are left out, so that a
    file with only a new modification time is not treated as new."""
    return replace(file, mtime_ns=0, ctime_ns=0, inode=0) if file.content else file


def _key(schedule: Schedule) -> str:
    return f"schedule {schedule.name}"


def _start(
    control: Control, schedule: Schedule, pipeline: Pipeline, listings: Mapping[str, SourceListing]
) -> bool:
    """Start the run of a closed block. The function returns False if another check is needed first."""
    transaction = control.ledger.begin(control.timeline.now())
    now = control.clock.now()
    after = start_scheduled(control, transaction, schedule, now, pipeline, listings)
    if after is None:
        return False
    transaction.put(after)
    control.ledger.stage(transaction)
    return True


ASLEEP_SECONDS = 60.0
"""If the wall clock moves by this many seconds against the monotonic clock, the machine slept or its clock
was set."""


def keep_schedules(control: Control) -> float:
    """Start the runs that are due. The function returns the seconds until another run may be due. The
    seconds are infinite if only events can make a run due.

    The function uses the wall clock, because due times such as six o'clock refer to it. The clock
    `Control.now` is not used, because after a sleep of the machine it would be late by the length of the
    sleep.
    """
    alarms = control.alarms
    if alarms is None:
        return inf
    now = control.clock.now()
    _notice_sleep(control.clock, alarms, now)
    waits = [_keep(control, alarms, schedule, now) for schedule in _schedules(control.ledger, alarms)]
    return max(0.0, min(waits, default=inf))


def _notice_sleep(clock: Clock, alarms: ScheduleTimers, now: float) -> None:
    offset = now - clock.monotonic()
    if alarms.offset is None or abs(offset - alarms.offset) > ASLEEP_SECONDS:
        alarms.awake_since = now
        alarms.times.clear()
    alarms.offset = offset


def _schedules(ledger: Ledger, alarms: ScheduleTimers) -> list[Schedule]:
    schedules = ledger.snapshot.schedules
    for table in (alarms.times, alarms.watches):
        for gone in table.keys() - schedules.keys():
            del table[gone]
    return list(schedules.values())


def _keep(control: Control, alarms: ScheduleTimers, schedule: Schedule, now: float) -> float:
    if schedule.spec.continuous is not None:
        continuous = schedule.spec.continuous
        return inf if schedule.paused else keep_continuous(control, alarms, schedule, continuous)
    previous, look_at = alarms.times.get(schedule.name, (None, -inf))
    if previous is schedule and now < look_at:
        return look_at - now
    verdict = decide(schedule, now, awake_since=alarms.awake_since, active=_active(control.ledger, schedule))
    if verdict.done is None:
        alarms.times[schedule.name] = (schedule, verdict.look_at if not verdict.message else -inf)
        return verdict.look_at - now
    transaction = control.ledger.begin(control.timeline.now())
    after = _dealt_with(control, transaction, schedule, verdict)
    if after is None:
        return inf
    transaction.put(after)
    control.ledger.stage(transaction)
    return 0.0


def _dealt_with(
    control: Control, transaction: Transaction, schedule: Schedule, verdict: DueDecision
) -> Schedule | None:
    """Return the schedule after its due time was processed. If a run starts, it is added to the transaction.
    The result is None while the schedule's sources are being listed, or while the files of its versions are
    being checked."""
    after = replace(schedule, done=verdict.done, message=verdict.message)
    if verdict.start is None:
        is_later = verdict.done is not None and verdict.done >= (schedule.done or schedule.since)
        # a due time counts as skipped only if it is later, because the clock may have been set back
        return replace(after, skipped=schedule.skipped + is_later)
    try:
        pipeline = scheduled_pipeline(control.ledger, schedule, verdict.start)
        key = f"schedule {schedule.name} at {verdict.start}"
        listings = listed(
            control.reads,
            key,
            pipeline.jobs,
            pipeline.folder,
        )
        if listings is None:
            return None
        return start_scheduled(control, transaction, after, verdict.start, pipeline, listings)
    except StorageError:  # the store failed, not the pipeline: the next tick tries again
        raise
    except GridmillError as error:
        return replace(after, message=f"{error} {error.hint}".strip(), skipped=schedule.skipped + 1)
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        error_text = defect(control.problems, f"schedule {schedule.name}", error)
        return replace(after, message=str(error_text), skipped=schedule.skipped + 1)
