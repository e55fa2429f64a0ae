"""The cache of offers on the disk: a file for each provider and region. A damaged file counts as missing."""

import contextlib
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Offer
from gridmill.errors import InputError
from gridmill.private_files import write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedOffers:
    """The offers of a region, the Unix time at which they were read, and the time at which their spot prices
    were read."""

    read: float
    offers: tuple[Offer, ...]
    spot_read: float = 0.0


def read_cache(folder: Path, provider: str, region: str) -> CachedOffers | None:
    """Read the cached offers of a provider in a region, or return None if there are none that can be read."""
    try:
        return decode(_path(folder, provider, region).read_bytes(), CachedOffers)
    except (OSError, InputError):
        return None


def write_cache(folder: Path, provider: str, region: str, cached: CachedOffers) -> None:
    """Write the offers of a region. If the disk is full or read-only, nothing is cached."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_private(_path(folder, provider, region), encode(cached))


def _path(folder: Path, provider: str, region: str) -> Path:
    return folder / f"{provider}-{region}.json"
