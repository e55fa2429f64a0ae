"""The interface of the store: versioned records that are changed by compare-and-set, events, and the key of
each record.

All stores use the functions of this module to find the key and the parent of a record, and whether the
record is live.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from gridmill.domain.artifact import Alias, Artifact, Latest
from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import Lease
from gridmill.domain.pipeline import Origin, Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.resource import Measurement, Resource
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.secret import Secret
from gridmill.domain.service import Service
from gridmill.domain.service_size import Calibration
from gridmill.domain.sink_overrides import Alterations
from gridmill.domain.site import Site
from gridmill.domain.states import FINISHED_RUNS, LIVE_ATTEMPTS, DeploymentState
from gridmill.domain.usage import StoreSpace

Noun: TypeAlias = (
    Site
    | Resource
    | Project
    | Service
    | Pipeline
    | Schedule
    | Backfill
    | Chunk
    | Run
    | JobRun
    | Attempt
    | Deployment
    | Lease
    | Artifact
    | Alias
    | Alterations
    | Latest
    | Origin
    | Provenance
    | CodeList
    | Measurement
    | Calibration
    | Secret
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of `gridmill.domain` with its version number, which is 1 after the first write."""

    noun: Noun
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRecord:
    """A record that is lost because its stored content differs from the content that was written. `noun` is
    the class of the record, `Event` for an event, `Counter` for a counter of ids, or `File` for the database
    itself. `key` and `parent` contain as much of the record's key and parent as can be read. `problem`
    describes how the damage was noticed. The field `told` is true if `gridmill recover` has reported the
    damage."""

    noun: str
    key: str
    parent: str
    problem: str
    told: bool = False

    @property
    def name(self) -> str:
        """The class and the key of the damaged record, for example `Run weather-1`."""
        return f"{self.noun} {self.key}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A write of one record to the store. `expected` is the version that the writer has read (0: the record
    must not exist yet)."""

    noun: Noun
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """A deletion of the record with this class and key. `expected` is the version of the record that the
    writer has read."""

    noun: type[Any]
    key: str
    expected: int


Change: TypeAlias = Put | Delete
Mark: TypeAlias = int | str
"""The position or the key of a record, which gives its place in an order of records."""


class Order(StrEnum):
    """The order of a page of records: by first write, by first write in reverse, or by key (in the order of
    code points)."""

    OLDEST_FIRST = "oldest-first"
    NEWEST_FIRST = "newest-first"
    BY_KEY = "by-key"


class Store(Protocol):
    """A store of records and events. All methods of the store can be called from several threads at the same
    time.

    Results contain no record or event whose stored content differs from the content that was written. Damage
    to one record does not affect other records. `damage` lists such records. If damaged records were found,
    the next commit deletes them from the table of records, so that new records can have the same keys.
    """

    def own(self, owner: str) -> None:
        """Become the only control node that writes to this store, until the store is closed or its
        connection is lost. The method may be repeated; after a lost connection it connects again. Other
        programs that ask for the owner of the store receive `owner`.

        After this call, `commit` writes nothing and raises StoreLostError if the connection was lost in the
        meantime. Raises StoreInUseError if another control node owns the store. If other processes cannot
        reach the store without the lock of the home, the method does nothing.
        """

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """Apply all changes and store all events, or do nothing if one of them fails.

        Returns the sequence numbers of `events`. If an event with the same (pod_id, number) and number > 0
        is already stored, the event is left out and its sequence number is 0. Each `Put` increases the
        version of its record by exactly one. Raises StaleVersionError if any expected version is wrong,
        StorageError if the store cannot be written, StoreLostError if the connection to the database server
        is lost: then it is unknown whether the changes were committed.
        """

    def get(self, noun: type[Any], key: str) -> Record | None:
        """Return the record with this key (see `key_of`), or None if there is no such record."""

    def live(self) -> Iterable[Record]:
        """Return all records that the control node holds in memory: all sites, resources, schedules,
        backfills and services; chunks that are not done; deployments that are not GONE; leases that are not
        CLOSED; unfinished runs with all their JobRuns; and placed or running attempts. The records are in the
        order in which they were first written."""

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """Return the records of a class in the order in which they were first written. `parent` selects the
        records with this parent (see `parent_of`)."""

    def page(
        self,
        noun: type[Any],
        *,
        order: Order,
        after: Mark | None = None,
        limit: int,
        parent: str | None = None,
    ) -> Sequence[tuple[Mark, Record]]:
        """Return the first `limit` records of a class after the position `after` in this order, each with
        its own position. The record at the position `after` may have been deleted."""

    def parents(self, noun: type[Any], among: Sequence[str]) -> Set[str]:
        """Return the names in `among` that are the parent of at least one record of the class (see
        `parent_of`)."""

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """Return stored events whose sequence number is greater than `after`, in order."""

    def last_event(self, run_id: str) -> int:
        """Return the sequence number of the newest event of a run; 0 if the run has no events."""

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """Delete the events of old runs, except the newest event of the store, so that sequence numbers
        continue to increase. May be repeated."""

    def space(self) -> StoreSpace:
        """Return the disk space that the store uses."""

    def release_space(self, goes_on: Callable[[], bool] = lambda: True) -> StoreSpace:
        """Return free space to the file system, as far as the database allows, in small steps between
        commits. The result is the disk space that the store uses after this call. The method stops early if
        the function `goes_on` returns False. May be repeated."""

    def counters(self) -> Mapping[str, int]:
        """Return the highest number that was used so far in ids of the form `name-N`, by name. The names are
        pipelines (for runs), resources (for deployments), `lease`, and `order` for Run.order. Called once, at
        start."""

    def use_numbers(self, used: Mapping[str, int]) -> None:
        """Record in `counters` that these numbers are used. A number that is lower than the stored number
        has no effect."""

    def damage(self) -> Sequence[DamagedRecord]:
        """Return all known damage of the store: damaged records that were already moved out, and damage that
        this process has noticed."""

    def take_new_damage(self) -> Sequence[DamagedRecord]:
        """Return the damage that was noticed since the last call of this method. The method does not read
        the database."""

    def check(self) -> Sequence[DamagedRecord]:
        """Read the whole store, to notice damage in records that no other method has read. Returns all known
        damage of the store, as `damage` does. This method may take long: do not call it while you hold a
        lock."""

    def mark_told(self) -> None:
        """Record in the store that all damage known now was reported to the user."""

    def close(self) -> None:
        """Release the files and connections of the store; the call may be repeated."""


def key_of(noun: Noun) -> str:
    """Return the key of a record, which is unique within the class of the record."""
    match noun:  # the most frequent classes come first, because the cases are compared in this order
        case (
            JobRun()
            | Attempt()
            | Provenance()
            | Run()
            | Deployment()
            | Artifact()
            | Alias()
            | Chunk()
            | Lease()
        ):
            return noun.id
        case Measurement():
            return noun.attempt_id
        case CodeList():
            return noun.hash
        case _:
            return noun.name


def parent_of(noun: Noun) -> str:
    """Return the parent by which `Store.list(parent=...)` selects records: the pipeline of a run or a chunk,
    the run of a JobRun or an attempt, the name of an artifact, an alias or a provenance, the subject of a
    measurement, the version of a calibration, the resource of a deployment, the site of a lease. The result
    is empty for all other records."""
    match noun:  # the most frequent classes come first, because the cases are compared in this order
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
        case Calibration():
            return noun.version
        case Chunk():
            return noun.pipeline.name
        case Lease():
            return noun.provider
        case _:
            return ""


def is_live(noun: Noun) -> bool:
    """Return whether `Store.live` can contain the record. For a JobRun, this function always returns True,
    because the stores check whether the run of the JobRun has finished."""
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
        case Lease():
            return noun.is_open
        case Artifact() | Alias() | Alterations() | Measurement() | Pipeline() | Latest() | Origin():
            return False
        case Secret() | Calibration():
            return False
        case Site() | Resource() | Project() | Schedule() | Backfill() | Service():
            return True
