"""Backfills for people: a line each, and one with its chunks."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gridmill.cli.backfilling import told
from gridmill.cli.tables import table
from gridmill.model.amounts import show_period
from gridmill.model.backfill import Backfill, BackfillView, ChunkState

HEAD = ("backfill", "from", "to", "every", "done", "left", "running", "failed", "skipped", "")


def backfill_row(view: BackfillView) -> tuple[object, ...]:
    """A backfill's cells."""
    kept, counts = view.backfill, view.counts
    states = (ChunkState.DONE, ChunkState.LEFT, ChunkState.RUNNING, ChunkState.FAILED, ChunkState.SKIPPED)
    numbers = [counts.get(state, 0) for state in states]
    numbers[3] += counts.get(ChunkState.STOPPED, 0)
    why = "over" if view.over else "stopped" if kept.stopped else ""
    return view.name, kept.begins, kept.ends, _length(kept), *numbers, why


def _length(backfill: Backfill) -> str:
    if backfill.every_seconds is None and backfill.every_months is None:
        return "one chunk"
    return show_period(backfill.every_seconds, backfill.every_months)


def backfill_list(views: Sequence[BackfillView]) -> Table:
    """Backfills as a table."""
    return table(*HEAD, rows=[backfill_row(view) for view in views])


def show_backfill(view: BackfillView) -> RenderableType:
    """A backfill and its chunks."""
    return Group(*_parts(view))


def _parts(view: BackfillView) -> Iterator[RenderableType]:
    kept = view.backfill
    yield Text(f"{view.name}  {'stopped, ' if kept.stopped else ''}{told(view)}")
    rows = [(chunk.begins, chunk.ends, chunk.state, chunk.run, chunk.message) for chunk in view.chunks]
    yield table("from", "to", "state", "run", "", rows=rows)
    if any(view.counts.get(state) for state in (ChunkState.FAILED, ChunkState.STOPPED)):
        yield Text(f"`gridmill start backfill {view.name}` tries again what failed")
