"""This module has the use cases of sinks: alterations and load tasks.

Alterations are stored beside the declaration of the sink and applied when a run begins. Load tasks are
computed from declarations, versions, runs and schedules.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.state import ScheduleTimers, Timeline
from gridmill.control.steps.due_runs import schedule_view
from gridmill.control.steps.run_lifecycle import alterations_of
from gridmill.control.usecases.base import UseCases
from gridmill.control.usecases.preview import check_change
from gridmill.domain.amounts import show_count
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.frozen import replace
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.retention import RUNS_KEPT
from gridmill.domain.run import JobRun, Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.sink import SinkSpec
from gridmill.domain.sink_overrides import Alterations, SinkChange, altered, with_change
from gridmill.domain.sink_status import LoadTask, lag_of, position_of, rejects_of, shifted_of, source_of
from gridmill.domain.source import Source
from gridmill.domain.states import JobState
from gridmill.errors import NotFoundError
from gridmill.ports.clock import Clock
from gridmill.ports.pages import PAGE_ITEMS, Names, Page, cut_page, page_request
from gridmill.ports.store import key_of
from gridmill.scheduler.explain import why_waiting


def tasks_of(
    catalog: Catalog,
    timeline: Timeline,
    timers: ScheduleTimers | None,
    name: str,
    spec: SinkSpec | None,
    newest: JobRun | None,
) -> Iterator[LoadTask]:
    """Return the load tasks of one sink. `newest` is the job of the sink in the newest run that contains
    it."""
    alterations = alterations_of(catalog.ledger, name).changes
    found = catalog.newest_artifact(name)
    version = found if found is not None and not found.removed else None
    task = LoadTask(sink=name, source="", alterations=len(alterations))
    if newest is not None:
        task = replace(
            task,
            state=newest.state,
            checked=newest.ended,
            run=newest.run_id,
            why=_why(catalog.ledger, timeline, newest),
        )
    task = _scheduled(catalog.ledger, timeline.clock, timers, task)
    if version is not None:
        task = replace(
            task,
            version=version.id,
            loaded=version.created,
            rows_added=int(version.output.details.get("rows_added") or 0),
            drifted=tuple(sorted(shifted_of(version))),
        )
    source = altered(spec, alterations).source if spec is not None else None
    for written in _sources(source, version):
        counted = _with_counts(
            timeline.clock, replace(task, source=written), version, files=_has_files(source)
        )
        whole = source is not None and source.sql is not None and source.sql.cursor is None
        yield replace(counted, position="all of it") if whole and version is not None else counted


def _why(ledger: Ledger, timeline: Timeline, job: JobRun) -> str:
    if job.state in (JobState.BLOCKED, JobState.WAITING) and job.id in ledger.snapshot.job_runs:
        return why_waiting(ledger.snapshot, job.id, timeline.now())
    return job.message if job.state in (JobState.FAILED, JobState.STOPPED, JobState.SKIPPED) else ""


def _sources(source: Source | None, version: Artifact | None) -> tuple[str, ...]:
    if source is not None and _has_files(source):
        return source.paths
    if source is not None:
        return (source.name,)
    source_names = tuple(_counts(version)) if version is not None else ()
    return source_names or ((source_of(version),) if version is not None else ())


def _has_files(source: Source | None) -> bool:
    return source is None or (source.sql is None and source.stream is None)


def _counts(version: Artifact) -> Mapping[str, Mapping[str, Any]]:
    details: Mapping[str, Mapping[str, Any]] = version.output.details.get("sources") or {}
    return details


def _with_counts(clock: Clock, task: LoadTask, version: Artifact | None, *, files: bool) -> LoadTask:
    """Return the load task with the counts of its source if the version counts its sources separately
    (files), otherwise with the counts of the whole version."""
    if version is None:
        return task
    known = _counts(version) if files else {}
    if known:
        counts = known.get(task.source, {})
        position = show_count(counts.get("files", 0), "file")
        return replace(task, rows=counts.get("rows", 0), rejects=counts.get("rejects", 0), position=position)
    return replace(
        task,
        rows=version.output.rows or 0,
        rejects=rejects_of(version).get("rows", 0),
        position=position_of(version, files=files),
        lag_seconds=lag_of(version, clock.now()),
    )


def _scheduled(ledger: Ledger, clock: Clock, timers: ScheduleTimers | None, task: LoadTask) -> LoadTask:
    """Return the load task with the next due time, which is the earlier due time of the sink's own schedule
    and the schedule of its pipeline."""
    schedules = ledger.snapshot.schedules
    candidates = [schedules[name] for name in (task.sink, task.sink.partition("/")[0]) if name in schedules]
    if not candidates:
        return task
    views = [schedule_view(ledger, clock, timers, schedule) for schedule in candidates]
    times = [
        view.next[0] if view.next else _next_look(clock, timers, schedule)
        for view, schedule in zip(views, candidates, strict=True)
    ]
    return replace(
        task,
        schedule="; ".join(schedule.spec.text for schedule in candidates),
        following=min((time for time in times if time is not None), default=None),
        why=task.why or views[0].why,
    )


def _next_look(clock: Clock, timers: ScheduleTimers | None, schedule: Schedule) -> float | None:
    """Return the time at which a continuous schedule checks its sources again."""
    watch = timers.watches.get(schedule.name) if timers is not None else None
    if watch is None or schedule.paused:
        return None
    return clock.now() + max(0.0, watch.look_at - clock.monotonic())


class AlterationUseCases(UseCases):
    """The use cases of alterations and load tasks."""

    def alterations(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alterations]:
        """Return the alterations of one sink or of all sinks."""
        request = page_request(tuple, "alterations", limit, cursor, name)
        return self._page_by_key(
            Alterations, request, selects=lambda one: bool(one.changes) and name in (None, one.name)
        )

    def alter_sink(self, name: str, change: SinkChange) -> Alterations:
        """Add or remove a part of a sink. Raises InputError for an invalid change, and for a column that
        does not exist."""
        spec = self._declared(name)
        with self._node.changing() as transaction:
            before = alterations_of(self._ledger, name)
            # read into memory first, because only a record in memory can be replaced
            if before.changed:
                self._ledger.fetch(Alterations, name)
            changes = with_change(spec, before.changes, change)
            after_all = altered(spec, changes)
            after_all.check()
            after_all.source.check()
            check_change(self._control.catalog, name, after_all, change)
            after = replace(before, changes=changes, changed=transaction.now)
            transaction.put(after)
        return after

    def _declared(self, name: str) -> SinkSpec:
        """Return the stored declaration of the sink, otherwise the declaration of its last run."""
        pipeline, _, job = name.partition("/")
        record = self._ledger.store.get(Pipeline, pipeline)
        jobs = record.noun.jobs if record is not None and isinstance(record.noun, Pipeline) else ()
        result = next((one.sink for one in jobs if one.name == job), None) or self._ran(pipeline, job)
        if result is None:
            raise NotFoundError(
                f"there is no sink {name!r}",
                hint="Name the sink as PIPELINE/JOB. Run or apply its pipeline first.",
            )
        return result

    def _ran(self, pipeline: str, job: str) -> SinkSpec | None:
        newest = self._newest(pipeline, job)
        return newest.job.sink if newest is not None else None

    def _newest(self, pipeline: str, job: str) -> JobRun | None:
        """Return the job in the newest run that contains it."""
        store = self._ledger.store
        for run in store.list(Run, parent=pipeline, newest_first=True, limit=RUNS_KEPT):
            for record in store.list(JobRun, parent=key_of(run.noun)):
                if isinstance(record.noun, JobRun) and record.noun.job.name == job:
                    return record.noun
        return None

    def load_tasks(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[LoadTask]:
        """Return the load tasks of one sink or of all sinks."""
        request = page_request(tuple, "load_tasks", limit, cursor, name)
        with self._node.lock:
            kept = {pipeline.name: pipeline for pipeline in self._list(Pipeline)}
            declared = {f"{one.name}/{job.name}" for one in kept.values() for job in one.jobs if job.sink}
            loaded = {one.name for one in self._list(Artifact, parent=name) if one.kind == ArtifactKind.SINK}
            names = sorted(one for one in declared | loaded if name in (None, one))
            if name is not None and not any(task for one in names for task in self._tasks(one, kept)):
                raise NotFoundError(
                    f"there is no sink {name!r}", hint="`gridmill list sinks` shows the loaded sinks."
                )
            return cut_page(request, self._tasks_after(names, kept, request.after))

    def _tasks_after(
        self, names: Sequence[str], kept: Mapping[str, Pipeline], after: Names | None
    ) -> Iterator[tuple[Names, LoadTask]]:
        """Return the load tasks after a position, with their keys: the sinks by name, and the tasks of each
        sink by source."""
        for name in names:
            if after is None or name >= after[0]:
                by_key = {(name, task.source): task for task in self._tasks(name, kept)}
                yield from ((key, by_key[key]) for key in sorted(by_key) if after is None or key > after)

    def _tasks(self, name: str, kept: Mapping[str, Pipeline]) -> Iterator[LoadTask]:
        pipeline, _, job = name.partition("/")
        newest = self._newest(pipeline, job)
        jobs = kept[pipeline].jobs if pipeline in kept else ()
        declared = next((one.sink for one in jobs if one.name == job), None)
        spec = declared or (newest.job.sink if newest is not None else None)
        control = self._control
        return tasks_of(control.catalog, control.timeline, control.alarms, name, spec, newest)
