"""Builds a folder from chunks below a root, either completely or not at all. The module also copies the
files of a version to a folder.

A copy of a version's files is independent: changes to it affect neither the version nor other copies.
"""

import errno
import fcntl
import os
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from gridmill import codec
from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.domain.frozen import dataclass
from gridmill.domain.storage_uri import below
from gridmill.errors import ConflictError, InputError, NotFoundError, UnsafePathError
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.durable import READ_ONLY, not_kept, put, sync
from gridmill.transfer.large_files import kept_as
from gridmill.transfer.paths import User, check_manifest, check_path, folder_below
from gridmill.transfer.space_by_owner import SpaceByOwner

_NO_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP}
_NO_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOutTree:
    """The record of a folder that was built from chunks, or that is about to be built. The record is written
    before the folder gets its name.

    `mark` contains the inode and the time of change (ns) of the folder, so that another folder at the same
    path can be recognised. `content` is the fingerprint of the folder's manifest. `owners` are the attempts
    that use the folder.
    """

    uri: str
    content: str
    owners: tuple[str, ...]
    mark: tuple[int, int] = (0, 0)
    writable: bool = False


class TreeCheckout:
    """Builds folders below a root from the chunks of a store. Several threads of one process may use this
    class at the same time, but several processes may not.

    Drafts and records are in the folder of the store. Drafts and records are not below the root, because
    jobs write there and could redirect them with a link. `drafts` is a separate folder for drafts. A
    separate folder for drafts is needed if the root is on another file system than the store. Folders and
    writable files get the owner `user`. `handing_over` is true if the store serves one folder and is deleted
    after this folder is built. With `handing_over`, writable files need not be copies.
    """

    def __init__(
        self,
        root: Path,
        store: ChunkStore,
        *,
        drafts: Path | None = None,
        user: User | None = None,
        handing_over: bool = False,
    ) -> None:
        """Deletes incomplete folders that a killed process left. Raises StorageError."""
        self._root, self._store, self._user = root, store, user
        self._handing_over = handing_over
        self._records = store.folder / "placed"
        self._drafts = drafts or store.drafts / "trees"
        self._lock = threading.Lock()
        self._busy: dict[str, tuple[threading.Lock, int]] = {}
        self._room = SpaceByOwner(store.quota_bytes)
        try:
            shutil.rmtree(self._drafts, ignore_errors=True)
            for folder in (root, self._records, self._drafts):
                folder.mkdir(exist_ok=True, parents=True, mode=0o700)
        except OSError as error:
            raise not_kept(error, root) from error

    def place(self, uri: str, manifest: Manifest, owner: str, *, writable: bool = False) -> tuple[str, ...]:
        """Builds the folder (or the single file) at `uri` for an attempt.

        If chunks are missing, the function returns them, pins all chunks for the attempt, and builds
        nothing. The caller must call this function again after the chunks have arrived. The built files are
        read-only, and are links to chunks if possible. With `writable`, the built files are new copies at
        each call. An older folder at the path is replaced. Raises ConflictError if another attempt uses the
        folder with other content. Raises UnsafePathError, InputError, CapacityError if the request exceeds
        the quota, UnavailableError while other owners use the space (see DiskRoom), and StorageError.
        """
        check_path(uri)
        check_manifest(manifest)
        wanted = CheckedOutTree(
            uri=uri, content=codec.fingerprint(manifest), owners=(owner,), writable=writable
        )
        try:
            with self._alone_at(uri):
                return self._place(wanted, manifest)
        except OSError as error:
            raise self._store.why_not_kept(error, below(self._root, uri)) from error

    def expect_early(self, uri: str, manifest: Manifest, owner: str, seconds: float) -> tuple[str, ...]:
        """Pins the content of a folder for an attempt that has not started yet, for `seconds`, and reserves
        space for the missing chunks, which are returned. Nothing is built. The pins end when the attempt
        uses the folder (`place`), and when anything else needs the space.

        Raises UnavailableError if there is not enough space beside the data of running attempts,
        CapacityError, UnsafePathError, InputError and StorageError.
        """
        check_path(uri)
        check_manifest(manifest)
        sizes, store = _sizes_of(manifest), self._store
        try:
            with self._lock:
                if owner in store.pinned():
                    return ()  # the attempt is starting, and its own transfer sends what is missing
                self._room.check_beside({**store.early_sizes(), **sizes}, store.pinned())
                if store.disk is not None:
                    store.disk.promise(store.name, _early(owner), uri, sizes, early=True)
                store.pin_early(owner, uri, sizes, seconds)
            lacking = store.expect(manifest)
        except OSError as error:
            raise store.why_not_kept(error, below(self._root, uri)) from error
        if not lacking and store.disk is not None:
            store.disk.arrived(store.name, _early(owner), uri)
        return lacking

    def end_early(self, owner: str) -> None:
        """Ends the early pins of an attempt that does not start here, or that has started. May be
        repeated."""
        self._store.unpin_early(owner)
        if self._store.disk is not None:
            self._store.disk.forget(self._store.name, _early(owner))

    @contextmanager
    def _alone_at(self, uri: str) -> Iterator[None]:
        """Takes the lock for one path. Folders at other paths can be built at the same time."""
        with self._lock:
            lock, users = self._busy.get(uri, (threading.Lock(), 0))
            self._busy[uri] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._busy.pop(uri)
                if users > 1:
                    self._busy[uri] = lock, users - 1

    @contextmanager
    def at_rest(self) -> Iterator[tuple[CheckedOutTree, ...]]:
        """Yields the folders that were built and are not released. Inside the `with` block, no folder is
        added or removed. Raises OSError."""
        with self._lock:
            yield self.placed()

    def placed(self) -> tuple[CheckedOutTree, ...]:
        """Returns the folders that were built and are not released. Raises OSError."""
        return tuple(
            codec.decode(path.read_bytes(), CheckedOutTree)
            for path in self._records.iterdir()
            if path.suffix == ".json"
        )

    def started(self, owner: str) -> None:
        """Ends the wait of an attempt that has received all its folders. The attempt is running, and its
        folders stay until they are released."""
        with self._lock:
            self._room.waits_no_more(owner)

    def release(self, owner: str, *, but_writable: bool = False) -> None:
        """Releases the folders of an attempt.

        Folders that only this attempt uses are deleted, and their chunks may be evicted. With
        `but_writable`, folders that the attempt may have changed are kept. May be repeated. Raises
        StorageError.
        """
        self.end_early(owner)
        try:
            with self._lock:
                self._let_go(owner, but_writable=but_writable)
                self._room.give_back(owner)
        except OSError as error:
            raise not_kept(error, self._root) from error

    def _let_go(self, owner: str, *, but_writable: bool = False) -> None:
        for placed in self.placed():
            if owner in placed.owners and not (but_writable and placed.writable):
                self._release(placed, owner)
        self._store.unpin(owner)
        if self._store.disk is not None:
            self._store.disk.forget(self._store.name, owner)

    def _release(self, placed: CheckedOutTree, owner: str) -> None:
        if others := tuple(name for name in placed.owners if name != owner):
            self._write(replace(placed, owners=others))
            return
        if self._mark(placed.uri)[0] == placed.mark[0]:
            self._take_away(placed.uri)
        self._record(placed.uri).unlink(missing_ok=True)

    def _place(self, wanted: CheckedOutTree, manifest: Manifest) -> tuple[str, ...]:
        with self._lock:
            if self._shares(wanted):
                self._room.waits_no_more(wanted.owners[0])
                return ()
            self._reserve(wanted, manifest)
        if lacking := self._store.expect(manifest):
            return lacking
        self._make(wanted, manifest)
        if self._store.disk is not None:
            self._store.disk.arrived(self._store.name, wanted.owners[0], wanted.uri)
        return ()

    def _shares(self, wanted: CheckedOutTree) -> bool:
        """Returns whether the wanted folder exists already. If the folder exists, it now belongs to this
        owner too. Raises ConflictError."""
        (owner,) = wanted.owners
        overlapping = [placed for placed in self.placed() if _overlap(placed.uri, wanted.uri)]
        same = next((placed for placed in overlapping if self._is(placed, wanted)), None)
        if same is None:
            self._refuse_used(overlapping, owner)
        elif owner not in same.owners:
            self._write(replace(same, owners=(*same.owners, owner)))
        return same is not None

    def _is(self, placed: CheckedOutTree, wanted: CheckedOutTree) -> bool:
        """Returns whether the folder exists unchanged and has the wanted content."""
        wished = (wanted.uri, wanted.content, False, False)
        existing = (placed.uri, placed.content, placed.writable, wanted.writable)
        return existing == wished and self._mark(placed.uri) == placed.mark

    def _refuse_used(self, checked_out_trees: Iterable[CheckedOutTree], owner: str) -> None:
        for placed in checked_out_trees:
            others = [name for name in placed.owners if name != owner]
            if others and self._mark(placed.uri)[0] == placed.mark[0]:
                raise ConflictError(
                    f"{others[0]} uses {placed.uri} with other content",
                    hint="Wait until that attempt ends, or use another path.",
                )

    def _reserve(self, wanted: CheckedOutTree, manifest: Manifest) -> None:
        """Reserves space, so that no chunk of the folder is evicted. Raises CapacityError, and
        UnavailableError (see DiskRoom)."""
        sizes = _sizes_of(manifest)
        (owner,), uri = wanted.owners, wanted.uri
        if self._store.disk is not None:
            # ended first, because the same bytes would otherwise be reserved twice
            self._store.disk.arrived(self._store.name, _early(owner), uri)
            self._store.disk.promise(self._store.name, owner, uri, sizes)
        gone = self._room.left_over(owner, uri, sizes)
        for other in self._room.take(owner, uri, sizes, self._store.pinned()):
            self._let_go(other)
        self._store.pin(owner, sizes, instead_of=gone)
        self._store.unpin_early(owner, uri)

    def _make(self, wanted: CheckedOutTree, manifest: Manifest) -> None:
        if wanted.writable and not self._handing_over:
            self._store.take_room(manifest.size_bytes)
        draft = self._drafts / uuid4().hex
        try:
            self._draw(draft, manifest, writable=wanted.writable)
            status = os.lstat(draft)
            with self._lock:
                if self._shares(wanted):
                    return
                self._write(replace(wanted, mark=(status.st_ino, status.st_mtime_ns)))
                self._put(draft, wanted.uri)
        finally:
            _remove(draft)  # the draft, or the tree that was there before, because `_put` exchanges the two

    def _draw(self, draft: Path, manifest: Manifest, *, writable: bool) -> None:
        """Writes the folder to the disk as a draft."""
        # as text, because making a Path for each of many small files takes too long
        changed: dict[str, None] = {}
        if not manifest.files or manifest.files[0].path:
            self._folder(str(draft), changed)
        names = [kept_as(entry, manifest.chunk_bytes) for entry in manifest.files]
        uses = Counter(names) if self._handing_over else Counter[str]()
        for entry, name in zip(manifest.files, names, strict=True):
            path = f"{draft}/{entry.path}" if entry.path else str(draft)
            self._folder(path.rpartition("/")[0], changed)
            kept = self._store.content(name) if name else None
            _check_size(self._store.size_of(name) if name else 0, entry)
            linked = kept is not None and (not writable or uses[name] == 1) and _link(kept, path)
            if not linked:
                self._copy(kept, path)
                changed[path] = None
            if writable or not linked:
                self._set_permissions(path, writable=writable)
        sync(list(changed))

    def _folder(self, folder: str, changed: dict[str, None]) -> None:
        if folder in changed or folder == str(self._drafts):
            return
        self._folder(folder.rpartition("/")[0], changed)
        os.mkdir(folder)
        if self._user is not None:
            os.chown(folder, *self._user)
        changed[folder] = None

    def _copy(self, kept: str | None, path: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if kept is not None:
                with open(kept, "rb") as source:
                    _append(source.fileno(), descriptor)
        finally:
            os.close(descriptor)

    def _set_permissions(self, path: str, *, writable: bool) -> None:
        os.chmod(path, 0o644 if writable else READ_ONLY)
        if writable:
            os.utime(path)
            if self._user is not None:
                os.chown(path, *self._user)

    def _put(self, draft: Path, uri: str) -> None:
        above, _, name = uri.rpartition("/")
        with folder_below(self._root, above, make=True, user=self._user) as folder:
            put(draft, folder, name)
            os.fsync(folder)

    def _take_away(self, uri: str) -> None:
        above, _, name = uri.rpartition("/")
        trash = self._drafts / uuid4().hex
        with suppress(FileNotFoundError, NotFoundError), folder_below(self._root, above) as folder:
            os.rename(name, trash, src_dir_fd=folder)
        _remove(trash)

    def _mark(self, uri: str) -> tuple[int, int]:
        """Returns the inode and the time of change of the file at the path. Returns zeros if there is no
        file, or if the path contains a link."""
        above, _, name = uri.rpartition("/")
        with (
            suppress(FileNotFoundError, NotFoundError, UnsafePathError),
            folder_below(self._root, above) as folder,
        ):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return status.st_ino, status.st_mtime_ns
        return 0, 0

    def _record(self, uri: str) -> Path:
        return self._records / f"{sha256(uri.encode()).hexdigest()}.json"

    def _write(self, placed: CheckedOutTree) -> None:
        path = self._record(placed.uri)
        draft = path.with_suffix(".new")
        draft.write_bytes(codec.encode(placed))
        sync([draft])
        draft.rename(path)


def _sizes_of(manifest: Manifest) -> dict[str, int]:
    """Returns the sizes in bytes of the content of a folder, by the names that the store uses (`kept_as`)."""
    sizes = {kept_as(entry, manifest.chunk_bytes): entry.size_bytes for entry in manifest.files}
    sizes.pop("", None)
    return sizes


def _early(owner: str) -> str:
    """Returns the name under which the disk reserves space for an attempt that has not started yet."""
    return f"{owner}+early"


def _overlap(one: str, other: str) -> bool:
    """Returns whether the two paths are equal or one of them contains the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _link(kept: str, path: str) -> bool:
    try:
        os.link(kept, path)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def _check_size(size_bytes: int, entry: FileEntry) -> None:
    if size_bytes != entry.size_bytes:
        raise InputError(
            f"its chunks are {size_bytes} bytes, not the announced {entry.size_bytes}",
            place=entry.path,
        )


def _append(source: int, target: int) -> None:
    """Copies the content of the file. If the kernel can make the copy, the kernel makes it."""
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
        while data := os.read(source, 1 << 20):
            _write_all(target, data)


def _write_all(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


def _remove(path: Path) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


COPIED_BYTES = 64 << 20
COPIED_FILES = 1_000
"""Files of a version up to this number and size are copied, starting with the smallest files. The copies
take at most some tenths of a second."""
_CLONE = 0x40049409
"""FICLONE of linux/fs.h."""


def hand_tree(source: Path, target: Path) -> None:
    """Makes the folder `target` with all content of `source`, in the way that `hand_files` describes. Raises
    OSError."""
    entries = list(_walk(source, ""))
    target.mkdir(parents=True, exist_ok=True)
    for path, entry in entries:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target / path)
        elif entry.is_dir():
            (target / path).mkdir()
    plain = ((path, entry) for path, entry in entries if entry.is_file(follow_symlinks=False))
    hand_files((entry.path, os.path.join(target, path)) for path, entry in plain)


def hand_files(files: Iterable[tuple[str, str]]) -> None:
    """For each pair, makes a file at the second path with the same content as the file at the first path.

    Small files are copied, and the copies belong to the reader. Large files are copied too if the file
    system can copy without writing (XFS, Btrfs). On other file systems, large files become read-only hard
    links to the files of the version. If hard links are not allowed (to another user's files at a farm, or
    to another disk), large files become symbolic links. Therefore no job waits for large copies. Raises
    OSError.
    """
    wanted = [(os.stat(source), source, target) for source, target in files]
    wanted.sort(key=lambda one: one[0].st_size)
    left, clones = COPIED_BYTES, True
    for number, (status, source, target) in enumerate(wanted):
        left -= status.st_size
        if left >= 0 and number < COPIED_FILES:
            shutil.copyfile(source, target)
        elif not clones or not (clones := clone(source, target)):
            _name(source, target)
            continue
        os.chmod(target, stat.S_IMODE(status.st_mode))


def clone(source: str, target: str) -> bool:
    """Makes a copy that shares its blocks with the source until one of the two files is written. Returns
    False if the file system does not support such copies."""
    with open(source, "rb") as one, open(target, "xb") as other, suppress(OSError):
        fcntl.ioctl(other.fileno(), _CLONE, one.fileno())
        return True
    os.unlink(target)
    return False


def _name(source: str, target: str) -> None:
    with suppress(OSError):
        return os.link(source, target)
    return os.symlink(source, target)


def may_share(sizes_bytes: int, files: int) -> bool:
    """Returns whether a version of this size may be given to the job as files that other readers share."""
    return sizes_bytes > COPIED_BYTES or files > COPIED_FILES


def is_small(source: Path) -> bool:
    """Returns whether the version is so small that its files are copied. Raises OSError."""
    entries = (entry for _, entry in _walk(source, ""))
    return _are_small([one.stat().st_size for one in entries if one.is_file(follow_symlinks=False)])


def _are_small(sizes: list[int]) -> bool:
    return len(sizes) <= COPIED_FILES and sum(sizes) <= COPIED_BYTES


def _walk(folder: Path, below: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Yields the files and folders below `folder`. Each folder comes before its content. Python's cache
    files are skipped, because they are not part of a version."""
    with os.scandir(folder / below) as found:
        for entry in found:
            if entry.name == "__pycache__":
                continue
            path = os.path.join(below, entry.name)
            yield path, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder, path)
