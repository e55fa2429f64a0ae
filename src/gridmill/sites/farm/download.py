"""Downloads folders from a farm, whole or not at all, and only the chunks that are not here yet."""

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
from gridmill.sites.farm.client import FarmClient
from gridmill.sites.farm.inputs import KnownFolders
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import ChunkEndpoint, ScannedTree, TransferLimits, pull
from gridmill.transfer.paths import chunk_sizes
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.tree_writer import TreeCheckout

COMING = ".coming"
"""Folder below the storage root for incomplete downloads."""
WORTH_BYTES = 1 << 20
"""Smaller folders are fetched faster than they are searched for here."""
_TIMES = 3


class ResultDownload:
    """To the storage root of this home. Safe to use from several threads, of which one at a time asks for the
    same folder."""

    def __init__(
        self,
        farm: FarmClient,
        root: Path,
        name: str,
        known_folders: KnownFolders,
        carrier: Callable[[Staging, Manifest], ChunkEndpoint],
        terms: TransferLimits,
    ) -> None:
        """`name` is the farm's; what was half-way of a process that was killed goes."""
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
        """The folder `there` as `uri` here; with a `manifest` as it was then, or not at all. `alike`: folders
        here that may hold some of the same; `came` is told what was carried, also of what is cut. Raises
        NotFoundError where there is none, UnavailableError to be asked again, InterruptedRunError once `stop`
        is set, as `TreeCheckout.place`."""
        folder = self._folder / sha256(uri.encode()).hexdigest()[:32]
        for _ in range(_TIMES if manifest is None else 1):
            remote = manifest or self._farm.scan(there)
            chunks = ChunkStore(folder, remote.size_bytes + 1)
            chunks.unpin(COMING)  # what was to come earlier, and is not asked for any more
            placer = TreeCheckout(self._root, chunks, handing_over=True)
            lacking = placer.place(uri, remote, COMING, writable=True)
            if lacking:
                came(Transfer(reused_bytes=self._take_alike(set(lacking), remote, chunks, alike)))
                with suppress(NotFoundError):  # its controller was started anew, and has not looked there yet
                    self._pull(remote, chunks, self._carrier(staging, remote), progress, stop, came)
                lacking = placer.place(uri, remote, COMING, writable=True)
            if not lacking:
                self._known.remember(below(self._root, uri), remote)
                return shutil.rmtree(folder, ignore_errors=True)
        raise UnavailableError(
            f"chunks of {uri} were deleted again before the download was complete", place=str(folder)
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
        """How many bytes are here already, in folders that hold some of the same."""
        sizes = chunk_sizes(manifest)
        taken = 0
        for uri in alike if sum(sizes[chunk] for chunk in lacking) >= WORTH_BYTES else ():
            with suppress(GridmillError, OSError):  # then it is carried: it may be gone, or changing
                here = self._known.scan(below(self._root, uri))
                reusable = sorted(lacking & chunk_sizes(here).keys())
                tree = ScannedTree(below(self._root, uri), here)
                chunks.receive(tree.flows(reusable))
                lacking.difference_update(reusable)
                taken += sum(sizes[chunk] for chunk in reusable)
        return taken
