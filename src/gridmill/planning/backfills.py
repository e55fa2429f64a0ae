"""What a backfill wants next: pure functions of it and its chunks."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, pairwise
from math import inf
from typing import TypeAlias

from gridmill.errors import InputError, PipelineError
from gridmill.model.backfill import Backfill, Chunk, ChunkState, chunk_id
from gridmill.model.calendar import local_time, moment_of, plus_months, zone_named
from gridmill.model.moment import read_moment
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import Run
from gridmill.model.state import RunState

MOST_CHUNKS = 1000
"""Each is a run with a record of its own."""

BOUNDS = ("from", "to")
"""The parameters that a chunk gives."""

_DAY_SECONDS = 86_400.0

_STATES = {
    RunState.SUCCEEDED: ChunkState.DONE,
    RunState.FAILED: ChunkState.FAILED,
    RunState.STOPPED: ChunkState.STOPPED,
}


def spans(backfill: Backfill) -> tuple[tuple[str, str], ...]:
    """Beginning and end of each chunk, oldest first.

    In UTC these are dates where all are midnights, else times; in another zone they are times with an offset.
    Raises InputError for a range that is none, or of too many chunks.
    """
    backfill.check()
    zone = zone_named(backfill.zone)
    begins, ends = (read_moment(text, zone=zone).timestamp() for text in (backfill.begins, backfill.ends))
    bounds = [*islice(_beginnings(backfill, begins, ends, zone), MOST_CHUNKS + 1), ends]
    if len(bounds) > MOST_CHUNKS + 1:
        raise InputError(
            f"that makes more than {MOST_CHUNKS} chunks",
            hint="Make them longer (`--every`), or the range shorter.",
            place="every",
        )
    return tuple(pairwise(_texts([datetime.fromtimestamp(bound, zone) for bound in bounds])))


def _beginnings(backfill: Backfill, begins: float, ends: float, zone: tzinfo) -> Iterator[float]:
    """When each chunk begins, in Unix seconds. A day that the zone skips makes no chunk."""
    step, local, latest = _step(backfill), local_time(begins, zone), -inf
    for number in count():
        begin = begins if number == 0 else step(begins, local, number, zone)
        if begin >= ends:
            return
        if begin > latest:
            yield begin
            latest = begin


_Step: TypeAlias = Callable[[float, datetime, int, tzinfo], float]


def _step(backfill: Backfill) -> _Step:
    """When the chunk of a number begins, given the beginning of the first as a moment and as local time."""
    months, seconds = backfill.every_months, inf if backfill.every_seconds is None else backfill.every_seconds
    if months is not None:
        return lambda _begins, local, number, zone: moment_of(plus_months(local, number * months), zone)
    days = seconds / _DAY_SECONDS
    if days.is_integer():
        return lambda _begins, local, number, zone: moment_of(local + timedelta(days=number * days), zone)
    return lambda begins, _local, number, _zone: begins + number * seconds


def _texts(bounds: list[datetime]) -> list[str]:
    if any(bound.tzinfo is not UTC for bound in bounds):
        return [bound.isoformat() for bound in bounds]
    plain = [bound.replace(tzinfo=None) for bound in bounds]
    if all(bound.time() == datetime.min.time() for bound in plain):
        return [bound.date().isoformat() for bound in plain]
    return [bound.isoformat() for bound in plain]


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


def check_bounds(pipeline: Pipeline, place: str) -> None:
    """Raise PipelineError where the pipeline does not take a range."""
    missing = [f"`{name}`" for name in BOUNDS if name not in pipeline.parameters]
    if missing and not pipeline.awaits:
        raise PipelineError(
            f"declares no parameter {' and no '.join(missing)}, which a backfill gives to each run",
            place=f"{place}: parameters",
            hint="For example parameters: {from: 2013-01-01, to: 2013-01-08}, and ${from} where it is used.",
        )


def chunk_values(pipeline: Pipeline, span: tuple[str, str]) -> dict[str, str]:
    """What a chunk gives to its run: its bounds, and as due times its end and its beginning."""
    bounds = {name: one for name, one in zip(BOUNDS, span, strict=True) if name in pipeline.parameters}
    begins, ends = map(_with_offset, span)
    times = {"due_before": begins, "due": ends}
    return {**bounds, **{name: times[name] for name in pipeline.awaits}}


def _with_offset(bound: str) -> str:
    """A bound as a due time: in the backfill's zone, as the bound is; without an offset it is in UTC."""
    local = datetime.fromisoformat(bound)
    return (local if local.tzinfo is not None else local.replace(tzinfo=UTC)).isoformat()


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
