"""A storage root in a folder, with the code bundles of one home. The storage root implements the interface
`Storage` on a file system.

The folders of a pipeline below a storage root belong permanently to the first record store that runs the
pipeline there.

This module also finds the files that a source names: paths, globs, and `package://NAME/PATH`.
"""

import glob
import os
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from errno import EEXIST, ENOTEMPTY
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from shutil import disk_usage, rmtree
from socket import gethostname
from uuid import uuid4

from gridmill.codec import decode
from gridmill.domain.artifact import Artifact
from gridmill.domain.log_counts import ARRIVED_FOLDER, DELETED_FILE, ArrivedFiles, LogArrivals
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.domain.provenance import CodeFile, Provenance
from gridmill.domain.service_features import FeatureAnswer, FeatureQuestion
from gridmill.domain.service_log import request_log_uri
from gridmill.domain.source import Source
from gridmill.domain.storage_uri import below, path_below
from gridmill.domain.version_manifest import AliasMove, FileProblem, VerificationResult
from gridmill.errors import ConflictError, InputError, StorageError, UnavailableError, UnsafePathError
from gridmill.ports.disk import GOING
from gridmill.ports.storage import FileStat
from gridmill.storage.define_process import define
from gridmill.storage.file_hashes import SourceHashes, read_listing
from gridmill.storage.manifests import keep_manifest, next_number, note_move
from gridmill.storage.preflight_process import ask
from gridmill.storage.unpack import bundle_hash
from gridmill.transfer.contents import write_whole
from gridmill.transfer.verify import find_troubles, verify
from gridmill.transfer.write_batch import WriteBatch

PACKAGE = "package://"


def describe_source(source: Source, folder: str) -> tuple[FileStat, ...]:
    """Returns the files on this machine that the source names, each of them once, sorted by path. Relative
    paths are relative to `folder`.

    Raises InputError if a path or a glob matches no file (with similar names as the hint), and
    UnsafePathError if a `package://` path leaves its package.
    """
    names: dict[str, str] = {}
    for local_path in source.local_paths:
        for path in _files(local_path, folder):
            names.setdefault(path, _name(local_path, path, folder))
    return tuple(_stat(path, names[path]) for path in sorted(names))


def _name(written: str, path: str, folder: str) -> str:
    """Returns the path as the source names it, independent of the location of the pipeline's folder or of
    the package."""
    if written.startswith(PACKAGE):
        package = written.removeprefix(PACKAGE).partition("/")[0]
        return f"{PACKAGE}{package}/{os.path.relpath(path, _in_package(f'{PACKAGE}{package}/.'))}"
    return path if os.path.isabs(written) else os.path.relpath(path, os.path.abspath(folder))


def _files_of_log(record: Path) -> ArrivedFiles:
    with suppress(OSError, InputError):
        return decode(record.read_bytes(), ArrivedFiles)
    return ArrivedFiles()


def _files(written: str, folder: str) -> Iterator[str]:
    path = _absolute(written, folder)
    if os.path.isdir(path):
        raise InputError(
            f"{written!r} is a folder", hint=f"Name the files in it, for example {written}/*.csv."
        )
    if os.path.exists(path):
        if not os.path.isfile(path):
            raise InputError(
                f"{written!r} is a pipe, a socket or a device, not a file",
                hint="Write the data to a file, and name that file in the source.",
            )
        yield path
    elif not glob.has_magic(path):
        raise _missing(written, path)
    else:
        paths = [match for match in glob.glob(path, recursive=True) if os.path.isfile(match)]
        if not paths:
            raise _missing(written, path)
        yield from _once(paths, path)


def _once(matches: Sequence[str], pattern: str) -> Iterator[str]:
    """Yields the files that a glob matches, each of them once. If a file and links to this file match, the
    file is yielded under its own name.

    Links in the path before the first `*` do not count, because they are in the paths of all matching files.
    """
    above = next(str(parent) for parent in Path(pattern).parents if not glob.has_magic(str(parent)))
    plain, folders = os.path.realpath(above), dict[str, str]()
    real = {match: _real(match, folders) for match in matches}

    def order(match: str) -> tuple[bool, str]:
        return real[match] != os.path.join(plain, match[len(above) :].lstrip("/")), match

    seen: set[str] = set()
    for match in sorted(matches, key=order):
        if real[match] not in seen:
            seen.add(real[match])
            yield match


