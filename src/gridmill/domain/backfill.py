"""This module has backfills, which run a pipeline over a range of time in chunks: the records, the bounds
and the state of each chunk."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import count, islice, pairwise
from math import inf
from typing import TypeAlias

from gridmill.domain.calendar import local_time, moment_of, plus_months, zone_named
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import read_moment
from gridmill.domain.pipeline import Pipeline
from gridmill.errors import InputError, PipelineError

MOST_CHUNKS = 1000
"""The largest number of chunks of a backfill. Each chunk of a backfill is a run with its own record."""

BOUNDS = ("from", "to")
"""The parameters of a pipeline to which a chunk of a backfill assigns values."""

_DAY_SECONDS = 86_400.0


class ChunkState(StrEnum):
    """The state of a chunk of a backfill."""

    DONE = "done"
    LEFT = "left"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"
    """The whole chunk lies in an outage, so no run loads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The backfill of a pipeline, which has the name of the pipeline. The backfill covers the time from
    `begins` up to `ends` (ISO 8601; a time without an offset is in the time zone `zone`) in chunks of
    `every_seconds` or `every_months`, or in one chunk. The last chunk can be shorter than the other chunks.
    Chunks of whole days and of months follow the calendar of the time zone `zone`.

    At most `parallel` runs of the backfill are active at the same time. If `force` is true, unchanged jobs
    are executed too, and chunks that have already succeeded are run again. `stopped` means that no further
    run starts until a user starts the backfill again.
    """

    name: str
    begins: str
    ends: str
    every_seconds: float | None = None
    every_months: int | None = None
    zone: str = "UTC"
    parallel: int = 1
    newest_first: bool = False
    force: bool = False
    stopped: bool = False

    def check(self) -> None:
        """Raise InputError for a range that cannot be divided into chunks."""
        zone = zone_named(self.zone, "zone")
        if read_moment(self.begins, "from", zone) >= read_moment(self.ends, "to", zone):
            raise InputError(f"the range ends ({self.ends}) before it begins ({self.begins})", place="to")
        if self.every_seconds is not None and self.every_months is not None:
            raise InputError(
                "the length of chunks must be given in seconds or in months, not in both", place="every"
            )
        if self.every_months is not None and self.every_months < 1:
            raise InputError("chunks must be 1mo or longer", place="every", hint="For example --every 1mo.")
        if self.every_seconds is not None and self.every_seconds < 1:
            raise InputError("chunks must be 1s or longer", place="every", hint="For example --every 7d.")
        if self.parallel < 1:
            raise InputError("`parallel` must be 1 or more", place="parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of time of a backfill: the pipeline receives the start of the range (included) as parameter
    `from` and its end (excluded) as `to`. `run` is the id of the run that was started for the chunk.
    `skipped` is the reason why the chunk was skipped without a run, and `failed` is the reason why its run
    could not be started."""

    pipeline: Pipeline
    begins: str
    ends: str
    run: str = ""
    skipped: str = ""
    failed: str = ""

    @property
    def id(self) -> str:
        """The id of the chunk, for example `weather/2013-01-01..2013-01-08`."""
        return chunk_id(self.pipeline.name, self.begins, self.ends)

    @property
    def left(self) -> bool:
        """Whether the chunk still has neither a run nor a reason why it has no run."""
        return not (self.run or self.skipped or self.failed)


def chunk_id(name: str, begins: str, ends: str) -> str:
    """Return the id of a chunk of the backfill of a pipeline."""
    return f"{name}/{begins}..{ends}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkView:
    """The current state of a chunk, for display. `run` is empty if no run was started for the chunk.
    `message` has details about the state of the chunk."""

    begins: str
    ends: str
    state: ChunkState
    run: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillView:
    """A backfill and its chunks, oldest chunk first. `counts` has the number of chunks in each state."""

    backfill: Backfill
    chunks: tuple[ChunkView, ...] = ()
    counts: Mapping[ChunkState, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.backfill.name

    @property
    def over(self) -> bool:
        """Whether every chunk of the backfill has ended or was skipped."""
        return not any(self.counts.get(state) for state in (ChunkState.LEFT, ChunkState.RUNNING))


def spans(backfill: Backfill) -> tuple[tuple[str, str], ...]:
    """Return the start and the end of each chunk, oldest chunk first.

    In UTC, the bounds of chunks are dates if all bounds are at midnight, and otherwise times without an
    offset. In any other time zone, the bounds of chunks are times with an offset. Raises InputError for an
    invalid or empty range, and for too many chunks.
    """
    backfill.check()
    zone = zone_named(backfill.zone)
    begins, ends = (read_moment(text, zone=zone).timestamp() for text in (backfill.begins, backfill.ends))
    bounds = [*islice(_beginnings(backfill, begins, ends, zone), MOST_CHUNKS + 1), ends]
    if len(bounds) > MOST_CHUNKS + 1:
        raise InputError(
            f"the range has more than {MOST_CHUNKS} chunks of this length",
            hint="Choose longer chunks (`--every`) or a shorter range.",
            place="every",
        )
    return tuple(pairwise(_texts([datetime.fromtimestamp(bound, zone) for bound in bounds])))


def _beginnings(backfill: Backfill, begins: float, ends: float, zone: tzinfo) -> Iterator[float]:
    """Return the start of each chunk, in Unix seconds. If the time zone skips a day, the day has no
    chunk."""
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
    """Return a function that computes the start of a chunk from the number of the chunk and from the start
    of the first chunk, as a Unix time and as a local time."""
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


def check_bounds(pipeline: Pipeline, place: str) -> None:
    """Raise PipelineError if the pipeline does not have the parameters of a time range."""
    missing = [f"`{name}`" for name in BOUNDS if name not in pipeline.parameters]
    if missing and not pipeline.awaits:
        raise PipelineError(
            f"declares no parameter {' and no '.join(missing)}, which a backfill gives to each run",
            place=f"{place}: parameters",
            hint="For example parameters: {from: 2013-01-01, to: 2013-01-08}, and ${from} where it is used.",
        )


def chunk_values(pipeline: Pipeline, span: tuple[str, str]) -> dict[str, str]:
    """Return the parameters of the run of a chunk, which are `from` and `to`, and the times that a schedule
    would set, where `due` is the end of the chunk and `due_before` is its start."""
    bounds = {name: one for name, one in zip(BOUNDS, span, strict=True) if name in pipeline.parameters}
    begins, ends = map(_with_offset, span)
    times = {"due_before": begins, "due": ends}
    return {**bounds, **{name: times[name] for name in pipeline.awaits}}


def _with_offset(bound: str) -> str:
    """Return a bound of a chunk as a due time with an offset from UTC. If the bound has no offset, it is in
    UTC."""
    local = datetime.fromisoformat(bound)
    return (local if local.tzinfo is not None else local.replace(tzinfo=UTC)).isoformat()
