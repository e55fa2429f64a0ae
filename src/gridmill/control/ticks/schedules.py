"""This module has the tick that starts the due runs of schedules, and watches sources for continuous
schedules.

A run and the record of its schedule are written in one commit. For a continuous schedule, the tick checks
for new files, closes blocks and starts their runs.
"""

from collections.abc import Mapping
from math import inf

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import (
    BackgroundReads,
    CodeFiles,
    Control,
    JobMoves,
    Problems,
    RunCreation,
    ScheduleTimers,
    SourceWatch,
    Timeline,
)
from gridmill.control.steps.due_runs import active_runs, has_drift_run_failed, overlapping_run
from gridmill.control.steps.end_attempt import defect
from gridmill.control.steps.reuse_forecast import unchanged_jobs, why_broken
from gridmill.control.steps.run_forecast import run_forecasts
from gridmill.control.steps.run_lifecycle import as_altered, begin_run, chosen
from gridmill.control.steps.source_listing import SourceListing, listed
from gridmill.control.steps.stored_pipelines import with_values
from gridmill.domain.artifact import Artifact
from gridmill.domain.drift import DriftPeriod
from gridmill.domain.due_times import (
    DueDecision,
    closes_in,
    decide,
    decide_drift,
    drift_name,
    due_times,
    room_for_block,
)
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import When
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.schedule import Continuous, DriftTrigger, Schedule
from gridmill.domain.service import Service
from gridmill.errors import GridmillError, PipelineError, StorageError
from gridmill.ports.clock import Clock
from gridmill.ports.storage import FileStat

DRIFT_EVENT = "drift"
"""The type of the event of a run that a drift has started."""
ASLEEP_SECONDS = 60.0
"""If the wall clock moves by this many seconds against the monotonic clock, the machine slept or its clock
was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of the control node's state that schedules need."""

    timers: ScheduleTimers
    timeline: Timeline
    creation: RunCreation
    code: CodeFiles
    reads: BackgroundReads
    problems: Problems
    moves: JobMoves

    @property
    def ledger(self) -> Ledger:
        return self.creation.ledger

    @property
    def clock(self) -> Clock:
        return self.timeline.clock


def keep_schedules(control: Control) -> float:
    """Start the runs that are due. The function returns the seconds until another run may be due. The
    seconds are infinite if only events can make a run due.

    The function uses the wall clock, because due times such as six o'clock refer to it. The clock
    `Control.now` is not used, because after a sleep of the machine it would be late by the length of the
    sleep.
    """
    timers = control.alarms
    if timers is None:
        return inf
    now = control.clock.now()
    _notice_sleep(timers, now, now - control.clock.monotonic())
    schedules = _schedules(control.ledger, timers)
    if not schedules:
        return inf
    parts = _Parts(
        timers=timers,
        timeline=control.timeline,
        creation=control.run_creation,
        code=control.code,
        reads=control.reads,
        problems=control.problems,
        moves=control.job_moves,
    )
    return max(0.0, min(_keep(parts, schedule, now) for schedule in schedules))


def _notice_sleep(timers: ScheduleTimers, now: float, offset: float) -> None:
    if decide_slept(timers.offset, offset):
        timers.awake_since = now
        timers.times.clear()
    timers.offset = offset


def decide_slept(before: float | None, offset: float) -> bool:
    """Decide whether the machine slept, or its clock was set, since the last tick. `offset` is the
    difference between the wall clock and the monotonic clock, in seconds, and `before` is the offset at the
    last tick. At the first tick, `before` is None and the result is true."""
    return before is None or abs(offset - before) > ASLEEP_SECONDS


def _schedules(ledger: Ledger, timers: ScheduleTimers) -> list[Schedule]:
    schedules = ledger.snapshot.schedules
    for table in (timers.times, timers.watches):
        for gone in table.keys() - schedules.keys():
            del table[gone]
    return list(schedules.values())


