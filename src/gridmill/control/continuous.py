"""The part of the schedules' tick for continuous ones: look for new files, close blocks, start their runs."""

from collections.abc import Iterator

from gridmill.control.defects import defect
from gridmill.control.scheduled import scheduled_pipeline, start_scheduled
from gridmill.control.state import Alarms, Control, Watch
from gridmill.control.unchanged import unchanged_jobs
from gridmill.errors import GridmillError, StorageError
from gridmill.model.pipeline import Pipeline
from gridmill.model.schedule import Continuous, Schedule
from gridmill.planning.schedules import closes_in, room_for_block
from gridmill.ports.storage import FileStat


def keep_continuous(control: Control, alarms: Alarms, schedule: Schedule, continuous: Continuous) -> float:
    """Start a run if a block is closed and there is room for it; seconds until the next look."""
    watch = alarms.watches.setdefault(schedule.name, Watch())
    now = control.clock.monotonic()
    if now < watch.look_at:
        return watch.look_at - now
    wait = continuous.check_seconds
    try:
        watch.message = _in_the_way(control, schedule, continuous)
        if not watch.message:
            wait = _look(control, watch, schedule, continuous, now)
    except StorageError:  # the store, not the pipeline: tried again
        raise
    except GridmillError as error:
        watch.message = f"{error} {error.hint}".strip()
    except Exception as error:  # noqa: BLE001  tried again for ever, it would hold up every run
        watch.message = str(defect(control, f"schedule {schedule.name}", error))
    watch.look_at = now + wait
    return wait


def _in_the_way(control: Control, schedule: Schedule, continuous: Continuous) -> str:
    snapshot = control.ledger.snapshot
    active = [run for run in snapshot.runs.values() if run.pipeline == schedule.name]
    jobs = (job for run in active for job in snapshot.job_runs_of(run.id))
    return room_for_block(continuous, active, jobs)


def _look(control: Control, watch: Watch, schedule: Schedule, continuous: Continuous, now: float) -> float:
    """Seconds until the next look. A source that only the load can tell of is new at each."""
    pipeline = scheduled_pipeline(control, schedule)
    there = frozenset(_files(control, pipeline))
    new = there - watch.seen
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
    if unchanged_jobs(control, pipeline) >= {job.name for job in pipeline.jobs if job.sink is not None}:
        watch.seen, watch.waiting_since = there, None  # as seen before a restart
        return continuous.check_seconds
    _start(control, schedule)
    watch.seen, watch.waiting_since = there, None
    return continuous.check_seconds


def _files(control: Control, pipeline: Pipeline) -> Iterator[FileStat]:
    for job in pipeline.jobs:
        if job.sink is not None and not job.sink.source.live:
            yield from control.storage.describe_source(job.sink.source, pipeline.folder)


def _start(control: Control, schedule: Schedule) -> None:
    transaction = control.begin()
    transaction.put(start_scheduled(control, transaction, schedule, control.clock.now()))
    control.ledger.commit(transaction)
