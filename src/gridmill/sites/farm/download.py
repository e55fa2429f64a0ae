"""Downloads folders from a farm. If a download fails, no part of the folder appears at its destination. Only
chunks that do not exist on this machine are transferred."""

import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Event

from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.route import Staging, Transfer
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, NotFoundError, UnavailableError
from gridmill.sites.attempt_inputs import KnownFolders
from gridmill.sites.farm.client import FarmClient
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import ChunkEndpoint, ScannedTree, TransferLimits, pull
from gridmill.transfer.paths import chunk_sizes
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.tree_writer import TreeCheckout

COMING = ".coming"
"""The folder below the storage root in which incomplete downloads are stored."""
WORTH_BYTES = 1 << 20
"""For folders smaller than this, a download is faster than a search for their chunks on this machine."""
_TIMES = 3


class ResultDownload:
    """Downloads folders from a farm to the storage root of this home. This class is safe to use from several
    threads, but only one thread may request a folder at a time."""

    def __init__(
        self,
        farm: FarmClient,
        root: Path,
        name: str,
        known_folders: KnownFolders,
        carrier: Callable[[Staging, Manifest], ChunkEndpoint],
        terms: TransferLimits,
    ) -> None:
        """`name` is the name of the farm. Deletes the incomplete downloads that a killed process left."""
        self._farm, self._root, self._known = farm, root, known_folders
        self._carrier, self._terms = carrier, terms
        self._folder = root / COMING / name
        shutil.rmtree(self._folder, ignore_errors=True)

    def fetch(
        self,
        there: str,
        uri: str,
        staging: Staging,
        *,
        manifest: Manifest | None = None,
        alike: Iterable[str] = (),
        progress: TransferProgress | None = None,
        stop: Event | None = None,
        came: Callable[[Transfer], None] = lambda _: None,
    ) -> None:
        """Downloads the folder `there` of the farm and stores it as `uri` in this home.

        If a `manifest` is given, the folder at the farm must be in the state that the manifest lists.
        `alike` are local folders that may have the same content as parts of the downloaded folder. The
        function calls `came` with the number of transferred bytes, also after a failure. Raises
        NotFoundError if the folder does not exist at the farm, UnavailableError if the call should be
        repeated, InterruptedRunError after `stop` is set, and the errors of `TreeCheckout.place`.
        """
        folder = self._folder / sha256(uri.encode()).hexdigest()[:32]
        for _ in range(_TIMES if manifest is None else 1):
            remote = manifest or self._farm.scan(there)
            chunks = ChunkStore(folder, remote.size_bytes + 1)
            chunks.unpin(COMING)  # an earlier request may have expected chunks that are not needed any more
            placer = TreeCheckout(self._root, chunks, handing_over=True)
            lacking = placer.place(uri, remote, COMING, writable=True)
            if lacking:
                came(Transfer(reused_bytes=self._take_alike(set(lacking), remote, chunks, alike)))
                # no error, because the farm's controller may have been restarted without a scan of the folder
                with suppress(NotFoundError):
                    self._pull(remote, chunks, self._carrier(staging, remote), progress, stop, came)
                lacking = placer.place(uri, remote, COMING, writable=True)
            if not lacking:
                self._known.remember(below(self._root, uri), remote)
                return shutil.rmtree(folder, ignore_errors=True)
        raise UnavailableError(
            f"chunks of {uri} were deleted before the download was complete", place=str(folder)
        )

    def _pull(
        self,
        manifest: Manifest,
        chunks: ChunkStore,
        carrier: ChunkEndpoint,
        progress: TransferProgress | None,
        stop: Event | None,
        came: Callable[[Transfer], None],
    ) -> None:
        counted, began = progress or TransferProgress(), time.monotonic()
        before = counted.look().transferred_bytes
        try:
            pull(manifest, chunks, carrier, progress=counted, terms=self._terms, stop=stop)
        finally:
            carried = counted.look().transferred_bytes - before
            came(Transfer(transferred_bytes=carried, seconds=time.monotonic() - began))

    def _take_alike(
        self, lacking: set[str], manifest: Manifest, chunks: ChunkStore, alike: Iterable[str]
    ) -> int:
        """Copies needed chunks from local folders that contain the same data, and returns the number of
        copied bytes."""
        sizes = chunk_sizes(manifest)
        taken = 0
        for uri in alike if sum(sizes[chunk] for chunk in lacking) >= WORTH_BYTES else ():
            # the folder may be deleted or changing; its chunks are then transferred instead
            with suppress(GridmillError, OSError):
                here = self._known.scan(below(self._root, uri))
                reusable = sorted(lacking & chunk_sizes(here).keys())
                tree = ScannedTree(below(self._root, uri), here)
                chunks.receive(tree.flows(reusable))
                lacking.difference_update(reusable)
                taken += sum(sizes[chunk] for chunk in reusable)
        return taken
