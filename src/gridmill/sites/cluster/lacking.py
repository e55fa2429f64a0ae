"""How much of some versions a farm lacks, before they are carried there."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol

from gridmill.errors import GridmillError, UnavailableError
from gridmill.model.artifact import Artifact
from gridmill.model.farm import Manifest
from gridmill.staging.paths import chunk_sizes

_ASKED = 10_000
_PATIENCE_SECONDS = 5.0
"""Somebody waits for the plan; records do as well."""


class Asked(Protocol):
    """Who knows what is there."""

    def missing(self, chunks: Iterable[str], *, seconds: float) -> tuple[str, ...]:
        """Which of them are not there, told in so many seconds. Raises UnavailableError."""
        ...


def lacking_bytes(
    farm: Asked, versions: Iterable[Artifact], manifest_of: Callable[[Artifact], Manifest | None]
) -> Mapping[str, int]:
    """By the id of each version whose files can be told of. Raises UnavailableError."""
    sizes: dict[str, dict[str, int]] = {}
    for version in versions:
        try:
            manifest = manifest_of(version)
        except UnavailableError:
            raise
        except GridmillError:
            continue  # its files are gone or changing: the attempt that reads it will say so
        if manifest is not None:
            sizes[version.id] = chunk_sizes(manifest)
    gone = set(_missing(farm, dict.fromkeys(chunk for one in sizes.values() for chunk in one)))
    return {key: sum(size for chunk, size in one.items() if chunk in gone) for key, one in sizes.items()}


def _missing(farm: Asked, chunks: Iterable[str]) -> Iterable[str]:
    left = iter(chunks)
    while some := list(islice(left, _ASKED)):
        yield from farm.missing(some, seconds=_PATIENCE_SECONDS)
