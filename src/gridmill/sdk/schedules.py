"""The verbs of schedules."""

from gridmill.model.view import ScheduleView
from gridmill.sdk.connected import Connected


class ScheduleVerbs(Connected):
    """The verbs of schedules; `apply` makes them."""

    def list_schedules(self) -> tuple[ScheduleView, ...]:
        """Schedules of kept pipelines, by name."""
        return self.grid.schedules()

    def stop_schedule(self, name: str) -> ScheduleView:
        """Pause it: no further run starts until `start_schedule`. Runs that are active go on."""
        return self.grid.pause_schedule(name)

    def start_schedule(self, name: str) -> ScheduleView:
        """Let a paused schedule go on, from now."""
        return self.grid.start_schedule(name)
