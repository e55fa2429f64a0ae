"""The use cases of backfills."""

from collections.abc import Mapping
from typing import Protocol

from gridmill.model.backfill import Backfill, BackfillView, Chunk


class Backfills(Protocol):
    """What a face can ask about backfills. They have the names of their pipelines, each of which has one."""

    def backfills(self) -> tuple[BackfillView, ...]:
        """Backfills, by name."""
        ...

    def backfill(self, name: str) -> BackfillView:
        """One of them, with its chunks."""
        ...

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """Start it and return at once. Chunks of that range that are done (by their runs) or under way stay
        as they are, the others are run, those that failed, too. Without `chunks`: those it had before.

        Raises ConflictError while the pipeline's backfill over another range is under way, UnavailableError
        where the control node does not stay up, InputError, PipelineError.
        """
        ...

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """Start one of the kept pipeline of its name, as it was applied last: its text is read again for each
        chunk, with the chunk's bounds, and `values`, as parameters.

        Raises NotFoundError, PipelineError where no text of it is kept, and what `start_backfill` raises.
        """
        ...

    def stop_backfill(self, name: str) -> BackfillView:
        """Start no further chunk until it is started again; runs that are active go on."""
        ...
