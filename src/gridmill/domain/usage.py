"""Resource use of an attempt's workers (busy and waiting time), and disk space in use and reclaimable."""

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
"""How long events, reports, unused code and environments are kept unless said otherwise."""


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
