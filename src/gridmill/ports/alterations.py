"""The use cases of sinks: altering them, and how they stand."""

from typing import Protocol

from gridmill.model.alteration import Alterations, Change
from gridmill.model.task import LoadTask


class Altering(Protocol):
    """What a face can ask about alterations. They hold for runs that start after them."""

    def alterations(self, *, name: str | None = None) -> tuple[Alterations, ...]:
        """Of one sink (`pipeline/job`) or of all that were altered."""
        ...

    def alter_sink(self, name: str, change: Change) -> Alterations:
        """Add or remove a part; all changes there are then.

        Raises NotFoundError for a pipeline that is not kept or has no such sink, InputError for what is there
        already or is not there.
        """
        ...

    def load_tasks(self, *, name: str | None = None) -> tuple[LoadTask, ...]:
        """The sources of one sink (`pipeline/job`) or of all: how each stands. Raises NotFoundError."""
        ...
