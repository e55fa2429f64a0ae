"""The part of the schedules' tick for continuous ones: look for new files, close blocks, start their runs."""

from collections.abc import Mapping
from dataclasses import replace

from gridmill.control.defects import defect
from gridmill.control.listings import Listed, listed
from gridmill.control.scheduled import active_runs, scheduled_pipeline, start_scheduled
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
        if watch.message:
            control.listings.pop(_key(schedule), None)  # listed before: it is old by the time there is room
        else:
            wait = _look(control, watch, schedule, continuous, now)
    except StorageError:  # the store, not the pipeline: tried again
        raise
    except GridmillError as error:
        watch.message = f"{error} {error.hint}".strip()
    except Exception as error:  # noqa: BLE001  tried again for ever, it would hold up every run
        watch.message = str(defect(control, f"schedule {schedule.name}", error))
    watch.look_at = now + wait
    return wait or continuous.check_seconds


def _in_the_way(control: Control, schedule: Schedule, continuous: Continuous) -> str:
    active = active_runs(control, schedule)
    jobs = (job for run in active for job in control.ledger.snapshot.job_runs_of(run.id))
    return room_for_block(continuous, active, jobs)


def _look(control: Control, watch: Watch, schedule: Schedule, continuous: Continuous, now: float) -> float:
    """Seconds until the next look; 0 while the sources are being listed. A source that only the load can
    tell of is new at each."""
    pipeline = scheduled_pipeline(control, schedule)
    found = listed(control, _key(schedule), pipeline.jobs, pipeline.folder)
    if found is None:
        return 0.0
    there = frozenset(_as_known(file) for one in found.values() for file in one.there())
    new = there - watch.seen
    watch.message = ", ".join(f"{name}: {one.waiting}" for name, one in found.items() if one.waiting)
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
    as_before = unchanged_jobs(control, pipeline, found).keys() >= sinks  # as seen before a restart
    if not as_before and not _start(control, schedule, pipeline, found):
        return 0.0
    watch.seen, watch.waiting_since = there, None
    return continuous.check_seconds


def _as_known(file: FileStat) -> FileStat:
    """By its content, where that is known: a file that is only touched is not new."""
    return replace(file, mtime_ns=0, ctime_ns=0, inode=0) if file.content else file


def _key(schedule: Schedule) -> str:
    return f"schedule {schedule.name}"


def _start(control: Control, schedule: Schedule, pipeline: Pipeline, listings: Mapping[str, Listed]) -> bool:
    """False where that takes another look."""
    transaction = control.begin()
    now = control.clock.now()
    after = start_scheduled(control, transaction, schedule, now, pipeline, listings)
    if after is None:
        return False
    transaction.put(after)
    control.ledger.commit(transaction)
    return True
