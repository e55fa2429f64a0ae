"""The files of one tenant on a farm: the data that was transferred for its jobs, and the results of its
jobs.

Folders that become empty are deleted. Folders below the storage root of a tenant are scanned in the
background, because scanning a large folder takes minutes.
"""

import os
import shutil
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from gridmill.domain.farm_protocol import (
    SERVICE_SOCKET,
    BucketObject,
    ChunkSlice,
    EarlyTree,
    Manifest,
    PlaceTree,
)
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.service_log import LOG_FOLDER, READY_FOLDER, is_complete_name, is_open_name
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, InputError, NotFoundError, UnavailableError, UnsafePathError
from gridmill.farm.deployment import AttemptRecord, check_id
from gridmill.farm.store import RecordStore
from gridmill.farm.unix_users import acting_as
from gridmill.http.server import connect_to_path
from gridmill.transfer.chunk_manifest import HashCache, scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.disk_room import DiskRoom
from gridmill.transfer.engine import ScannedTree
from gridmill.transfer.paths import check_hash, check_path
from gridmill.transfer.signed_urls import flows, write
from gridmill.transfer.stream import Chunk, ChunkStream, flow_of
from gridmill.transfer.tree_writer import TreeCheckout

PATIENCE_SECONDS = 60.0
"""The farm answers a request within this number of seconds, if necessary with "not known yet", because
tenants wait for a few minutes at most."""
MOST_WAITING = 1000
MOST_KEPT = 1000
"""The largest number of folders whose file hashes are cached. The folders that were read longest ago are
evicted first."""


