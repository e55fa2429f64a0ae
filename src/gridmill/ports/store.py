"""The store port: versioned records that are changed by compare-and-set, events, and the key of each record.

All stores use the functions of this module for the key, the parent and the liveness of a record.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from gridmill.domain.artifact import Alias, Artifact, Latest
from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Origin, Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.resource import Measurement, Resource
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.sink_overrides import Alterations
from gridmill.domain.site import Site
from gridmill.domain.states import FINISHED_RUNS, LIVE_ATTEMPTS, DeploymentState
from gridmill.domain.usage import StoreSpace

Noun: TypeAlias = (
    Site
    | Resource
    | Project
    | Pipeline
    | Schedule
    | Backfill
    | Chunk
    | Run
    | JobRun
    | Attempt
    | Deployment
    | Artifact
    | Alias
    | Alterations
    | Latest
    | Origin
    | Provenance
    | CodeList
    | Measurement
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A noun (a record of `gridmill.domain`) with its version, which is 1 after the first write."""

    noun: Noun
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRecord:
    """A record that is lost because its stored content differs from the written content. `noun` is its class,
    `Event` for an event, `Counter` for a counter of ids, or `File` for the database itself. `key` and
    `parent` have the part that is readable. `problem` is the sign by which the damage was noticed. `told`:
    `gridmill recover` has reported it."""

    noun: str
    key: str
    parent: str
    problem: str
    told: bool = False

    @property
    def name(self) -> str:
        """The class and the key, for example `Run weather-1`."""
        return f"{self.noun} {self.key}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A write of a noun. `expected` is the version that was read (0: the noun must not exist yet)."""

    noun: Noun
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """A deletion of the noun of class `noun` with the key `key`, which was read at version `expected`."""

    noun: type[Any]
    key: str
    expected: int


Change: TypeAlias = Put | Delete
Mark: TypeAlias = int | str
"""The place of a record in an order: its position or its key."""


class Order(StrEnum):
    """The order of a page of records: the order of the first writes, its reverse, or the order of keys (by
    code point)."""

    OLDEST_FIRST = "oldest-first"
    NEWEST_FIRST = "newest-first"
    BY_KEY = "by-key"


class Store(Protocol):
    """A store of records and events. All methods are safe to call from several threads.

    A record or event whose stored content differs from the written content is left out of all results. Other
    records are not affected. `damage` lists such records. The next commit sets a damaged record aside, and
    its key is then free.
    """

    def own(self, owner: str) -> None:
        """Become the only control node that writes to this store, until the store is closed or its connection
        is lost. May be repeated, and connects again after a lost connection. Other programs that ask for the
        owner get `owner`.

        After this call, `commit` raises StoreLostError and writes nothing if the connection was lost in the
        meantime. Raises StoreInUseError if another control node owns the store. If no other process can reach
        the store without the home's lock, the method does nothing.
        """

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """Apply all changes and store all events, or none of them.

        Returns the sequences of `events`. If an event with the same (pod_id, number) and number > 0 is
        already stored, the event is left out and its sequence is 0. Put increments a record's version by
        exactly one. Raises StaleVersionError if any expected version is wrong, StorageError if the store
        cannot be written, StoreLostError if the connection to its server is lost: then it is unknown whether
        the changes were committed.
        """

    def get(self, noun: type[Any], key: str) -> Record | None:
        """The record with this key (see `key_of`), or None."""

    def live(self) -> Iterable[Record]:
        """All records that the control node keeps in memory: all sites, resources, schedules and backfills;
        chunks that are not done; deployments that are not GONE; unfinished runs with all their JobRuns; and
        placed or running attempts. The order is that of the first writes."""

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """Records of a class in the order of the first writes. `parent` selects records (see `parent_of`)."""

    def page(
        self,
        noun: type[Any],
        *,
        order: Order,
        after: Mark | None = None,
        limit: int,
        parent: str | None = None,
    ) -> Sequence[tuple[Mark, Record]]:
        """The first `limit` records of a class that follow the mark `after` in this order, each with its
        mark. The record that has the mark `after` may have been deleted."""

    def parents(self, noun: type[Any], among: Sequence[str]) -> Set[str]:
        """The names in `among` that are the parent of at least one record of the class (see `parent_of`)."""

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """Stored events with a sequence greater than `after`, in order."""

    def last_event(self, run_id: str) -> int:
        """The sequence of the newest event of a run; 0 if there is none."""

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """Delete the events of old runs, except the newest event of the store, so that sequences continue to
        increase. May be repeated."""

    def space(self) -> StoreSpace:
        """The space that the store uses on the disk."""

    def release_space(self, goes_on: Callable[[], bool] = lambda: True) -> StoreSpace:
        """Return free space to the file system, as far as the database can, in small steps between commits.
        Returns the space that the store uses afterwards. Stops early if `goes_on` returns False. May be
        repeated."""

    def counters(self) -> Mapping[str, int]:
        """The highest number used so far in ids of the form `name-N`, by name: runs per pipeline, deployments
        per resource, and `order` for Run.order. Called once, at start."""

    def use_numbers(self, used: Mapping[str, int]) -> None:
        """Mark these numbers as used in `counters`. A number below the stored number has no effect."""

    def damage(self) -> Sequence[DamagedRecord]:
        """All known damage: damaged records that were set aside, and damage that this process has noticed."""

    def take_new_damage(self) -> Sequence[DamagedRecord]:
        """The damage that was noticed since the last call. Does not read the database."""

    def check(self) -> Sequence[DamagedRecord]:
        """Read the whole store, to notice damage that no other method has met. Returns all known damage, as
        `damage` does. May take long: do not call it while holding a lock."""

    def mark_told(self) -> None:
        """Store that all damage known now was reported to the user."""

    def close(self) -> None:
        """Release files and connections; may be repeated."""


def key_of(noun: Noun) -> str:
    """The key of a noun, which is unique within its class."""
    match noun:  # the most frequent classes first
        case JobRun() | Attempt() | Provenance() | Run() | Deployment() | Artifact() | Alias() | Chunk():
            return noun.id
        case Measurement():
            return noun.attempt_id
        case CodeList():
            return noun.hash
        case _:
            return noun.name


def parent_of(noun: Noun) -> str:
    """The parent by which `Store.list(parent=...)` selects: the pipeline of a run or a chunk, the run of a
    JobRun or an attempt, the name of an artifact, an alias or a provenance, the subject of a measurement, the
    resource of a deployment; otherwise empty."""
    match noun:  # the most frequent classes first
        case JobRun() | Attempt():
            return noun.run_id
        case Provenance() | Artifact() | Alias():
            return noun.name
        case Run():
            return noun.pipeline
        case Measurement():
            return noun.subject
        case Deployment():
            return noun.resource
        case Chunk():
            return noun.pipeline.name
        case _:
            return ""


def is_live(noun: Noun) -> bool:
    """Whether the noun can be among the records of `Store.live`. For a JobRun this depends on its run, which
    the stores check; the result here is always True."""
    match noun:
        case JobRun():
            return True
        case Provenance() | CodeList():
            return False
        case Attempt():
            return noun.state in LIVE_ATTEMPTS
        case Run():
            return noun.state not in FINISHED_RUNS
        case Deployment():
            return noun.state != DeploymentState.GONE
        case Chunk():
            return noun.left
        case Artifact() | Alias() | Alterations() | Measurement() | Pipeline() | Latest() | Origin():
            return False
        case Site() | Resource() | Project() | Schedule() | Backfill():
            return True
