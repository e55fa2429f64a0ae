"""The alterations and load tasks of a grid in memory."""

from dataclasses import dataclass, field, replace

from gridmill.errors import NotFoundError
from gridmill.model.alteration import Alterations, Change, with_change
from gridmill.model.pipeline import Pipeline
from gridmill.model.task import LoadTask
from gridmill.testing.versions import FakeVersions


@dataclass(slots=True)
class FakeAlterations(FakeVersions):
    """Implements `gridmill.ports.alterations.Altering` with dicts."""

    _pipelines: dict[str, Pipeline] = field(default_factory=dict)
    _alterations: dict[str, Alterations] = field(default_factory=dict)

    def alterations(self, *, name: str | None = None) -> tuple[Alterations, ...]:
        """See Altering."""
        return tuple(one for one in self._alterations.values() if one.changes and name in (None, one.name))

    def alter_sink(self, name: str, change: Change) -> Alterations:
        """See Altering."""
        pipeline = self._pipelines.get(name.partition("/")[0])
        jobs = pipeline.jobs if pipeline else ()
        spec = next((job.sink for job in jobs if job.name == name.partition("/")[2]), None)
        if spec is None:
            raise NotFoundError(f"there is no sink {name!r}")
        before = self._alterations.get(name, Alterations(name=name))
        after = replace(before, changes=with_change(spec, before.changes, change), changed=1_700_000_000.0)
        self._alterations[name] = after
        return after

    def load_tasks(self, *, name: str | None = None) -> tuple[LoadTask, ...]:
        """See Altering: what is declared, as nothing is ever loaded here."""
        declared = {
            f"{one.name}/{job.name}": job.sink for one in self._pipelines.values() for job in one.jobs
        }
        sinks = {key: spec for key, spec in declared.items() if spec is not None and name in (None, key)}
        if name is not None and not sinks:
            raise NotFoundError(f"there is no sink {name!r}")
        return tuple(LoadTask(sink=key, source=spec.source.name) for key, spec in sinks.items())
