"""Resource use of an attempt's workers (busy and waiting time); disk space in use, reclaimable and free."""

from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelTiming:
    """The times of an attempt's workers. Seconds are wall seconds unless another unit is named.

    `work` describes the work of a shard (the model that predicts): only attempts with the same work are
    compared. `whole_rows` is the number of rows of an attempt with all the data; a probe has `rows` of them.
    `stage_seconds` is the time from the start of the first worker to the end of the last shard.
    `opening_seconds` is the average time until a worker could begin (the load of its model, and the extra
    time of its first shard); for `opening_cpu_seconds` of it the worker was on a CPU, and for
    `opening_delay_seconds` ready without a CPU. `busy_seconds` is the sum over the shards, `longest_seconds`
    the longest shard, and `deviation` the variation of the time per row (standard deviation over mean). Of
    the busy seconds, the workers and their helpers were on CPUs for `cpu_seconds` (more than one a second
    with several threads), ready without a CPU for `delay_seconds`, and waiting for the disk for
    `disk_seconds`. None means that the system does not count the value. `pods` is the number of pods, if each
    part of the job had its own; the attempt's peak of memory is then that of one pod.
    """

    work: str
    workers: int
    shards: int
    rows: int
    whole_rows: int
    stage_seconds: float
    opening_seconds: float
    opening_cpu_seconds: float
    opening_delay_seconds: float
    busy_seconds: float
    longest_seconds: float
    deviation: float = 0.0
    cpu_seconds: float = 0.0
    delay_seconds: float | None = None
    disk_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    pods: int = 1

    @property
    def share(self) -> float:
        """The share of the data that the attempt processed, in (0, 1]."""
        return min(1.0, self.rows / self.whole_rows) if self.whole_rows else 1.0


HISTORY_DAYS = 90.0
"""How long events, reports, unused code and environments are kept by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """A folder or file and its bytes. `kind` is its kind (`models`, `sinks`, `pod`, `store`, ...). `job`
    (`pipeline/job`) and `version` are set if it belongs to one job or version alone."""

    kind: str
    name: str
    size_bytes: int
    job: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimableItem:
    """An item that can be deleted: its `kind` (`version`, `output`, `events`, `pod`, ...), its `name`, the
    reason, and its bytes (0 if they are not counted)."""

    kind: str
    name: str
    why: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The free space of the file system of `path`, which is the `place` (`home`, `storage root`, ...), and
    the reserve below which no new work begins there. `files` are inodes; a total of 0 means that the file
    system does not count them."""

    place: str
    path: str
    size_bytes: int
    free_bytes: int
    reserve_bytes: int
    files: int = 0
    free_files: int = 0
    reserve_files: int = 0

    @property
    def is_short(self) -> bool:
        """Whether the free space is less than the reserve."""
        return self.lacking_bytes > 0 or self.lacks_files

    @property
    def lacking_bytes(self) -> int:
        """How many bytes must be freed until the reserve is free again."""
        return max(0, self.reserve_bytes - self.free_bytes) if self.size_bytes else 0

    @property
    def lacks_files(self) -> bool:
        """Whether the free inodes are fewer than the reserve."""
        return bool(self.files) and self.free_files < self.reserve_files

    @property
    def shortage(self) -> str:
        """A text such as `the disk of the home (/x) has 3 MiB free, less than its reserve of 8 MiB`; empty if
        the disk is not short."""
        disk = f"the disk of the {self.place} ({self.path})"
        if self.lacking_bytes:
            free, reserve = show_bytes(self.free_bytes), show_bytes(self.reserve_bytes)
            return f"{disk} has {free} free, less than its reserve of {reserve}"
        if self.lacks_files:
            return (
                f"{disk} has {self.free_files:,} inodes free, less than its reserve of {self.reserve_files:,}"
            )
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpace:
    """The space of a database on the disk. Of `size_bytes`, the database can return or reuse `free_bytes`.
    `note` is the reason why it does not return them."""

    size_bytes: int = 0
    free_bytes: int = 0
    note: str = ""
