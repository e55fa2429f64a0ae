"""The store port: versioned records changed by compare-and-set, and events; the key of each record.

Every store uses the same key, parent and liveness of a record.
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
    """A noun with its version (1 when first put)."""

    noun: Noun
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRecord:
    """A record that is not what was written, so that it is lost. `noun` is its class, `Event` for an event,
    `Counter` for a number of ids, or `File` for the database itself; `key` and `parent` are as far as they
    can be read; `problem` is how it was noticed. `told`: `gridmill recover` has reported it."""

    noun: str
    key: str
    parent: str
    problem: str
    told: bool = False

    @property
    def name(self) -> str:
        """`Run weather-1`."""
        return f"{self.noun} {self.key}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Write a noun. `expected` is the version read (0: must not exist yet)."""

    noun: Noun
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove a noun of class `noun` with key `key`, read at version `expected`."""

    noun: type[Any]
    key: str
    expected: int


Change: TypeAlias = Put | Delete
Mark: TypeAlias = int | str
"""The place of a record in an order: its position or its key."""


class Order(StrEnum):
    """The order of a page of records: that in which they were first put, its reverse, or that of their keys
    (by code point)."""

    OLDEST_FIRST = "oldest-first"
    NEWEST_FIRST = "newest-first"
    BY_KEY = "by-key"


class Store(Protocol):
    """All methods are safe to call from several threads.

    A record or event that is not what was written is left out of all answers; the others are not affected.
    What was noticed of it is in `damage`. The next commit sets a damaged record aside: its key is free then.
    """

    def own(self, owner: str) -> None:
        """Be the one control node that writes here, until it is closed or its connection is lost; may be
        repeated, and takes up again what was lost. `owner` is told to others who ask for it.

        From then on `commit` raises StoreLostError, and writes nothing, when the connection was lost since.
        Raises StoreInUseError while another one owns it. A store that no other process can reach without
        the home's lock does nothing.
        """

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """Apply all changes and keep all events, or none.

        Returns the sequences given to `events` (an event whose (pod_id, number) with number > 0 is kept
        already is left out silently and gets 0). Put increments a record's version by exactly one.
        Raises StaleVersionError when any expected version is wrong, StorageError when the store cannot
        be written, StoreLostError when its server is lost: then nobody knows whether it was committed.
        """

    def get(self, noun: type[Any], key: str) -> Record | None:
        """One record by key (`keys.key_of`)."""

    def live(self) -> Iterable[Record]:
        """Everything the control node keeps in memory: all sites, resources, schedules and backfills;
        chunks that are left; deployments that are not gone; runs that are not finished with all their
        JobRuns; attempts that are placed or running.
        In the order they were first put."""

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """Records of a class in the order they were first put; `parent` filters (see `keys.parent_of`)."""

    def page(
        self,
        noun: type[Any],
        *,
        order: Order,
        after: Mark | None = None,
        limit: int,
        parent: str | None = None,
    ) -> Sequence[tuple[Mark, Record]]:
        """The first `limit` records of a class that follow the mark `after` in that order, each with its
        mark. The record with that mark may have been deleted."""

    def parents(self, noun: type[Any], among: Sequence[str]) -> Set[str]:
        """Those of `among` that are the parent of any record of that class (see `keys.parent_of`)."""

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """Kept events with sequence > `after`, in order."""

    def last_event(self, run_id: str) -> int:
        """The sequence of the newest event of a run; 0 where there is none."""

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """Forget the events of runs that ended long ago, all but the newest of the store: sequences go on
        growing. May be repeated."""

    def space(self) -> StoreSpace:
        """The space that it takes on the disk."""

    def release_space(self, goes_on: Callable[[], bool] = lambda: True) -> StoreSpace:
        """Give free space back to the file system, as far as the database can, in small steps beside commits;
        the space afterwards. May be repeated, and is cut short once `goes_on` is false."""

    def counters(self) -> Mapping[str, int]:
        """The highest number used so far of each `name-N` id: runs per pipeline, deployments per resource,
        and `order` for Run.order. Used once, at start."""

    def use_numbers(self, used: Mapping[str, int]) -> None:
        """Count these numbers as used up in `counters`; lower ones change nothing."""

    def damage(self) -> Sequence[DamagedRecord]:
        """All damage that is known: of records that were set aside, and what this process has noticed."""

    def take_new_damage(self) -> Sequence[DamagedRecord]:
        """What was noticed since the last call. Asks no database."""

    def check(self) -> Sequence[DamagedRecord]:
        """Read everything, so that damage is noticed that no answer shows; what `damage` returns then. May
        take long: not for holders of a lock."""

    def mark_told(self) -> None:
        """Damage that is known now was reported to the user."""

    def close(self) -> None:
        """Release files and connections; may be repeated."""


def key_of(noun: Noun) -> str:
    """The key: unique within the class."""
    match noun:  # the most frequent first
        case JobRun() | Attempt() | Provenance() | Run() | Deployment() | Artifact() | Alias() | Chunk():
            return noun.id
        case Measurement():
            return noun.attempt_id
        case CodeList():
            return noun.hash
        case _:
            return noun.name


def parent_of(noun: Noun) -> str:
    """What `Store.list(parent=...)` filters by: a run's pipeline, a JobRun's run, an attempt's run,
    the name of an artifact, an alias or a provenance, a measurement's subject, a deployment's resource, a
    chunk's pipeline; else empty."""
    match noun:  # the most frequent first
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
    """False for what is finished by itself. (A JobRun is live while its run is: stores join the two.)"""
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
