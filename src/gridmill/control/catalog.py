"""The versions and their provenances: the store, and caches of the records that were read last."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Generic, TypeVar

from gridmill.control.ledger import Ledger
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.provenance import CodeList, Provenance

T = TypeVar("T")

VERSIONS_KEPT = 4096
"""The number of artifact records in memory, which is enough for the active jobs."""
PROVENANCES_KEPT = 512
LISTS_KEPT = 64
"""The number of lists of code files in a cache."""


class BoundedCache(Generic[T]):
    """A cache with a limited number of immutable objects by name; a new entry replaces the oldest entry."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, T] = {}

    def get(self, name: str) -> T | None:
        """Return the cached object of that name."""
        return self._kept.get(name)

    def __setitem__(self, name: str, value: T) -> None:
        self._kept[name] = value
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def clear(self) -> None:
        """Remove all entries of the cache."""
        self._kept.clear()


@dataclass(slots=True, kw_only=True)
class Catalog:
    """The versions and their provenances: the store with its copy in memory (`Ledger`), and a cache of the
    records that were read last."""

    ledger: Ledger
    newest_artifacts: dict[str, Artifact | None] = field(default_factory=dict)
    versions: BoundedCache[Artifact] = field(default_factory=lambda: BoundedCache(VERSIONS_KEPT))
    metrics_of_versions: BoundedCache[Mapping[str, float]] = field(
        default_factory=lambda: BoundedCache(VERSIONS_KEPT)
    )
    provenances: BoundedCache[Provenance] = field(default_factory=lambda: BoundedCache(PROVENANCES_KEPT))
    code_lists: BoundedCache[CodeList] = field(default_factory=lambda: BoundedCache(LISTS_KEPT))

    def newest_artifact(self, name: str) -> Artifact | None:
        """Return the newest version of that name, including removed versions."""
        if name not in self.newest_artifacts:
            newest = self.ledger.read_all(Artifact, parent=name, limit=1, newest_first=True)
            self.newest_artifacts[name] = newest[0] if newest else None
        return self.newest_artifacts[name]

    def look_up_names(self, names: Sequence[str]) -> None:
        """Find with two queries which of these names have no version and no provenance. The names are looked
        up together, because otherwise each job that never ran would need two queries."""
        unknown = [*({*names} - self.newest_artifacts.keys())]
        made = self.ledger.store.parents(Artifact, unknown)
        self.newest_artifacts |= {name: None for name in unknown if name not in made}
        self.ledger.look_for_provenances(names)

    def clear(self) -> None:
        """Clear the caches, because the store may have changed."""
        self.newest_artifacts.clear()
        self.versions.clear()
        self.provenances.clear()
        self.code_lists.clear()
