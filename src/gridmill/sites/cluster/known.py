"""What is known of the contents of folders at home, so that what did not change is not read again."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from gridmill.errors import StorageError
from gridmill.model.farm import Manifest
from gridmill.staging.hashes import HashCache
from gridmill.staging.manifest import scan

_NEVER_NS = 2**63


class Known:
    """One file per folder. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, path: Path) -> Path:
        """Where it is kept what a folder's files hashed to."""
        return self._folder / f"{sha256(str(path).encode()).hexdigest()[:32]}.json"

    def cache(self, path: Path) -> HashCache:
        """For a scan of the folder."""
        return HashCache(self.path(path))

    def scan(self, path: Path) -> Manifest:
        """See `manifest.scan`."""
        return scan(path, cache=self.cache(path))

    def remember(self, path: Path, manifest: Manifest) -> None:
        """The folder was just made of that: nobody need read it to know, and nobody has written to it yet."""
        cache = HashCache(self.path(path), now_ns=lambda: _NEVER_NS)
        cache.open(manifest.chunk_bytes)
        with suppress(OSError, StorageError):  # then it is read once more
            for entry in manifest.files:
                cache.keep(entry.path, (path / entry.path).lstat(), entry.chunks)
            cache.save()
