"""Use cases of declarations that are kept."""

from gridmill.control.begin import check_names, declare_resources, resource_of
from gridmill.control.cases import Cases
from gridmill.errors import ConflictError, NotFoundError
from gridmill.model.pipeline import Pipeline
from gridmill.planning.graph import order


class PipelineCases(Cases):
    """What may be asked about kept pipelines."""

    def apply(self, pipeline: Pipeline) -> Pipeline:
        """Keep the declaration and its resources."""
        with self._node.changing() as transaction:
            order(pipeline)
            check_names(pipeline)
            resources = declare_resources(self._control, transaction, pipeline)
            for job in pipeline.jobs:
                resource_of(job, pipeline.name, resources)
            self._know(Pipeline, pipeline.name)
            transaction.put(pipeline)
        return pipeline

    def _know(self, kind: type[object], key: str) -> None:
        """Read a record that is not kept in memory, so that it can be replaced."""
        if self._ledger.store.get(kind, key) is not None:
            self._ledger.fetch(kind, key)

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Kept declarations, by name."""
        return tuple(sorted(self._list(Pipeline), key=lambda pipeline: pipeline.name))

    def pipeline(self, name: str) -> Pipeline:
        """A kept declaration."""
        record = self._ledger.store.get(Pipeline, name)
        if record is None or not isinstance(record.noun, Pipeline):
            raise NotFoundError(
                f"there is no pipeline {name!r}", hint="`gridmill list pipelines` shows them."
            )
        return record.noun

    def remove_pipeline(self, name: str) -> None:
        """Forget a declaration that no active run uses."""
        with self._node.changing() as transaction:
            self.pipeline(name)
            active = [run for run in self._ledger.snapshot.runs.values() if run.pipeline == name]
            if active:
                raise ConflictError(f"run {active[0].id} of pipeline {name!r} is active")
            self._ledger.fetch(Pipeline, name)
            transaction.delete(Pipeline, name)