def _real(path: str, folders: dict[str, str]) -> str:
    """Returns the path without links. `folders` caches the results for folders, because many files are in
    the same folder."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)


def _absolute(written: str, folder: str) -> str:
    if written.startswith(PACKAGE):
        return _in_package(written)
    if "://" in written:
        scheme = written.partition("://")[0]
        raise InputError(
            f"{written!r}: the scheme {scheme}:// is not supported",
            hint=f"Use a file path, {PACKAGE}, http(s)://, s3:// or gs://, or for a database `sql`.",
        )
    if "\0" in written or not written:
        raise InputError(f"{written!r} is not a path")
    return os.path.normpath(os.path.join(os.path.abspath(folder), written))


def _in_package(written: str) -> str:
    name, _, inside = written.removeprefix(PACKAGE).partition("/")
    if not name.isidentifier() or not inside:
        raise InputError(f"{written!r} is not of the form {PACKAGE}NAME/PATH")
    if ".." in PurePosixPath(inside).parts or inside.startswith("/"):
        raise UnsafePathError(f"{written!r} leaves the package", hint="Name a file inside the package.")
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{written!r}: no Python package {name!r} is installed", hint=f"pip install {name}")
    return os.path.join(next(iter(spec.submodule_search_locations)), inside)


def _missing(written: str, path: str) -> InputError:
    """Returns the error for a path that does not exist. The hint of the error lists names in the deepest
    existing folder of the path."""
    parent = Path(path).parent
    while not parent.is_dir():
        parent = parent.parent
    wanted = Path(path).relative_to(parent).parts[0]
    if os.path.islink(path):
        return InputError(
            f"source {written!r} is a link to {os.readlink(path)!r}, which does not exist",
            hint="Change the link to an existing file, or name that file.",
        )
    what = "matches no file" if glob.has_magic(path) else "does not exist"
    return InputError(f"source {written!r} {what}", hint=_near(parent, wanted))


def _near(path: Path, wanted: str) -> str:
    try:
        names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    close = get_close_matches(wanted, names, n=3)
    if close:
        return f"{path} contains {' and '.join(close)}."
    if not names:
        return f"{path} is empty."
    more = ", ..." * (len(names) > 5)
    return f"{path} contains {', '.join(names[:5])}{more}, but not {wanted}."


def _stat(path: str, name: str) -> FileStat:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=path) from error
    return FileStat(
        path=path,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        name=name,
    )


CLAIMS = "owners"


def claim(root: Path, pipeline: str, owner: str, home: str) -> None:
    """Claims the folders of the pipeline for `owner`, which is the mark of a record store. `home` is the
    path of the store's home, for messages. The call can be repeated.

    A folder with the name of the owner is renamed to its final place. If several processes rename a folder
    to this place, exactly one of them succeeds, on any file system. Raises ConflictError if another record
    store has the claim, and UnavailableError.
    """
    place = root / CLAIMS / pipeline
    try:
        current_owner = (
            _owner(place) or _made(place, f"{owner}\n{home} on {socket.gethostname()}\n") or _owner(place)
        )
    except OSError as error:
        raise UnavailableError(
            f"cannot write to the storage root: {error.strerror}", place=str(place)
        ) from error
    mark, _, where = current_owner.partition("\n")
    if mark != owner:
        mine = where.strip().rpartition(" on ")[0] == home
        raise ConflictError(
            f"pipeline {pipeline!r} of another home ({where.strip()}) already uses this storage root",
            hint="That home had the same path as this one: `gridmill recover` restores its records here."
            if mine
            else "Rename one of the pipelines, or set GRIDMILL_ROOT to another folder. If that home was "
            f"deleted, run: rm -r {place}",
        )


def _owner(place: Path) -> str:
    try:
        return (place / "owner").read_text()
    except FileNotFoundError:
        return ""


def _made(place: Path, owner: str) -> str:
    """Returns the owner that was written, or an empty text if another process wrote its owner first."""
    draft = place.with_name(f".{place.name}.{uuid4().hex}")
    draft.mkdir(parents=True)
    try:
        (draft / "owner").write_text(owner)
        draft.rename(place)
    except OSError as error:
        if error.errno not in (EEXIST, ENOTEMPTY):
            raise
        return ""
    finally:
        rmtree(draft, ignore_errors=True)
    return owner


_AREAS = ("sinks", "datasets", "models", "predictions", "files", "checkpoints", "manifests")
"""The folders below the storage root whose paths contain the names of attempts:
AREA/PIPELINE/JOB/ATTEMPT."""


def runs_that_left_files(root: Path, pipeline: str) -> Iterator[int]:
    """Yields the numbers of those runs of a pipeline whose attempts left files below the storage root, in
    any order."""
    run = re.compile(rf"\.?{re.escape(pipeline)}-(\d+)\.")
    for area in _AREAS:
        for job in _folders(root / area / pipeline):
            with suppress(OSError):
                for name in os.listdir(job):
                    if match := run.match(name):
                        yield int(match[1])


def _folders(path: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (Path(entry.path) for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))


_HASH = re.compile("[0-9a-f]{64}")
SHARED_BUNDLES = "bundles"
"""The folder below the storage root that contains code for the pods of other machines. If a code bundle is
missing in this folder, it is copied again."""


class StorageRoot:
    """A storage root below `folder` for tables, models and files. Code bundles are stored as
    `bundles/<hash>.tar.gz`.

    The class is thread-safe. Files become visible only when they are complete.
    """

    def __init__(self, folder: Path, bundles: Path) -> None:
        self._folder = folder
        self._bundles = bundles
        self._contents = SourceHashes(bundles.parent / "cache" / "contents")
        self._manifests = WriteBatch()
        self._one_by_one = False

    @property
    def location(self) -> str:
        """Returns the path of the storage root in the form that jobs get."""
        return str(self._folder)

    @property
    def bundles_location(self) -> str:
        """Returns the path of the folder with code bundles."""
        return str(self._bundles)

    def path(self, uri: str) -> Path:
        """Returns the path of a URI, which is relative to the storage root.

        Raises UnsafePathError if the path is empty or absolute, contains `..`, or leaves the storage root
        through a link.
        """
        path = below(self._folder, uri)
        if not _real_root(path).is_relative_to(_real_root(self._folder)):
            raise UnsafePathError(
                f"{uri!r} is outside the storage root {self._folder}: it leads through a link"
            )
        return path

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        """Returns the files that a source names now; see storage.sources."""
        return describe_source(source, folder)

    def hash_sources(self, files: tuple[FileStat, ...], key: str) -> tuple[FileStat, ...]:
        """See Storage."""
        return self._contents.hash_all(files, key)

    def code_files(self, bundle: str) -> tuple[CodeFile, ...]:
        """See Storage."""
        return read_listing(self._bundle_path(bundle))

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """Returns the problems that a check of the data finds in jobs; see `storage.preflight_process`."""
        return ask(question)

    def define_features(self, question: FeatureQuestion) -> FeatureAnswer:
        """See Storage."""
        return define(question)

    def remove(self, uri: str) -> None:
        """Deletes a folder or a file below the storage root. If the path is a link, the link is deleted, but
        not its target. If the path does not exist, the function does nothing.

        Raises UnsafePathError for a path outside the storage root and for the storage root itself, and
        StorageError.
        """
        path = below(self._folder, uri)
        if not _real_root(path.parent).is_relative_to(_real_root(self._folder)):
            raise UnsafePathError(
                f"{uri!r} is outside the storage root {self._folder}: it leads through a link"
            )
        try:
            _remove(path)
        except OSError as error:
            raise StorageError(f"cannot remove it: {error.strerror}", place=str(path)) from error

    def keep_manifest(
        self,
        version: Artifact,
        listed: str,
        *,
        shared: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """See Storage."""
        write = write_whole if self._one_by_one else self._manifests.add
        keep_manifest(self._folder, version, listed, shared=shared, provenance=provenance, write=write)

    def next_number(self, name: str, number: int, attempt_id: str, *, first: bool) -> int:
        """See Storage."""
        return next_number(self._folder, name, number, attempt_id, first=first)

    def highest_run(self, pipeline: str) -> int:
        """See Storage."""
        return max(runs_that_left_files(self._folder, pipeline), default=0)

    def sync_manifests(self) -> None:
        """See Storage. After a failure, each manifest is written separately, to find out which manifests
        failed."""
        self._one_by_one = True
        self._manifests.place()
        self._one_by_one = False

    def drop_listed(self, listed: str) -> None:
        """See Storage."""
        with suppress(OSError):
            if os.path.lexists(path_below(str(self._folder), listed)):
                self.path(listed).unlink()

    def problems(self, version: Artifact) -> tuple[FileProblem, ...]:
        """See Storage."""
        return find_troubles(self._folder, version)

    def verify(self, versions: Iterable[Artifact]) -> Iterator[VerificationResult]:
        """See Storage."""
        read: dict[str, str] = {}
        yield from (verify(self._folder, version, read) for version in versions)

    def note_move(self, move: AliasMove) -> None:
        """See Storage."""
        note_move(self._folder, move)

    def claim(self, pipeline: str, owner: str) -> None:
        """See Storage."""
        claim(self._folder, pipeline, owner, str(self._bundles.parent))

    def has_left(self, folder: str, host: str) -> bool:
        """See Storage."""
        return host == gethostname() and not Path(folder).exists()

    def log_arrivals(self, service: str, writers: Iterable[str]) -> LogArrivals:
        """See Storage."""
        folder = below(self._folder, request_log_uri(service)) / ARRIVED_FOLDER
        found = {one: _files_of_log(folder / f"{one}.json") for one in writers}
        return LogArrivals(arrived=found, deleted=_files_of_log(folder / DELETED_FILE))

    def free_bytes(self) -> int:
        """Returns the number of bytes that can still be written. Raises StorageError."""
        place = self._folder
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            return disk_usage(place).free
        except OSError as error:
            raise StorageError(f"cannot read the free space: {error.strerror}", place=str(place)) from error

    def has_bundle(self, bundle: str) -> bool:
        """Returns whether the code bundle with this hash exists."""
        path = self._bundle_path(bundle)
        try:
            os.utime(path)  # marked as used now, because garbage collection goes by this time
        except OSError:
            return False
        return True

    def shared_bundle(self, bundle: str) -> str:
        """See Storage."""
        return str(self._folder / SHARED_BUNDLES / self._bundle_path(bundle).name)

    def share_bundle(self, bundle: str) -> None:
        """See Storage."""
        shared = Path(self.shared_bundle(bundle))
        try:
            if not shared.exists():
                write_whole(shared, self._bundle_path(bundle).read_bytes())
        except OSError as error:
            raise StorageError(f"cannot be shared: {error.strerror}", place=str(shared)) from error

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Stores a code bundle. Raises InputError if the content does not have this hash, and
        StorageError."""
        path = self._bundle_path(bundle)
        if path.exists():
            return
        if bundle_hash(data) != bundle:
            raise InputError(f"the code bundle is damaged: its hash is not {bundle}")
        write_whole(path, data)

    def _bundle_path(self, bundle: str) -> Path:
        if not _HASH.fullmatch(bundle):
            raise InputError(f"{bundle!r} is not the hash of a code bundle")
        return self._bundles / f"{bundle}.tar.gz"


def _real_root(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _remove(path_to_remove: Path) -> None:
    """Renames the folder first and then deletes it. If another process makes a new folder at the path in the
    meantime, for example the table of a sink, the new folder stays."""
    path = path_to_remove.with_name(f"{GOING}{path_to_remove.name}.{uuid4().hex}")
    try:
        path_to_remove.rename(path)
    except FileNotFoundError:
        return
    while path.is_dir() and not path.is_symlink():
        with suppress(FileNotFoundError):  # no error, because another process may delete the folder too
            rmtree(path)
    path.unlink(missing_ok=True)
