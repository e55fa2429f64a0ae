"""Use cases of altering sinks: kept beside the declaration, applied when a run begins."""

from dataclasses import replace

from gridmill.control.altered import alterations_of
from gridmill.control.cases import Cases
from gridmill.errors import NotFoundError
from gridmill.model.alteration import Alterations, Change, altered, with_change
from gridmill.model.pipeline import Pipeline
from gridmill.model.retention import RUNS_KEPT
from gridmill.model.run import JobRun, Run
from gridmill.model.sink import SinkSpec
from gridmill.ports.keys import key_of


class AlterationCases(Cases):
    """What may be asked about alterations."""

    def alterations(self, *, name: str | None = None) -> tuple[Alterations, ...]:
        """Of one sink or of all."""
        return tuple(one for one in self._list(Alterations) if one.changes and name in (None, one.name))

    def alter_sink(self, name: str, change: Change) -> Alterations:
        """Add or remove a part."""
        spec = self._declared(name)
        with self._node.changing() as transaction:
            before = alterations_of(self._control, name)
            if before.changed:  # kept in the store, and read so that it can be replaced
                self._ledger.fetch(Alterations, name)
            changes = with_change(spec, before.changes, change)
            altered(spec, changes).check()
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
        store = self._ledger.store
        for run in store.list(Run, parent=pipeline, newest_first=True, limit=RUNS_KEPT):
            for record in store.list(JobRun, parent=key_of(run.noun)):
                if isinstance(record.noun, JobRun) and record.noun.job.name == job:
                    return record.noun.job.sink
        return None