class TreeScans:
    """Scans the folders of one tenant. The hashes of files are cached, so that a folder is read only once.
    The class is thread-safe."""

    def __init__(
        self, root: Path, folder: Path, user: int | None, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """`folder` is the folder of the caches and belongs to the farm. All files below `root` belong to the
        given user."""
        self._root, self._folder, self._user = root, folder, user
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._running: dict[str, Future[Manifest]] = {}

    def scan(self, uri: str) -> Manifest:
        """Returns the manifest of the folder at a checked path; see `manifest.scan`. Raises UnavailableError
        while the scan is running. The caller must then ask again."""
        running = self._running_scan(uri)
        wait((running,), self._patience_seconds)
        if not running.done():
            raise UnavailableError(f"{uri} is still being read", hint="Repeat the request.")
        with self._lock:
            if self._running.get(uri) is running:
                del self._running[uri]
        return running.result()

    def _running_scan(self, uri: str) -> Future[Manifest]:
        """Returns the scan of this path that is running, or whose result was not fetched yet."""
        with self._lock:
            result = self._running.get(uri)
            if result is not None:
                return result
            if len(self._running) >= MOST_WAITING:
                self._running = {one: run for one, run in self._running.items() if not run.done()}
            if len(self._running) >= MOST_WAITING:
                raise UnavailableError(
                    f"{MOST_WAITING} folders are being read, which is the limit", hint="Repeat the request."
                )
            made = self._running[uri] = Future()
        threading.Thread(target=self._run, args=(uri, made), name="gridmill-scan", daemon=True).start()
        return made

    def _run(self, uri: str, made: Future[Manifest]) -> None:
        try:
            with acting_as(self._user):
                manifest = scan(below(self._root, uri), cache=self._cache(uri))
            self._tidy()
        except BaseException as error:  # noqa: BLE001  the caller of `scan` gets the error
            made.set_exception(error)
        else:
            made.set_result(manifest)

    def _tidy(self) -> None:
        kept = sorted(self._folder.glob("*.json"), key=_age, reverse=True)
        for old in kept[MOST_KEPT:]:
            old.unlink(missing_ok=True)

    def _cache(self, uri: str) -> HashCache:
        return _OwnHashCache(self._path(uri), ours=None if self._user is None else 0)

    def _path(self, uri: str) -> Path:
        return self._folder / f"{sha256(uri.encode()).hexdigest()}.json"

    def remove(self, uri: str) -> None:
        """Deletes the cached hashes of a path and of everything below it."""
        with self._lock:
            for running_uri in [one for one in self._running if f"{one}/".startswith(f"{uri}/")]:
                del self._running[running_uri]
        self._path(uri).unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Returns the modification time of a file. If the file was deleted in the meantime, the function returns
    a time long ago."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class _OwnHashCache(HashCache):
    """A cache of hashes. The farm writes this cache as the user of the farm, and reads the cached files as
    the user of the tenant."""

    def __init__(self, path: Path, *, ours: int | None) -> None:
        super().__init__(path)
        self._ours = ours

    def open(self, chunk_bytes: int) -> None:
        """Opens the cache; see HashCache."""
        with self._as_us():
            super().open(chunk_bytes)

    def save(self) -> None:
        """Writes the cache; see HashCache."""
        with self._as_us():
            super().save()

    @contextmanager
    def _as_us(self) -> Iterator[None]:
        with acting_as(self._ours):
            yield


def remove_empty(root: Path, kept: Collection[str]) -> None:
    """Deletes empty folders below `root`. The function does not delete `root` itself, paths in `kept`
    (relative to `root`), or anything below these paths. Links are not followed. If another process adds a
    file to a folder during the call, the folder stays."""
    above = tuple(f"{uri}/" for uri in kept)
    for folder, names, _, descriptor in os.fwalk(root, topdown=False):
        below = os.path.relpath(folder, root)
        for name in names:
            uri = name if below == "." else f"{below}/{name}"
            if not f"{uri}/".startswith(above):
                with suppress(OSError):
                    os.rmdir(name, dir_fd=descriptor)


MOST_EARLY_SECONDS = 3600.0
"""The longest time for which the chunks of an attempt are kept before the attempt starts. The tenant renews
this time."""
_TREES = 100
"""The number of results whose chunks are stored until the tenant has downloaded them."""
_KEPT_BYTES = 2**30
"""Results larger than this number of bytes are not kept for later jobs, because copying them would take as
long as the transfer."""


class TenantFiles:
    """The chunks, folders and results of one tenant. Chunks are not shared with other tenants, because the
    presence of a chunk would reveal data of another tenant. The class is thread-safe."""

    def __init__(
        self,
        tenant: str,
        root: Path,
        folder: Path,
        quota_bytes: int,
        user: int | None,
        records: RecordStore,
        now: Callable[[], float],
        patience_seconds: float = PATIENCE_SECONDS,
        bucket_hosts: Sequence[str] = (),
        disk: DiskRoom | None = None,
    ) -> None:
        self.store = ChunkStore(folder, quota_bytes, name=tenant, disk=disk)
        self.drafts = root.parent / f".{root.name}.drafts" if root.parent != folder.parent else None
        owner = None if user is None else (user, user)
        self._placer = TreeCheckout(root, self.store, drafts=self.drafts, user=owner)
        self._tenant, self._root, self._user = tenant, root, user
        self._records, self._now, self._bucket_hosts = records, now, bucket_hosts
        self._scans = TreeScans(root, folder / "hashes", user, patience_seconds)
        self._lock = threading.Lock()
        self._uncollected = False
        self._closed = threading.Event()
        self._trees: OrderedDict[str, tuple[ScannedTree, frozenset[str]]] = OrderedDict()

    def close(self) -> None:
        """Stops storing anything, also in calls that are already running, so that the files can be
        deleted."""
        self._closed.set()
        self.store.close()

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks; see ChunkStore. Raises UnavailableError after `close`."""
        self._check_open()
        self.store.send(chunks)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise UnavailableError("the farm is closing the files of this tenant")

    def place(self, wanted: PlaceTree) -> tuple[str, ...]:
        """Builds a folder from chunks for an attempt; see Placer. Raises InputError, ConflictError,
        CapacityError, StorageError and UnavailableError."""
        self._check_open()
        check_id(wanted.attempt_id)
        self.store.take_room(0)
        self._note(wanted.attempt_id)
        check_path(wanted.uri)
        self._drop(wanted.uri)
        return self._placer.place(wanted.uri, wanted.manifest, wanted.attempt_id, writable=wanted.writable)

    def place_early(self, wanted: EarlyTree) -> tuple[str, ...]:
        """Keeps the chunks of a folder for an attempt that has not started yet; see TreeCheckout. No record
        is written, because the pins end by themselves. Raises InputError, CapacityError, StorageError and
        UnavailableError."""
        self._check_open()
        check_id(wanted.attempt_id)
        self.store.take_room(0)
        seconds = min(wanted.seconds, MOST_EARLY_SECONDS)
        return self._placer.expect_early(wanted.uri, wanted.manifest, wanted.attempt_id, seconds)

    def send_early(self, attempt_id: str, chunks: Sequence[Chunk]) -> None:
        """Stores chunks for an attempt that has not started yet. Raises UnavailableError if its chunks had to
        give way to other data."""
        if not self.store.is_early(check_id(attempt_id)):
            raise UnavailableError(f"the inputs of {attempt_id} gave way to other data")
        self.send(chunks)

    def end_early(self, attempt_id: str) -> None:
        """Releases the chunks that were kept for an attempt which does not start here. The call can be
        repeated."""
        self._placer.end_early(check_id(attempt_id))

    def end_expired_early(self) -> None:
        """Releases the chunks of attempts for which the tenant has not asked in time."""
        for attempt_id in self.store.expired_early():
            self._placer.end_early(attempt_id)

    def started(self, pod_id: str, order: AttemptOrder) -> None:
        """Records that the attempt was sent to this pod."""
        self._placer.started(check_id(order.attempt_id))
        self._note(order.attempt_id, pod_id, _safe(order.output_uri), _safe(order.checkpoint_uri))

    def _note(self, attempt_id: str, pod_id: str = "", uri: str = "", checkpoints: str = "") -> None:
        with self._records.change():
            record = self._records.find(AttemptRecord, f"{self._tenant}/{attempt_id}")
            work = record or AttemptRecord(attempt_id=attempt_id, tenant=self._tenant, time=0.0)
            self._records.put(
                replace(
                    work,
                    time=self._now(),
                    pod_id=pod_id or work.pod_id,
                    uri=uri or work.uri,
                    checkpoints=checkpoints or work.checkpoints,
                )
            )

    def connect_service(self, attempt_id: str) -> socket.socket:
        """Returns a connection to the service that the attempt runs. Raises NotFoundError if the attempt does
        not run here, and UnavailableError if the service does not accept connections."""
        work = self._records.find(AttemptRecord, f"{self._tenant}/{check_id(attempt_id)}")
        if work is None or not work.uri:
            raise NotFoundError("does not run here", place=f"attempt {attempt_id}")
        try:
            with acting_as(self._user):
                return connect_to_path(below(self._root, work.uri) / SERVICE_SOCKET)
        except OSError as error:
            raise UnavailableError(f"the service does not accept connections: {error.strerror}") from error

    def delete_log_files(self, attempt_id: str, names: Sequence[str]) -> None:
        """Deletes files of the request log of a service that the tenant has taken. The call can be repeated.
        Raises NotFoundError if the attempt has no files here, and InputError for other names."""
        work = self._records.find(AttemptRecord, f"{self._tenant}/{check_id(attempt_id)}")
        if work is None or not work.uri:
            raise NotFoundError("has no files here", place=f"attempt {attempt_id}")
        for name in names:
            if not is_complete_name(name) and not is_open_name(name):
                raise InputError(f"{name[:80]!r} is not the name of a log file", place="names")
        folder = below(self._root, work.uri) / LOG_FOLDER
        with acting_as(self._user):
            for name in names:
                with suppress(OSError):  # the replica may have deleted it before
                    (folder / ("" if is_open_name(name) else READY_FOLDER) / name).unlink()

    def scan(self, uri: str) -> Manifest:
        """Returns the manifest of a result. After a call of `scan`, the chunks of the result can be
        downloaded. Raises NotFoundError, InputError, and UnavailableError while the result is being read."""
        check_path(uri)
        result = self._scans.scan(uri)
        names = frozenset(chunk for file in result.files for chunk in file.chunks)
        with self._lock:
            self._trees[uri] = (ScannedTree(below(self._root, uri), result), names)
            self._trees.move_to_end(uri)
            while len(self._trees) > _TREES:
                self._trees.popitem(last=False)
        return result

    def fetch(self, chunks: Sequence[str]) -> Iterator[Chunk]:
        """Yields the contents of chunks, in this order. Raises NotFoundError before the first chunk if any
        chunk is not on the farm."""
        for chunk in chunks:
            check_hash(chunk)
        trees = {chunk: self._tree(chunk) for chunk in chunks}
        lacking = self.store.missing(chunk for chunk, tree in trees.items() if tree is None)
        if lacking:
            raise NotFoundError("is not here", place=f"chunk {lacking[0]}")
        return (self._chunk(chunk, trees[chunk]) for chunk in chunks)

    def _tree(self, chunk: str) -> ScannedTree | None:
        with self._lock:
            newest = reversed(self._trees.values())
            return next((tree for tree, names in newest if chunk in names), None)

    def _chunk(self, chunk: str, tree: ScannedTree | None) -> Chunk:
        if tree is None:
            return next(self.store.fetch((chunk,)))
        with acting_as(self._user):
            return next(tree.fetch((chunk,)))

    def take(self, parcels: Sequence[BucketObject]) -> tuple[str, ...]:
        """Downloads chunks from a bucket. Returns the objects that are not in the bucket either. Raises
        InputError, DataError, UnavailableError."""
        lost: list[str] = []
        for parcel in parcels:
            lacking = set(self.store.missing(one.chunk for one in parcel.slices))
            wanted = tuple(one for one in parcel.slices if one.chunk in lacking)
            try:
                self._receive(flows(replace(parcel, slices=wanted), self._bucket_hosts))
            except NotFoundError:
                lost += self.store.missing(lacking)
        return tuple(lost)

    def _receive(self, coming: Iterator[ChunkStream]) -> None:
        self.store.receive(self._while_open(coming))

    def _while_open(self, coming: Iterator[ChunkStream]) -> Iterator[ChunkStream]:
        for flow in coming:
            self._check_open()
            yield flow
        self._check_open()

    def give(self, parcel: BucketObject) -> None:
        """Uploads chunks to a bucket. Raises NotFoundError, InputError, DataError and UnavailableError."""
        write(parcel, self.fetch([one.chunk for one in parcel.slices]), self._bucket_hosts)

    def put_object(self, url: str, content: bytes) -> None:
        """Uploads an object to a bucket. Raises InputError and UnavailableError."""
        piece = ChunkSlice(chunk="", begin=0, size_bytes=len(content))
        whole = Chunk(hash="", data=content)
        write(BucketObject(url=url, slices=(piece,)), (whole,), self._bucket_hosts)

    def delete_draft(self, attempt_id: str) -> None:
        """Deletes the inputs of an attempt that does not read them any more. The results of the attempt
        stay. The call can be repeated."""
        self._placer.release(check_id(attempt_id), but_writable=True)
        self._uncollected = True

    def delete_attempt(self, attempt_id: str, *, keep: bool = False) -> None:
        """Deletes the files that were placed for this attempt alone, and the results of the attempt. The
        results stay if another rank of its gang uses the same folder. With `keep`, the chunks of the results
        are kept in the same way as chunks that were transferred to the farm. The call can be repeated."""
        work = self._records.find(AttemptRecord, f"{self._tenant}/{check_id(attempt_id)}")
        self._placer.release(attempt_id)
        if work is not None:
            self._delete_files(work, keep=keep)
        self._uncollected = True

    def _delete_files(self, work: AttemptRecord, *, keep: bool) -> None:
        mine = {work.uri, work.checkpoints} - self._of_others(work) - {""}
        if keep and work.uri in mine:
            self._keep(work.uri)
        for uri in mine:
            self._remove(uri)
        self._records.remove(work)

    def tidy(self) -> None:
        """Deletes empty folders. This function may be called only while no job of the tenant is running. Can
        be repeated."""
        if not self._uncollected:
            return
        self._uncollected = False
        mine = [one for one in self._records.all(AttemptRecord) if one.tenant == self._tenant]
        kept = {uri for one in mine for uri in (one.uri, one.checkpoints)}
        try:
            with self._placer.at_rest() as placed, acting_as(self._user):
                remove_empty(self._root, (kept | {one.uri for one in placed}) - {""})
        except BaseException:
            self._uncollected = True
            raise

    def _keep(self, uri: str) -> None:
        """Keeps the chunks of results as far as there is space, so that later jobs on the farm need fewer
        transfers."""
        with self._lock:
            tree, names = self._trees.get(uri, (None, frozenset[str]()))
        if tree is None or tree.size_bytes > min(_KEPT_BYTES, self.store.quota_bytes // 4):
            return
        lacking = self.store.missing(sorted(names))
        with suppress(
            GridmillError, OSError
        ):  # the disk is full, or the file has changed: it is transferred when a job needs it
            self._receive(flow_of(self._chunk(chunk, tree)) for chunk in lacking)

    def _remove(self, uri: str) -> None:
        self._scans.remove(uri)
        self._drop(uri)
        with acting_as(self._user):
            shutil.rmtree(below(self._root, uri), ignore_errors=True)

    def _drop(self, uri: str) -> None:
        """Deletes the cached information about the folders at this path and below it."""
        with self._lock:
            for tree_uri in [tree for tree in self._trees if f"{tree}/".startswith(f"{uri}/")]:
                del self._trees[tree_uri]

    def _of_others(self, work: AttemptRecord) -> set[str]:
        """Returns the folders that other attempts of the tenant also use, for example other ranks of a
        gang."""
        others = (
            one
            for one in self._records.all(AttemptRecord)
            if one.tenant == work.tenant and one.attempt_id != work.attempt_id
        )
        return {uri for one in others for uri in (one.uri, one.checkpoints)}


def _safe(uri: str) -> str:
    """Returns the path, or "" if the path is not safe, because requests with unsafe paths are refused."""
    try:
        check_path(uri)
    except UnsafePathError:
        return ""
    return uri
