"""Resource use of an attempt's workers (busy and waiting time), disk space in use, reclaimable and free."""

from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelTiming:
    """The part of an attempt that its workers did. Seconds are wall seconds where nothing else is said.

    `work` says what a shard is (the model that predicts): attempts that did something else are not compared.
    `whole_rows` is what an attempt of all the data has; a probe has `rows` of them. `stage_seconds` goes from
    the first worker made to the last shard done. `opening_seconds` is what one worker took on average until
    it could begin (its model loaded, and what its first shard took longer than the others),
    `opening_cpu_seconds` of it on a CPU, `opening_delay_seconds` ready without one. `busy_seconds` is the
    sum over the shards, `longest_seconds` the longest, `deviation` how far they lie apart for their rows
    (standard deviation over mean). Of the busy seconds the workers and their helpers were on CPUs for
    `cpu_seconds` (more than one a second with several threads), ready without one for `delay_seconds`, and
    stood still for the disk for `disk_seconds`. None: the system does not count it. `pods`: on so many they
    were, where each part of the job had one; what the attempt's peak of memory is told of is one of these.
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
        """The part of the data it was, in (0, 1]."""
        return min(1.0, self.rows / self.whole_rows) if self.whole_rows else 1.0


HISTORY_DAYS = 90.0
"""How long events, reports, unused code and environments are kept by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """A folder or file and its bytes. `kind` is what it is (`models`, `sinks`, `pod`, `store`, ...), `job`
    whose (`pipeline/job`) and `version` which, where it is one's alone."""

    kind: str
    name: str
    size_bytes: int
    job: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimableItem:
    """An item that can be deleted: `kind` (`version`, `output`, `events`, `pod`, ...), `name`, why, and its
    bytes (0 where nobody counts them)."""

    kind: str
    name: str
    why: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The free space of the file system of `path`, which is the `place` (`home`, `storage root`, ...), and
    the reserve below which nothing new begins there. `files` are inodes; 0 of them in all: the file system
    does not count them."""

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
        """Whether less is free than the reserve."""
        return self.lacking_bytes > 0 or self.lacks_files

    @property
    def lacking_bytes(self) -> int:
        """How many bytes must be freed until the reserve is free again."""
        return max(0, self.reserve_bytes - self.free_bytes) if self.size_bytes else 0

    @property
    def lacks_files(self) -> bool:
        """Whether fewer inodes are free than the reserve has."""
        return bool(self.files) and self.free_files < self.reserve_files

    @property
    def shortage(self) -> str:
        """`the disk of the home (/x) has 3 MiB free, less than its reserve of 8 MiB`; empty: it is not."""
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
    """The space of a database on the disk. Of `size_bytes` it would give `free_bytes` back, or reuse them;
    `note` says why it does not give them back."""

    size_bytes: int = 0
    free_bytes: int = 0
    note: str = ""
