"""What a backfill wants next: pure functions of it and its chunks."""

from collections.abc import Iterable

from gridmill.model.backfill import Backfill, Chunk, ChunkState, chunk_id, spans
from gridmill.model.moment import read_moment
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import Run
from gridmill.model.state import RunState

_STATES = {
    RunState.SUCCEEDED: ChunkState.DONE,
    RunState.FAILED: ChunkState.FAILED,
    RunState.STOPPED: ChunkState.STOPPED,
}


def chunk_ids(backfill: Backfill) -> tuple[str, ...]:
    """The ids of its chunks, oldest first."""
    return tuple(chunk_id(backfill.name, *span) for span in spans(backfill))


def next_chunk(backfill: Backfill, left: Iterable[Chunk], active: int) -> Chunk | None:
    """The chunk to deal with now, of those left, while `active` runs of the backfill are not over."""
    if backfill.stopped or active >= backfill.parallel:
        return None
    ordered = sorted(left, key=lambda chunk: read_moment(chunk.begins))
    if not ordered:
        return None
    return ordered[-1] if backfill.newest_first else ordered[0]


def outage_over(pipeline: Pipeline, begins: str, ends: str) -> str:
    """Which outage of a sink that time lies in, all of it; empty: none."""
    for job in pipeline.jobs:
        for outage in job.sink.outages if job.sink is not None else ():
            if outage.covers(read_moment(begins), read_moment(ends)):
                why = f": {outage.reason}" if outage.reason else ""
                return f"in the outage of sink {job.name} from {outage.begins} to {outage.ends}{why}"
    return ""


def state_of(chunk: Chunk, run: Run | None) -> ChunkState:
    """How a chunk stands, given the run that was started for it."""
    if chunk.skipped:
        return ChunkState.SKIPPED
    if chunk.failed or (chunk.run and run is None):
        return ChunkState.FAILED
    return ChunkState.LEFT if run is None else _STATES.get(run.state, ChunkState.RUNNING)


def stays(chunk: Chunk, run: Run | None, *, force: bool) -> bool:
    """Whether a chunk is left as it is when its backfill is started again: under way, or done."""
    state = state_of(chunk, run)
    return state == ChunkState.RUNNING or (state == ChunkState.DONE and not force)
