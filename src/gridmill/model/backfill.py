"""Backfills: a pipeline run over a range of time, chunk by chunk, and what has become of each chunk."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.errors import InputError
from gridmill.model.calendar import zone_named
from gridmill.model.moment import read_moment
from gridmill.model.noun import dataclass
from gridmill.model.pipeline import Pipeline


class ChunkState(StrEnum):
    """How a chunk stands."""

    DONE = "done"
    LEFT = "left"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"  # all of it lies in an outage


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A pipeline's backfill, under the pipeline's name: from `begins` up to `ends` (ISO 8601; without an
    offset in the time zone `zone`) in chunks of `every_seconds` or `every_months`, or in one chunk. The last
    chunk can be shorter. Chunks of whole days and of months follow the calendar of `zone`.

    At most `parallel` of its runs are active. `force` runs unchanged jobs too, and chunks that are done.
    `stopped`: no further run starts until it is started again.
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
        """Raise InputError for what cannot be cut into chunks."""
        zone = zone_named(self.zone, "zone")
        if read_moment(self.begins, "from", zone) >= read_moment(self.ends, "to", zone):
            raise InputError(f"the range ends ({self.ends}) before it begins ({self.begins})", place="to")
        if self.every_seconds is not None and self.every_months is not None:
            raise InputError("chunks have a length in seconds or in months, not both", place="every")
        if self.every_months is not None and self.every_months < 1:
            raise InputError("chunks are 1mo or longer", place="every", hint="For example --every 1mo.")
        if self.every_seconds is not None and self.every_seconds < 1:
            raise InputError("chunks are 1s or longer", place="every", hint="For example --every 7d.")
        if self.parallel < 1:
            raise InputError("`parallel` is 1 or more", place="parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A stretch of a backfill: `pipeline` has it as its parameters `from` (in it) and `to` (not any more).

    `run` is the run that was started for it; `skipped` says why none was, `failed` why none could be.
    """

    pipeline: Pipeline
    begins: str
    ends: str
    run: str = ""
    skipped: str = ""
    failed: str = ""

    @property
    def id(self) -> str:
        """`weather/2013-01-01..2013-01-08`."""
        return chunk_id(self.pipeline.name, self.begins, self.ends)

    @property
    def left(self) -> bool:
        """Whether it is still to be dealt with."""
        return not (self.run or self.skipped or self.failed)


def chunk_id(name: str, begins: str, ends: str) -> str:
    """The id of a chunk of the pipeline of that name."""
    return f"{name}/{begins}..{ends}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkView:
    """A chunk as it stands: `run` is empty where none was started, `message` says more."""

    begins: str
    ends: str
    state: ChunkState
    run: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillView:
    """A backfill and its chunks, oldest first; `counts` says how many there are of each state."""

    backfill: Backfill
    chunks: tuple[ChunkView, ...] = ()
    counts: Mapping[ChunkState, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.backfill.name

    @property
    def over(self) -> bool:
        """Whether no chunk is left or running."""
        return not any(self.counts.get(state) for state in (ChunkState.LEFT, ChunkState.RUNNING))
