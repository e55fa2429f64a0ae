"""Tables that know what they contained at an earlier time, for lists that lag."""

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_KEPT_VERSIONS = 30


class History(Generic[T]):
    """Records by key, with the versions of each record. Times are Unix times in seconds."""

    def __init__(self) -> None:
        self._versions: dict[str, list[tuple[float, T | None]]] = {}

    def put(self, key: str, record: T | None, now: float) -> None:
        """Stores the version of a record from `now` on. None deletes the record."""
        versions = self._versions.setdefault(key, [])
        versions.append((now, record))
        del versions[:-_KEPT_VERSIONS]

    def get(self, key: str, as_of: float = math.inf) -> T | None:
        """Returns the record as it was at a time, or None if there was no such record."""
        for since, record in reversed(self._versions.get(key, ())):
            if since <= as_of:
                return record
        return None

    def all(self, as_of: float = math.inf) -> Iterator[T]:
        """Yields the records as they were at a time, in the order of their creation."""
        for key in self._versions:
            record = self.get(key, as_of)
            if record is not None:
                yield record

    def last_versions(self) -> Iterator[T]:
        """Yields the last version of each record, also of those that were deleted."""
        for versions in self._versions.values():
            record = next((one for _, one in reversed(versions) if one is not None), None)
            if record is not None:
                yield record
