"""The backfills of a grid in memory: kept, and never begun."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gridmill.control.chunking import chunks_of
from gridmill.errors import NotFoundError
from gridmill.model.backfill import Backfill, BackfillView, Chunk, ChunkState, ChunkView, spans
from gridmill.testing.schedules import FakeSchedules


@dataclass(slots=True)
class FakeBackfills(FakeSchedules):
    """Implements `gridmill.ports.backfills.Backfills`."""

    _backfills: dict[str, Backfill] = field(default_factory=dict)

    def backfills(self) -> tuple[BackfillView, ...]:
        """See Backfills."""
        return tuple(self.backfill(name) for name in sorted(self._backfills))

    def backfill(self, name: str) -> BackfillView:
        """See Backfills."""
        if name not in self._backfills:
            raise NotFoundError(f"there is no backfill {name!r}")
        kept = self._backfills[name]
        chunks = tuple(ChunkView(begins=b, ends=e, state=ChunkState.LEFT) for b, e in spans(kept))
        return BackfillView(backfill=kept, chunks=chunks, counts=dict(Counter(c.state for c in chunks)))

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """See Backfills."""
        spans(backfill)
        self._backfills[backfill.name] = replace(backfill, stopped=False)
        return self.backfill(backfill.name)

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """See Backfills."""
        if backfill.name not in self._pipelines:
            raise NotFoundError(f"there is no pipeline {backfill.name!r}")
        return self.start_backfill(backfill, chunks_of(self._pipelines[backfill.name], backfill, values))

    def stop_backfill(self, name: str) -> BackfillView:
        """See Backfills."""
        self._backfills[name] = replace(self.backfill(name).backfill, stopped=True)
        return self.backfill(name)
