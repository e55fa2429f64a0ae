"""The use cases of schedules."""

from typing import Protocol

from gridmill.model.view import ScheduleView


class Schedules(Protocol):
    """What a face can ask about schedules. They have the names of their pipelines, those of jobs
    are `PIPELINE/JOB`; `apply` makes them."""

    def schedules(self) -> tuple[ScheduleView, ...]:
        """Schedules of kept pipelines, by name."""
        ...

    def schedule(self, name: str) -> ScheduleView:
        """One of them, with its next due times."""
        ...

    def pause_schedule(self, name: str) -> ScheduleView:
        """Start no further run until `start_schedule`. A paused one is fine."""
        ...

    def start_schedule(self, name: str) -> ScheduleView:
        """Let a paused one go on, from now: what was due meanwhile is not made up for."""
        ...
