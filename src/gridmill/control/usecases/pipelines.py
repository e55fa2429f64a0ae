"""This module has the use cases of stored pipeline declarations."""

from gridmill.control.ledger import Transaction
from gridmill.control.steps.due_runs import schedule_view
from gridmill.control.steps.pipeline_folders import note_origin
from gridmill.control.steps.run_lifecycle import check_names, declare_resources, resources_used
from gridmill.control.steps.secrets import check_secrets_exist
from gridmill.control.usecases.base import UseCases
from gridmill.domain.due_times import check_spec
from gridmill.domain.frozen import replace
from gridmill.domain.graph import order
from gridmill.domain.naming import did_you_mean
from gridmill.domain.pipeline import Pipeline, with_lines
from gridmill.domain.schedule import Schedule
from gridmill.domain.views import ScheduleView
from gridmill.errors import ConflictError, NotFoundError
from gridmill.ports.pages import PAGE_ITEMS, Page, page_of_views, page_request


class PipelineUseCases(UseCases):
    """The use cases of stored pipelines and their schedules."""

    def apply(self, pipeline: Pipeline, *, adopt: bool = False) -> Pipeline:
        """Store the declaration of a pipeline and its resources."""
        pipeline = replace(pipeline, applied=True)
        with with_lines(pipeline.lines, pipeline.name), self._node.changing() as transaction:
            order(pipeline)
            check_names(pipeline)
            check_secrets_exist(self._ledger, pipeline.jobs)
            note_origin(self._ledger, self._control.storage, transaction, pipeline, adopt=adopt)
            resources = declare_resources(self._ledger, transaction, pipeline)
            resources_used(self._ledger, pipeline, resources)
            # read into memory first, because only a record in memory can be replaced
            self._ledger.look_up(Pipeline, pipeline.name)
            transaction.put(pipeline)
            self._put_schedules(transaction, pipeline)
        return pipeline

    def _put_schedules(self, transaction: Transaction, pipeline: Pipeline) -> None:
        """Store the schedules of a pipeline as declared. If the declaration of a schedule has not changed,
        the schedule keeps its state, paused or not."""
        existing = self._schedules_of(pipeline.name)
        for gone in existing.keys() - pipeline.schedules.keys():
            transaction.delete(Schedule, gone)
        for name, spec in pipeline.schedules.items():
            check_spec(spec)
            if name not in existing or existing[name].spec != spec:
                transaction.put(Schedule(name=name, spec=spec, since=self._control.clock.now()))

    def _schedules_of(self, pipeline: str) -> dict[str, Schedule]:
        schedules = self._ledger.snapshot.schedules.items()
        return {name: schedule for name, schedule in schedules if schedule.pipeline == pipeline}

    def pipelines(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Pipeline]:
        """Return the declarations of pipelines that were applied, or of their last runs, by name."""
        return self._page_by_key(Pipeline, page_request(tuple, "pipelines", limit, cursor))

    def pipeline(self, name: str) -> Pipeline:
        """Return the declaration of one pipeline."""
        record = self._ledger.store.get(Pipeline, name)
        if record is None or not isinstance(record.noun, Pipeline):
            meant = did_you_mean(name, (one.name for one in self._list(Pipeline)))
            raise NotFoundError(
                f"there is no pipeline {name!r}{meant}", hint="`gridmill list pipelines` shows them."
            )
        return record.noun

    def remove_pipeline(self, name: str) -> None:
        """Delete a declaration that no active run uses."""
        with self._node.changing() as transaction:
            self.pipeline(name)
            active = [run for run in self._ledger.snapshot.runs.values() if run.pipeline == name]
            if active:
                raise ConflictError(f"run {active[0].id} of pipeline {name!r} is active")
            self._ledger.fetch(Pipeline, name)
            transaction.delete(Pipeline, name)
            for schedule in self._schedules_of(name):
                transaction.delete(Schedule, schedule)

    def schedules(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ScheduleView]:
        """Return the schedules of stored pipelines and of their jobs, by name."""
        request = page_request(tuple, "schedules", limit, cursor)
        with self._node.lock:
            schedules = self._ledger.snapshot.schedules.values()
            return page_of_views(request, schedules, lambda one: (one.name,), self._view)

    def schedule(self, name: str) -> ScheduleView:
        """Return one schedule, with its next due times."""
        with self._node.lock:
            return self._view(self._schedule(name))

    def pause_schedule(self, name: str) -> ScheduleView:
        """Pause the schedule, so that it starts no runs until it is started again."""
        with self._node.changing() as transaction:
            transaction.put(replace(self._schedule(name), paused=True, message="paused"))
        return self.schedule(name)

    def start_schedule(self, name: str) -> ScheduleView:
        """Start a paused schedule again. Runs that were due while the schedule was paused are not
        repeated."""
        with self._node.changing() as transaction:
            schedule = self._schedule(name)
            if schedule.paused:
                now = self._control.clock.now()
                transaction.put(replace(schedule, paused=False, done=now, message=""))
        return self.schedule(name)

    def _view(self, schedule: Schedule) -> ScheduleView:
        control = self._control
        return schedule_view(control.ledger, control.clock, control.alarms, schedule)

    def _schedule(self, name: str) -> Schedule:
        schedule = self._ledger.snapshot.schedules.get(name)
        if schedule is None:
            raise NotFoundError(
                f"there is no schedule {name!r}",
                hint="`gridmill list schedules` shows them; `gridmill apply -f FILE` creates those of FILE.",
            )
        return schedule