def _keep(parts: _Parts, schedule: Schedule, now: float) -> float:
    """Start the run of a schedule that is due. The function returns the seconds until the next check."""
    if schedule.spec.continuous is not None:
        return inf if schedule.paused else _keep_continuous(parts, schedule, schedule.spec.continuous)
    if schedule.spec.drift is None:
        return _keep_times(parts, schedule, now)
    wait = _keep_drift(parts, schedule, schedule.spec.drift, now)
    # both could change the record, and only one change fits into a tick
    return wait if wait == 0.0 else min(wait, _keep_times(parts, schedule, now))


def _keep_times(parts: _Parts, schedule: Schedule, now: float) -> float:
    timers = parts.timers
    previous, look_at = timers.times.get(schedule.name, (None, -inf))
    if previous is schedule and now < look_at:
        return look_at - now
    active = overlapping_run(parts.ledger, schedule)
    decision = decide(schedule, now, awake_since=timers.awake_since, active=active)
    if decision.done is None:
        timers.times[schedule.name] = (schedule, decision.look_at if not decision.message else -inf)
        return decision.look_at - now
    transaction = parts.ledger.begin(parts.timeline.now())
    after = _after_due(parts, transaction, schedule, decision)
    if after is None:
        return inf
    transaction.put(after)
    parts.ledger.stage(transaction)
    return 0.0


def _after_due(
    parts: _Parts, transaction: Transaction, schedule: Schedule, decision: DueDecision
) -> Schedule | None:
    """Return the schedule after its due time was processed. If a run starts, it is added to the transaction.
    The result is None while the schedule's sources are being listed, or while the files of its versions are
    being checked."""
    if decision.start is None:
        return decide_passed(schedule, decision)
    after = replace(schedule, done=decision.done, message=decision.message)
    try:
        pipeline = _scheduled_pipeline(parts.ledger, schedule, decision.start)
        key = f"schedule {schedule.name} at {decision.start}"
        listings = listed(parts.reads, key, pipeline.jobs, pipeline.folder)
        if listings is None:
            return None
        return _start(parts, transaction, after, decision.start, pipeline, listings)
    except StorageError:  # the store failed, not the pipeline: the next tick tries again
        raise
    except GridmillError as error:
        return replace(after, message=f"{error} {error.hint}".strip(), skipped=schedule.skipped + 1)
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        error_text = defect(parts.problems, f"schedule {schedule.name}", error)
        return replace(after, message=str(error_text), skipped=schedule.skipped + 1)


def _keep_drift(parts: _Parts, schedule: Schedule, trigger: DriftTrigger, now: float) -> float:
    """Start a run if a service drifts. The function returns the seconds until the next check; 0 if the
    record of the schedule was changed."""
    service = parts.ledger.snapshot.services.get(trigger.service)
    active = overlapping_run(parts.ledger, schedule)
    has_failed = has_drift_run_failed(parts.ledger, schedule)
    decision = decide_drift(schedule, service, now, active=active, has_failed=has_failed)
    if decision is None or decision.start is None or service is None or service.drift is None:
        return inf if decision is None else max(0.001, decision.look_at - now)
    transaction = parts.ledger.begin(parts.timeline.now())
    after = _after_drift(parts, transaction, schedule, service.drift, now)
    if after is None:
        return inf
    if after.runs > schedule.runs:
        _add_drift_event(transaction, service, after)
    transaction.put(after)
    parts.ledger.stage(transaction)
    return 0.0


def _after_drift(
    parts: _Parts, transaction: Transaction, schedule: Schedule, drift: DriftPeriod, now: float
) -> Schedule | None:
    """Return the schedule after a drift was processed. If there is no new data, no run starts."""
    due = replace(schedule, drift_checked=now)
    after = _after_due(parts, transaction, due, DueDecision(start=drift.since, done=schedule.done))
    if after is None or after.unchanged > schedule.unchanged:
        return after
    run = after.last_run if after.runs > schedule.runs else ""
    return replace(after, drift_seen=drift_name(drift), drift_run=run)


def _add_drift_event(transaction: Transaction, service: Service, schedule: Schedule) -> None:
    drift = schedule.drift_seen.partition(" since ")[0]
    message = f"the drift of {drift} in service {service.name} has started this run"
    body = {"what": "schedule", "id": schedule.name, "state": "started", "message": message}
    transaction.events.append(
        Event(time=transaction.now, type=DRIFT_EVENT, run_id=schedule.last_run, body=body)
    )


