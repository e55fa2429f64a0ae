"""Use cases of sinks: alterations, kept beside the declaration and applied when a run begins; load tasks."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gridmill.control.altered import alterations_of
from gridmill.control.cases import Cases
from gridmill.control.foresight import check_change
from gridmill.control.tasks import tasks_of
from gridmill.errors import NotFoundError
from gridmill.model.alteration import Alterations, Change, altered, with_change
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.pipeline import Pipeline
from gridmill.model.retention import RUNS_KEPT
from gridmill.model.run import JobRun, Run
from gridmill.model.sink import SinkSpec
from gridmill.model.task import LoadTask
from gridmill.ports.keys import key_of


class AlterationCases(Cases):
    """What may be asked about alterations and load tasks."""

    def alterations(self, *, name: str | None = None) -> tuple[Alterations, ...]:
        """Of one sink or of all."""
        return tuple(one for one in self._list(Alterations) if one.changes and name in (None, one.name))

    def alter_sink(self, name: str, change: Change) -> Alterations:
        """Add or remove a part. Raises InputError for what cannot be, also for a column that is not there."""
        spec = self._declared(name)
        with self._node.changing() as transaction:
            before = alterations_of(self._control, name)
            if before.changed:  # kept in the store, and read so that it can be replaced
                self._ledger.fetch(Alterations, name)
            changes = with_change(spec, before.changes, change)
            after_all = altered(spec, changes)
            after_all.check()
            after_all.source.check()
            check_change(self._control, name, after_all, change)
            after = replace(before, changes=changes, changed=transaction.now)
            transaction.put(after)
        return after

    def _declared(self, name: str) -> SinkSpec:
        """As it is kept, else as it ran last."""
        pipeline, _, job = name.partition("/")
        record = self._ledger.store.get(Pipeline, pipeline)
        jobs = record.noun.jobs if record is not None and isinstance(record.noun, Pipeline) else ()
        found = next((one.sink for one in jobs if one.name == job), None) or self._ran(pipeline, job)
        if found is None:
            raise NotFoundError(
                f"there is no sink {name!r}",
                hint="It is called PIPELINE/JOB; run the pipeline or apply it first.",
            )
        return found

    def _ran(self, pipeline: str, job: str) -> SinkSpec | None:
        found = self._newest(pipeline, job)
        return found.job.sink if found is not None else None

    def _newest(self, pipeline: str, job: str) -> JobRun | None:
        """The job in the newest run that has it."""
        store = self._ledger.store
        for run in store.list(Run, parent=pipeline, newest_first=True, limit=RUNS_KEPT):
            for record in store.list(JobRun, parent=key_of(run.noun)):
                if isinstance(record.noun, JobRun) and record.noun.job.name == job:
                    return record.noun
        return None

    def load_tasks(self, *, name: str | None = None) -> tuple[LoadTask, ...]:
        """Of one sink or of all."""
        with self._node.lock:
            kept = {pipeline.name: pipeline for pipeline in self._list(Pipeline)}
            declared = {f"{one.name}/{job.name}" for one in kept.values() for job in one.jobs if job.sink}
            loaded = {one.name for one in self._list(Artifact, parent=name) if one.kind == ArtifactKind.SINK}
            names = sorted(one for one in declared | loaded if name in (None, one))
            found = tuple(task for one in names for task in self._tasks(one, kept))
        if name is not None and not found:
            raise NotFoundError(
                f"there is no sink {name!r}", hint="`gridmill list sinks` shows those that were loaded."
            )
        return found

    def _tasks(self, name: str, kept: Mapping[str, Pipeline]) -> Iterator[LoadTask]:
        pipeline, _, job = name.partition("/")
        newest = self._newest(pipeline, job)
        jobs = kept[pipeline].jobs if pipeline in kept else ()
        declared = next((one.sink for one in jobs if one.name == job), None)
        spec = declared or (newest.job.sink if newest is not None else None)
        return tasks_of(self._control, name, spec, newest)
