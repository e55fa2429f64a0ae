"""The store: versioned records changed by compare-and-set, and kept events."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from gridmill.model.alias import Alias
from gridmill.model.alteration import Alterations
from gridmill.model.artifact import Artifact
from gridmill.model.backfill import Backfill, Chunk
from gridmill.model.deployment import Deployment
from gridmill.model.event import Event
from gridmill.model.latest import Latest
from gridmill.model.noun import dataclass
from gridmill.model.origin import Origin
from gridmill.model.pipeline import Pipeline
from gridmill.model.project import Project
from gridmill.model.provenance import CodeList, Provenance
from gridmill.model.resource import Measurement, Resource
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.schedule import Schedule
from gridmill.model.site import Site

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


class Store(Protocol):
    """All methods are safe to call from several threads."""

    def own(self, owner: str) -> None:
        """Be the one control node that writes here, until it is closed or its connection is lost; may be
        repeated, and takes up again what was lost. `owner` is told to others who ask for it.

        From then on `commit` raises StoreLostError, and writes nothing, when the connection was lost since.
        Raises StoreInUseError while another one owns it. A store that no other process can reach without
        the home's lock does nothing.
        """
        ...

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """Apply all changes and keep all events, or none.

        Returns the sequences given to `events` (an event whose (pod_id, number) with number > 0 is kept
        already is left out silently and gets 0). Put increments a record's version by exactly one.
        Raises StaleVersionError when any expected version is wrong, StorageError when the store cannot
        be written, StoreLostError when its server is lost: then nobody knows whether it was committed.
        """
        ...

    def get(self, noun: type[Any], key: str) -> Record | None:
        """One record by key (`keys.key_of`)."""
        ...

    def live(self) -> Iterable[Record]:
        """Everything the control node keeps in memory: all sites, resources, schedules and backfills;
        chunks that are left; deployments that are not gone; runs that are not finished with all their
        JobRuns; attempts that are placed or running.
        In the order they were first put."""
        ...

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """Records of a class in the order they were first put; `parent` filters (see `keys.parent_of`)."""
        ...

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """Kept events with sequence > `after`, in order."""
        ...

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """Forget the events of runs that ended long ago, all but the newest of the store: sequences go on
        growing. May be repeated."""
        ...

    def counters(self) -> Mapping[str, int]:
        """The highest number used so far of each `name-N` id: runs per pipeline, deployments per resource,
        and `order` for Run.order. Used once, at start."""
        ...

    def close(self) -> None:
        """Release files and connections; may be repeated."""
        ...
