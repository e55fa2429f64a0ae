"""This module has the use cases of housekeeping: show the use of disk space, and delete data that is not
needed."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gridmill.control.ledger import Ledger
from gridmill.control.removable import (
    UnusedRecords,
    delete_records,
    evictable,
    old_history,
    old_runs,
    old_versions,
    oldest_for,
    read_records,
    unused_files,
    unused_logs,
)
from gridmill.control.steps.problems import DISK
from gridmill.control.usecases.artifacts import VersionUseCases
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.retention import DAY_SECONDS
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import FINISHED_RUNS
from gridmill.domain.usage import HISTORY_DAYS, DiskSpace, DiskUsage, ReclaimableItem, StoreSpace
from gridmill.domain.views import RunRemovalPreview
from gridmill.errors import ConflictError, NotFoundError
from gridmill.ports.disk import DiskArea, DiskItem
from gridmill.ports.store import Record

_RUNS_AT_ONCE = 100
EVICTION_SECONDS = 5.0
"""While a disk is nearly full, unused items are searched for at this interval in seconds. The interval is
long because each search reads the names of all files."""
_OF_ATTEMPTS = (DiskArea.OUTPUT, DiskArea.MANIFEST, DiskArea.HANDED, DiskArea.ATTEMPT)
"""The areas in which the names of items are ids of attempts, or begin with such an id."""


class DiskUseCases(VersionUseCases):
    """The use cases of disk space."""

    def usage(self) -> tuple[DiskUsage, ...]:
        """Return the use of disk space: versions, records, folders of pods, caches."""
        things = self._control.home_folders.items()
        records = read_records(self._ledger)
        owners: dict[str, list[str]] = {}
        for artifact in records.artifacts:
            if not artifact.removed:
                owners.setdefault(artifact.output.uri, []).append(artifact.id)
        logs = self._ledger.logs.sizes()
        return (
            *(_usage(thing, owners) for thing in things),
            *(DiskUsage(kind="log", name=run_id, size_bytes=size) for run_id, size in logs.items()),
        )

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """Delete data that is not needed, and return what was deleted. The call may be repeated, and may
        be interrupted at any time."""
        control = self._control
        store_before = self._ledger.store.space()
        things = (
            control.home_folders.items()
        )  # listed before the records are read, so that files made in between do not count as unused
        with self._node.lock:
            now = control.timeline.now()
            before = now - days * DAY_SECONDS
            records = read_records(control.ledger)
            versions = old_versions(control.catalog, records, now)
            runs = tuple(old_runs(control.ledger, records, before))
            logs = dict(unused_logs(control.ledger, records, before))
            unused = tuple(unused_files(control.catalog, records, things, now, before))
            if not dry_run:
                for _, thing in unused:
                    control.home_folders.move_to_trash(thing)
        lying = frozenset(thing.name for thing in things if thing.area == DiskArea.OUTPUT)
        history = old_history(self._ledger.store, records, before, lying)
        if not dry_run:
            gone = [thing for _, thing in unused]
            self._take_away(gone, [version.id for version in versions], runs)
            self._ledger.logs.delete([*logs])
            delete_records(self._ledger.store, history, goes_on=lambda: not self._node.ending)
        return (
            *self._release_store(store_before, dry_run=dry_run),
            *(_old(version) for version in versions),
            *(
                ReclaimableItem(kind="events", name=run, why=f"the run ended over {days:g} days ago")
                for run in runs
            ),
            *(
                ReclaimableItem(
                    kind="log", name=run, why=f"the run ended over {days:g} days ago", size_bytes=size
                )
                for run, size in logs.items()
            ),
            *history.reclaimable_items(days),
            *(waste for waste, _ in unused),
        )

    def _release_store(self, before: StoreSpace, *, dry_run: bool) -> Iterator[ReclaimableItem]:
        """Return items for the free space of the database: the space that it returns to the file system, and
        the space that it can only use again. In a dry run, the space of the records that `clean` would
        delete is not included."""
        store = self._ledger.store
        after = before if dry_run else store.release_space(lambda: not self._node.ending)
        freed = (
            before.free_bytes if dry_run and not before.note else max(0, before.size_bytes - after.size_bytes)
        )
        if freed:
            why = "free pages of the database"
            yield ReclaimableItem(kind="store", name="space", why=why, size_bytes=freed)
        if after.note and after.free_bytes:
            why = f"{show_bytes(after.free_bytes)} of the database are unused: {after.note}"
            yield ReclaimableItem(kind="store", name="reusable", why=why)

    def watch_disk(self) -> bool:
        """Check the free space of home and root. While a disk is nearly full, no attempt starts and unused
        items are evicted. The method returns whether a disk is nearly full."""
        control = self._control
        now = control.clock.monotonic()
        if self._note_spaces() and now >= control.disk.next_eviction:
            control.disk.next_eviction = now + EVICTION_SECONDS
            self._evict(control.disk.spaces)
            self._note_spaces()
        return bool(control.disk.shortage)

    def _note_spaces(self) -> bool:
        control, spaces = self._control, self._control.home_folders.spaces()
        before = control.disk.shortage
        with self._node.lock:
            control.disk.spaces = spaces
            shortage = control.disk.shortage
            if shortage:
                problem = f"{shortage}; no attempt starts until there is space"
                if DISK not in control.problems.lasting:
                    control.problems.warn(f"{problem}. `gridmill clean` deletes unused data")
                control.problems.lasting[DISK] = problem
            else:
                control.problems.lasting.pop(DISK, None)
        if before and not shortage:
            control.problems.warn("the disk has space again; jobs continue")
            self._node.wake_now()
        return bool(shortage)

    def _evict(self, spaces: Sequence[DiskSpace]) -> None:
        """Delete unused items, the oldest first, as many as the disks need. The deleted items are counted
        and logged."""
        control = self._control
        things = (
            control.home_folders.items()
        )  # listed before the records are read, so that files made in between do not count as unused
        with self._node.lock:
            records, now = read_records(control.ledger), control.timeline.now()
            unused = [thing for _, thing in evictable(control.catalog, records, things, now)]
            chosen = oldest_for(spaces, unused)
            for thing in chosen:
                control.home_folders.move_to_trash(thing)
        for thing in chosen:
            control.home_folders.delete(thing)
        if chosen:
            size_bytes = sum(thing.size_bytes for thing in chosen)
            control.disk.evicted_bytes += size_bytes
            control.disk.evicted_items += len(chosen)
            what = f"{show_count(len(chosen), 'item')} that nothing uses ({show_bytes(size_bytes)})"
            control.problems.warn(f"a disk is nearly full: {what} deleted")

    def remove_run(self, run_id: str, *, dry_run: bool = False) -> RunRemovalPreview:
        """Delete a finished run and its files. The versions that the run made are kept."""
        control, store = self._control, self._ledger.store
        things = control.home_folders.items()
        with self._node.lock:
            run = _removable(control.ledger, run_id)
            gone = [thing for thing in things if _is_of(thing, run_id)]
            records = read_records(control.ledger)
            # no file is too young to be deleted, because all attempts of the run have ended
            unused = unused_files(control.catalog, records, gone, math.inf, math.inf)
            left = [thing for _, thing in unused]
            preview = RunRemovalPreview(
                run=run_id,
                jobs=sum(_is_whole(record.noun) for record in store.list(JobRun, parent=run_id)),
                attempts=len(store.list(Attempt, parent=run_id)),
                size_bytes=sum(thing.size_bytes for thing in left)
                + control.ledger.logs.sizes().get(run_id, 0),
                versions=tuple(
                    artifact.id
                    for artifact in records.artifacts
                    if artifact.run_id == run_id and not artifact.removed
                ),
            )
            if dry_run:
                return preview
            for thing in left:
                control.home_folders.move_to_trash(thing)
            delete_records(store, UnusedRecords(runs=(run,)))
        store.drop_events([run_id])
        control.ledger.logs.delete([run_id])
        for thing in left:
            control.home_folders.delete(thing)
        return preview

    def _take_away(self, things: list[DiskItem], versions: list[str], runs: tuple[str, ...]) -> None:
        for version in versions:
            # skipped if a run has begun to use the version meanwhile, or if an alias names it
            with suppress(ConflictError):
                self._remove(version, of_table=True)
        for first in range(0, len(runs), _RUNS_AT_ONCE):
            self._ledger.store.drop_events(runs[first : first + _RUNS_AT_ONCE])
        for thing in things:
            self._control.home_folders.delete(thing)


def _removable(ledger: Ledger, run_id: str) -> Record:
    """Return the record of a run that may be removed. Raises NotFoundError, ConflictError."""
    record = ledger.store.get(Run, run_id)
    if record is None or not isinstance(record.noun, Run):
        raise NotFoundError(f"there is no run {run_id!r}", hint="`gridmill list runs` shows them.")
    if record.noun.state not in FINISHED_RUNS:
        raise ConflictError(
            f"run {run_id} is {record.noun.state}", hint=f"Wait for its end, or `gridmill stop {run_id}`."
        )
    if record.noun.chunk:
        raise ConflictError(
            f"run {run_id} belongs to the backfill {record.noun.pipeline}, which would repeat its chunk",
            hint="Stop the backfill first. `gridmill clean` keeps such runs too.",
        )
    return record


def _is_whole(noun: object) -> bool:
    return isinstance(noun, JobRun) and noun.part is None


def _is_of(thing: DiskItem, run_id: str) -> bool:
    """Return whether the item is the report of the run, or belongs to an attempt of the run."""
    name = thing.name.rpartition("/")[2].removeprefix(".")
    if thing.area == DiskArea.REPORT:
        return name == f"{run_id}.html"
    return thing.area in _OF_ATTEMPTS and name.startswith(f"{run_id}.")


def _old(version: Artifact) -> ReclaimableItem:
    """Return the item for a version that exceeds the retention of its job, with the number of bytes that its
    removal frees. For a version of a sink, the size is 0, because its files belong to the table, and a later
    load deletes the files that no version needs."""
    size = 0 if version.kind == ArtifactKind.SINK else version.output.size_bytes
    return ReclaimableItem(
        kind="version", name=version.id, why="older than the versions that its job retains", size_bytes=size
    )


def _usage(thing: DiskItem, owners: dict[str, list[str]]) -> DiskUsage:
    if thing.area != DiskArea.OUTPUT:
        return DiskUsage(kind=thing.area.value, name=thing.name, size_bytes=thing.size_bytes)
    kind, pipeline, job, _ = thing.name.split("/", 3)
    versions = owners.get(thing.name, [])
    return DiskUsage(
        kind=kind,
        name=thing.name,
        size_bytes=thing.size_bytes,
        job=f"{pipeline}/{job}",
        version=versions[0] if len(versions) == 1 else "",
    )