def decide_passed(schedule: Schedule, decision: DueDecision) -> Schedule:
    """Decide the record of a schedule whose due time passes without a run. The due time counts as skipped
    only if it is later than the last one, because the clock may have been set back."""
    is_later = decision.done is not None and decision.done >= (schedule.done or schedule.since)
    return replace(
        schedule, done=decision.done, message=decision.message, skipped=schedule.skipped + is_later
    )


def _scheduled_pipeline(ledger: Ledger, schedule: Schedule, due: float | None = None) -> Pipeline:
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


def _start(
    parts: _Parts,
    transaction: Transaction,
    schedule: Schedule,
    due: float,
    pipeline: Pipeline,
    listings: Mapping[str, SourceListing],
) -> Schedule | None:
    """Start the run that is due, unless all its jobs would be unchanged. The function returns the schedule,
    changed to contain the result. The function returns None while the files of the versions that would be
    restored are being checked."""
    unchanged = _unchanged(parts, pipeline, listings, scheduled=True)
    broken: str | None = ""
    if decide_restorable(pipeline, unchanged):
        broken = why_broken(parts.reads, unchanged.values(), schedule.name)
        if broken is None:
            return None
        if not broken:
            return decide_unchanged(schedule, unchanged)
    inner = transaction.within()
    run = begin_run(
        parts.creation,
        inner,
        pipeline,
        force=False,
        only=schedule.only,
        due=due,
        forecasts=run_forecasts(parts.moves, pipeline, listings, unchanged),
    )
    transaction.join(inner)
    return replace(schedule, last_run=run.id, runs=schedule.runs + 1, message="")


def _unchanged(
    parts: _Parts, pipeline: Pipeline, listings: Mapping[str, SourceListing], *, scheduled: bool = False
) -> Mapping[str, Artifact]:
    catalog = parts.creation.catalog
    return unchanged_jobs(catalog, parts.code, parts.timeline, pipeline, listings, scheduled=scheduled)


def decide_restorable(pipeline: Pipeline, unchanged: Mapping[str, Artifact]) -> bool:
    """Decide whether no run is needed, if the files of the `unchanged` versions are complete. Jobs that run
    only after failures are not considered."""
    return unchanged.keys() >= {job.name for job in pipeline.jobs if job.when == When.SUCCESS}


_SHOWN = 3


