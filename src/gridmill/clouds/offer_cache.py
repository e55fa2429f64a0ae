"""The cache of offers in memory and on the disk, where each provider and region has a file. A damaged file
counts as missing."""

import contextlib
import threading
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


class OfferCache:
    """The offers of one provider by region, in memory and in a folder. If `folder` is empty, they are in
    memory only. All methods can be called from any thread."""

    def __init__(self, provider: str, folder: str, kept_seconds: float) -> None:
        self._provider, self._kept_seconds = provider, kept_seconds
        self._folder = Path(folder) if folder else None
        self._known: dict[str, CachedOffers] = {}
        self._lock = threading.Lock()

    def get(self, region: str, now: float) -> CachedOffers | None:
        """Return the offers of a region. The result is None if they are unknown or too old at `now`, a Unix
        time in seconds."""
        with self._lock:
            cached = self._known.get(region)
        if cached is None:
            cached = self._stored(region)
        # a cache from the future was written with a wrong clock
        return cached if cached is not None and 0 <= now - cached.read < self._kept_seconds else None

    def _stored(self, region: str) -> CachedOffers | None:
        if self._folder is None:
            return None
        try:
            return decode(self._path(self._folder, region).read_bytes(), CachedOffers)
        except (OSError, InputError):
            return None

    def keep(self, region: str, cached: CachedOffers) -> None:
        """Store the offers of a region. If the disk is full or read-only, they are in memory only."""
        with self._lock:
            self._known[region] = cached
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                write_private(self._path(self._folder, region), encode(cached))

    def _path(self, folder: Path, region: str) -> Path:
        return folder / f"{self._provider}-{region}.json"
