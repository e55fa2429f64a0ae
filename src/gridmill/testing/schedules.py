"""The schedules of a grid in memory: kept, and never due."""

from dataclasses import dataclass, field

from gridmill.errors import NotFoundError
from gridmill.model.pipeline import Pipeline
from gridmill.model.schedule import Schedule
from gridmill.model.view import ScheduleView


@dataclass(slots=True)
class FakeSchedules:
    """Implements `gridmill.ports.schedules.Schedules`."""

    _pipelines: dict[str, Pipeline] = field(default_factory=dict)
    _paused: set[str] = field(default_factory=set)

    def schedules(self) -> tuple[ScheduleView, ...]:
        """See Schedules."""
        return tuple(
            ScheduleView(
                schedule=Schedule(name=name, spec=spec, since=0.0, paused=name in self._paused),
                why="paused" if name in self._paused else "",
            )
            for pipeline in sorted(self._pipelines)
            for name, spec in self._pipelines[pipeline].schedules.items()
        )

    def schedule(self, name: str) -> ScheduleView:
        """See Schedules."""
        for view in self.schedules():
            if view.name == name:
                return view
        raise NotFoundError(f"there is no schedule {name!r}")

    def pause_schedule(self, name: str) -> ScheduleView:
        """See Schedules."""
        self._paused.add(self.schedule(name).name)
        return self.schedule(name)

    def start_schedule(self, name: str) -> ScheduleView:
        """See Schedules."""
        self._paused.discard(self.schedule(name).name)
        return self.schedule(name)
