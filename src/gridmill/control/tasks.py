"""The load tasks of sinks, put together from declarations, versions, runs and schedules."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gridmill.control.altered import alterations_of
from gridmill.control.schedules import schedule_view
from gridmill.control.state import Control
from gridmill.model.alteration import altered
from gridmill.model.amounts import show_count
from gridmill.model.artifact import Artifact
from gridmill.model.loaded import lag_of, position_of, rejects_of, shifted_of, source_of
from gridmill.model.run import JobRun
from gridmill.model.schedule import Schedule
from gridmill.model.sink import SinkSpec
from gridmill.model.source import Source
from gridmill.model.state import JobState
from gridmill.model.task import LoadTask
from gridmill.planning.why import why_waiting


def tasks_of(control: Control, name: str, spec: SinkSpec | None, newest: JobRun | None) -> Iterator[LoadTask]:
    """Those of one sink; `newest` is its job in the newest run."""
    alterations = alterations_of(control, name).changes
    found = control.newest_artifact(name)
    version = found if found is not None and not found.removed else None
    task = LoadTask(sink=name, source="", alterations=len(alterations))
    if newest is not None:
        task = replace(
            task,
            state=newest.state,
            looked=newest.ended,
            run=newest.run_id,
            why=_why(control, newest),
        )
    task = _scheduled(control, task)
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
        told = _with_counts(control, replace(task, source=written), version, files=_has_files(source))
        whole = source is not None and source.sql is not None and source.sql.cursor is None
        yield replace(told, position="all of it") if whole and version is not None else told


def _why(control: Control, job: JobRun) -> str:
    if job.state in (JobState.BLOCKED, JobState.WAITING) and job.id in control.ledger.snapshot.job_runs:
        return why_waiting(control.ledger.snapshot, job.id, control.now())
    return job.message if job.state in (JobState.FAILED, JobState.STOPPED, JobState.SKIPPED) else ""


def _sources(source: Source | None, version: Artifact | None) -> tuple[str, ...]:
    if source is not None and _has_files(source):
        return source.paths
    if source is not None:
        return (source.name,)
    known = tuple(_counts(version)) if version is not None else ()
    return known or ((source_of(version),) if version is not None else ())


def _has_files(source: Source | None) -> bool:
    return source is None or (source.sql is None and source.stream is None)


def _counts(version: Artifact) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = version.output.details.get("sources") or {}
    return found


def _with_counts(control: Control, task: LoadTask, version: Artifact | None, *, files: bool) -> LoadTask:
    """Of files, where the version tells sources apart, what came from this one; else all."""
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
        lag_seconds=lag_of(version, control.clock.now()),
    )


def _scheduled(control: Control, task: LoadTask) -> LoadTask:
    """By its own schedule, that of its pipeline, or both: whichever comes first."""
    schedules = control.ledger.snapshot.schedules
    known = [schedules[name] for name in (task.sink, task.sink.partition("/")[0]) if name in schedules]
    if not known:
        return task
    views = [schedule_view(control, schedule) for schedule in known]
    looks = [
        view.next[0] if view.next else _next_look(control, schedule)
        for view, schedule in zip(views, known, strict=True)
    ]
    return replace(
        task,
        schedule="; ".join(schedule.spec.text for schedule in known),
        following=min((look for look in looks if look is not None), default=None),
        why=task.why or views[0].why,
    )


def _next_look(control: Control, schedule: Schedule) -> float | None:
    """When a continuous schedule looks again."""
    watch = control.alarms.watches.get(schedule.name) if control.alarms else None
    if watch is None or schedule.paused:
        return None
    return control.clock.now() + max(0.0, watch.look_at - control.clock.monotonic())
