"""This module has the resource use of an attempt's workers (busy and waiting time), and the disk space that
is in use, can be reclaimed, or is free."""

from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelTiming:
    """The times that the workers of an attempt took. All seconds are wall-clock seconds unless another unit
    is named.

    `work` describes what a worker computes for each shard (the model that predicts), because only attempts
    with the same `work` are compared. `whole_rows` is the number of rows of an attempt with all of the data;
    a probe processes only `rows` of these rows. `stage_seconds` is the time from the start of the first
    worker to the end of the last shard. `opening_seconds` is the average time until a worker could begin
    (the time to load its model, and the extra time of its first shard); during this time the worker was on a
    CPU for `opening_cpu_seconds`, and ready without a CPU for `opening_delay_seconds`. `busy_seconds` is the
    sum of the times of the shards, `longest_seconds` is the time of the longest shard, and `deviation` is
    the variation of the time per row (standard deviation divided by mean). During the busy seconds, the
    workers and their helper threads were on CPUs for `cpu_seconds` (with several threads more than one per
    second), ready without a CPU for `delay_seconds`, and waiting for the disk for `disk_seconds`. A value is
    None if the system does not measure it. If each part of the job had its own pod, `pods` is the number of
    pods, and the peak memory of the attempt is the peak memory of one pod.
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
        """The fraction of the data that the attempt processed, in (0, 1]."""
        return min(1.0, self.rows / self.whole_rows) if self.whole_rows else 1.0


HISTORY_DAYS = 90.0
"""The number of days for which events, reports, unused code and environments are kept by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """A folder or file that uses disk space, and its size in bytes. `kind` is the kind of content (`models`,
    `sinks`, `pod`, `store`, ...). `job` (`pipeline/job`) and `version` are set if the folder or file belongs
    to only one job or version."""

    kind: str
    name: str
    size_bytes: int
    job: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimableItem:
    """An item that can be deleted: its `kind` (`version`, `output`, `events`, `pod`, ...), its `name`, the
    reason, and its size in bytes (0 if the size is not known)."""

    kind: str
    name: str
    why: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The free space of the file system that contains `path`, and the reserve: if less space is free, no new
    work starts that needs this file system. `place` names the purpose for which Gridmill uses the file
    system (`home`, `storage root`, ...). `files` are inodes; a total of 0 means that the file system has no
    fixed number of inodes."""

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
        """The number of bytes that must be deleted so that the whole reserve is free again."""
        return max(0, self.reserve_bytes - self.free_bytes) if self.size_bytes else 0

    @property
    def lacks_files(self) -> bool:
        """Whether there are fewer free inodes than the reserve."""
        return bool(self.files) and self.free_files < self.reserve_files

    @property
    def shortage(self) -> str:
        """A text such as `the disk of the home (/x) has 3 MiB free, less than its reserve of 8 MiB`; empty
        if the disk has enough free space."""
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
    """The disk space that a database uses. Of the `size_bytes` bytes that the database has, it can return or
    reuse `free_bytes` bytes. `note` is the reason why the database does not return its free bytes."""

    size_bytes: int = 0
    free_bytes: int = 0
    note: str = ""