def decide_unchanged(schedule: Schedule, unchanged: Mapping[str, Artifact]) -> Schedule:
    """Decide the record of a schedule whose run is not needed, with the reason."""
    names = [f"`{name}` since {version.id}" for name, version in unchanged.items()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    message = f"there was no new data: no change of {', '.join(names[:_SHOWN])}{more}"
    return replace(schedule, unchanged=schedule.unchanged + 1, message=message)


def _keep_continuous(parts: _Parts, schedule: Schedule, continuous: Continuous) -> float:
    """Start a run if a block of new files is complete, and if the schedule allows one more active run. The
    function returns the seconds until the next check."""
    watch = parts.timers.watches.setdefault(schedule.name, SourceWatch())
    now = parts.clock.monotonic()
    if now < watch.look_at:
        return watch.look_at - now
    wait = continuous.check_seconds
    try:
        watch.message = _blocking_reason(parts.ledger, schedule, continuous)
        if watch.message:
            # dropped, because this listing will be outdated once there is room for another run
            parts.reads.pending.listings.pop(_key(schedule), None)
        else:
            wait = _check_sources(parts, watch, schedule, continuous, now)
    except StorageError:  # the store failed, not the pipeline: the next tick tries again
        raise
    except GridmillError as error:
        watch.message = f"{error} {error.hint}".strip()
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        watch.message = str(defect(parts.problems, f"schedule {schedule.name}", error))
    watch.look_at = now + wait
    return wait or continuous.check_seconds


def _key(schedule: Schedule) -> str:
    return f"schedule {schedule.name}"


def _blocking_reason(ledger: Ledger, schedule: Schedule, continuous: Continuous) -> str:
    active = active_runs(ledger, schedule)
    jobs = (job for run in active for job in ledger.snapshot.job_runs_of(run.id))
    return room_for_block(continuous, active, jobs)


def _check_sources(
    parts: _Parts, watch: SourceWatch, schedule: Schedule, continuous: Continuous, now: float
) -> float:
    """Check the sources for new files, and start a run if a block is closed. The function returns the
    seconds until the next check; 0 while the sources are being listed."""
    pipeline = _scheduled_pipeline(parts.ledger, schedule)
    listings = listed(parts.reads, _key(schedule), pipeline.jobs, pipeline.folder)
    if listings is None:
        return 0.0
    sources = _sources_of(pipeline, listings)
    block = decide_block(continuous, sources, watch.seen, watch.waiting_since, now)
    watch.message, watch.waiting_since = block.message, block.waiting_since
    if not block.is_closed:
        return block.wait_seconds
    if not _start_block(parts, schedule, pipeline, listings):
        return 0.0
    watch.seen, watch.waiting_since = sources.files, None
    return block.wait_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSources:
    """The files in the sources of a pipeline, and a text about files that may still change. If `is_live` is
    true, only the load itself can find out whether a source has new data, so that the source is treated as
    new at each check."""

    files: frozenset[FileStat]
    waiting: str = ""
    is_live: bool = False


def _sources_of(pipeline: Pipeline, listings: Mapping[str, SourceListing]) -> ListedSources:
    """Return the sources of a pipeline. Raises the errors of the listings."""
    return ListedSources(
        files=frozenset(_by_content(file) for one in listings.values() for file in one.files_or_raise()),
        waiting=", ".join(f"{name}: {one.waiting}" for name, one in listings.items() if one.waiting),
        is_live=any(job.sink is not None and job.sink.source.live for job in pipeline.jobs),
    )


def _by_content(file: FileStat) -> FileStat:
    """Return the file. If the hash of its content is known, the times and the inode are left out, so that a
    file with only a new modification time is not treated as new."""
    return replace(file, mtime_ns=0, ctime_ns=0, inode=0) if file.content else file


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDecision:
    """Whether the block of new files is closed now, and the seconds until the next check. `waiting_since` is
    the monotonic time since which new files wait, or None if there are no new files."""

    is_closed: bool
    wait_seconds: float
    message: str
    waiting_since: float | None = None


def decide_block(
    continuous: Continuous,
    sources: ListedSources,
    seen: frozenset[FileStat],
    waiting_since: float | None,
    now: float,
) -> BlockDecision:
    """Decide whether the block of files that are not in `seen` is closed at the monotonic time `now`."""
    new, check_seconds = sources.files - seen, continuous.check_seconds
    if not new and not sources.is_live:
        return BlockDecision(is_closed=False, wait_seconds=check_seconds, message=sources.waiting)
    since = waiting_since if waiting_since is not None else now
    left = closes_in(continuous, len(new), sum(file.size_bytes for file in new), now - since)
    message = f"{len(new)} new files wait for their block to be closed" if left > 0 else sources.waiting
    return BlockDecision(
        is_closed=left <= 0,
        wait_seconds=min(left, check_seconds) if left > 0 else check_seconds,
        message=message,
        waiting_since=since,
    )


def _start_block(
    parts: _Parts, schedule: Schedule, pipeline: Pipeline, listings: Mapping[str, SourceListing]
) -> bool:
    """Start the run of a closed block, unless its data was already loaded before a restart of the control
    node. The function returns False if another check is needed first."""
    sinks = {job.name for job in pipeline.jobs if job.sink is not None}
    if _unchanged(parts, pipeline, listings).keys() >= sinks:
        return True
    transaction = parts.ledger.begin(parts.timeline.now())
    after = _start(parts, transaction, schedule, parts.clock.now(), pipeline, listings)
    if after is None:
        return False
    transaction.put(after)
    parts.ledger.stage(transaction)
    return True
