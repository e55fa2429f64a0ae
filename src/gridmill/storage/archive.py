"""Archives of projects. An archive is one zip file, and its manifest lists the hash and the size of every
file in it.

No file of an archive is visible before the complete archive was verified, and no file is written outside the
folder into which the archive is unpacked. The folder is locked while the archive is being unpacked.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO
from uuid import uuid4

from gridmill.codec import decode, encode
from gridmill.domain.amounts import MIB, show_bytes
from gridmill.domain.archive import ArchiveContents
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.frozen import dataclass
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import VersionManifest, manifest_uri
from gridmill.errors import ConflictError, InputError, NotFoundError, StorageError, UnsafePathError
from gridmill.storage.manifests import FILES, check_archived, manifests_of, renew_manifests
from gridmill.storage.manifests import homes as manifest_homes
from gridmill.transfer.durable import sync

STAGING = ".import-"
"""The prefix of the names of folders for unpacking, which are directly below the storage root."""


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """Makes a temporary folder below the root, which is deleted at the end of the `with` block. Raises
    OSError."""
    folder = root / f"{STAGING}{uuid4().hex}"
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(
            OSError
        ):  # some shared file systems have no locks: there a folder counts as used while it is young
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def is_left(folder: Path) -> bool:
    """Returns whether no process uses the folder, because the process that made it was killed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


_MANIFEST = "manifest.json"
_FILES, _BUNDLES = FILES, "bundles"
_CHUNK_BYTES = MIB
_MANIFEST_BYTES = 256 * MIB
"""The largest size of a manifest, which is read into memory completely. The manifest of 100,000 files takes
about 20 MiB."""
_ENCRYPTED = 0x1  # this bit in the flags of a ZIP entry means that the entry is encrypted
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that the same project gives the same archive


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEntry:
    """The hash and the size of one file in the archive."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveManifest:
    """The manifest of an archive: the records of the project, and the list of its files."""

    project: ArchiveContents
    files: Mapping[str, ArchiveEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedArchive:
    """A verified archive, unpacked in a folder below the root under which its files will be placed."""

    manifest: ArchiveManifest
    folder: Path
    root: Path

    @property
    def project(self) -> ArchiveContents:
        """Returns the records of the project."""
        return self.manifest.project

    def check_versions(self) -> None:
        """Compares the files of the versions with their manifests, and then updates the file times in the
        manifests to the times of the unpacked files.

        Raises ConflictError if a version was changed, and UnsafePathError.
        """
        hashes = {name: one.sha256 for name, one in self.manifest.files.items()}
        check_archived(self.project.artifacts, self.folder, hashes)
        renew_manifests(self.project.artifacts, self.folder, hashes)

    def check(self, uris: Iterable[str]) -> frozenset[str]:
        """Returns which of these folders already exist. Each existing folder is read, and must have the same
        files as the archive. This can take minutes. Raises ConflictError."""
        existing = [uri for uri in uris if below(self.root, uri).exists()]
        for uri in existing:
            self._check_same(uri, below(self.root, uri))
        return frozenset(existing)

    def place(self, uri: str, checked: frozenset[str]) -> None:
        """Moves the folder of a version to its final place, unless it is in `checked`. The function only
        renames folders.

        Raises ConflictError if the folder was made after the check.
        """
        target, staged = below(self.root, uri), below(self.folder / _FILES, uri)
        if target.exists():
            if uri not in checked:
                raise ConflictError(
                    f"{target} was made by another process during the import", hint="Import it again."
                )
        elif staged.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.rename(target)

    def place_manifest(self, version: Artifact) -> None:
        """Moves the manifest of a version to its final place. The function only renames files."""
        uri = manifest_uri(version.name, version.number)
        target, staged = below(self.root, uri), below(self.folder, uri)
        if staged.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            self._check_manifest(target, version)
            staged.replace(target)

    def _check_manifest(self, target: Path, version: Artifact) -> None:
        """Raises ConflictError if the existing manifest belongs to another version whose record was lost."""
        try:
            there = decode(target.read_bytes(), VersionManifest).version
        except (OSError, InputError):
            return
        if (there.run_id, there.attempt_id) != (version.run_id, version.attempt_id):
            raise ConflictError(
                f"{target} belongs to another {version.id}, for which this grid has no record",
                hint="`gridmill recover` restores that record. Import the archive into another grid.",
            )

    def _check_same(self, uri: str, target: Path) -> None:
        prefix = f"{_FILES}/{uri}/"
        inside = ((name, entry) for name, entry in self.manifest.files.items() if name.startswith(prefix))
        wanted = {name.removeprefix(prefix): entry.sha256 for name, entry in inside}
        hashes = {str(path.relative_to(target)): _hash(path) for path in _files(target)}
        if hashes != wanted:
            raise ConflictError(
                f"{target} already exists and differs from the archive",
                hint="If another grid uses this storage root, set another GRIDMILL_ROOT for this grid.",
            )

    def bundle(self, digest: str) -> bytes:
        """Returns the content of a code bundle."""
        return (self.folder / _BUNDLES / f"{digest}.tar.gz").read_bytes()


def write_archive(
    target: Path, project: ArchiveContents, root: Path, bundles: Path, check: Callable[[], None]
) -> int:
    """Writes the project with its files to an archive, and returns the size of the archive in bytes. The
    archive becomes visible when it is complete and `check` has raised no error.

    Raises StorageError, ConflictError if a file is deleted during the call, and InputError if there are
    links.
    """
    draft = target.with_name(f".{target.name}.{uuid4().hex}.draft")
    try:
        _check_whole(project, root)
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
            entries = {name: _add(archive, name, path) for name, path in _sources(project, root, bundles)}
            for name, content in manifests_of(project.artifacts, root):
                entries[name] = _add_bytes(archive, name, content)
            check_archived(project.artifacts, root, {name: one.sha256 for name, one in entries.items()})
            content = encode(ArchiveManifest(project=project, files=entries))
            archive.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), content)
        sync([draft])
        check()
        draft.replace(target)
    except FileNotFoundError as error:
        raise ConflictError(
            f"{error.filename} was deleted during the backup",
            hint="Wait until the runs of the project have ended, and repeat the backup.",
        ) from error
    except OSError as error:
        raise StorageError(f"the archive cannot be written: {error.strerror}", place=str(target)) from error
    finally:
        draft.unlink(missing_ok=True)
    return target.stat().st_size


def _check_whole(project: ArchiveContents, root: Path) -> None:
    """Raises StorageError if a version has missing files, because the archive would present the version as
    complete."""
    for artifact in project.artifacts:
        if artifact.removed or artifact.kind == ArtifactKind.SINK or not artifact.output.uri:
            continue  # the log of a table, not its folder, defines which files belong to a version
        wanted = artifact.output.size_bytes
        size_found = sum(path.stat().st_size for path in _files(below(root, artifact.output.uri)))
        if size_found < wanted:
            raise StorageError(
                f"{artifact.id} has only {show_bytes(size_found)} of {show_bytes(wanted)}: files are missing",
                hint=f"Remove it (`gridmill remove {artifact.kind} {artifact.id}`), and repeat the backup.",
                place=str(below(root, artifact.output.uri)),
            )


def _sources(project: ArchiveContents, root: Path, bundles: Path) -> Iterator[tuple[str, Path]]:
    for uri in project.uris:
        folder = below(root, uri)
        for path in _files(folder):
            yield f"{_FILES}/{uri}/{path.relative_to(folder).as_posix()}", path
    for digest in project.bundles:
        yield f"{_BUNDLES}/{digest}.tar.gz", bundles / f"{digest}.tar.gz"


def _files(folder: Path) -> list[Path]:
    """Returns all files below the folder, sorted. Raises InputError if there is a link, and
    FileNotFoundError."""
    if not folder.is_dir():
        raise FileNotFoundError(2, "the folder does not exist", str(folder))
    result = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    for path in result:
        if path.is_symlink():
            raise InputError(f"{path} is a link: archives cannot contain links")
    return result


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> ArchiveEntry:
    info = zipfile.ZipInfo(name, _EPOCH)
    with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
        return _copy(source, target)


def _add_bytes(archive: zipfile.ZipFile, name: str, content: bytes) -> ArchiveEntry:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return ArchiveEntry(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def _copy(source: IO[bytes], target: IO[bytes]) -> ArchiveEntry:
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
        target.write(chunk)
    return ArchiveEntry(sha256=digest.hexdigest(), size_bytes=size)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def unpacked(source: Path, root: Path) -> Iterator[UnpackedArchive]:
    """Verifies the archive and unpacks it into a temporary folder below the root, which is deleted at the
    end of the `with` block.

    Raises InputError if the archive is damaged, UnsafePathError, and StorageError.
    """
    try:
        _check_file(source)
        with zipfile.ZipFile(source) as archive, staging(root) as folder:
            _check_plain(archive, source)
            manifest = _manifest(archive, source)
            _check_room(manifest, folder)
            for name, entry in manifest.files.items():
                _unpack(archive, name, entry, folder)
            yield UnpackedArchive(manifest=manifest, folder=folder, root=root)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"the archive is damaged or incomplete: {error}", place=str(source)) from error
    except FileNotFoundError as error:
        raise NotFoundError(f"the archive {source} does not exist") from error
    except OSError as error:
        raise StorageError(f"the archive cannot be unpacked: {error.strerror}", place=str(source)) from error


def _check_file(source: Path) -> None:
    """Refuses devices and pipes, because reading them may never end."""
    if not stat.S_ISREG(source.stat().st_mode):
        raise InputError("this is not a file", place=str(source))


def _check_room(manifest: ArchiveManifest, folder: Path) -> None:
    wanted, free = sum(file.size_bytes for file in manifest.files.values()), shutil.disk_usage(folder).free
    if wanted > free:
        raise StorageError(
            f"the archive needs {show_bytes(wanted)}, but only {show_bytes(free)} are free",
            hint="Free some space (`gridmill clean` shows unused data), and import the archive again.",
            place=str(folder.parent),
        )


def _check_plain(archive: zipfile.ZipFile, source: Path) -> None:
    if any(info.flag_bits & _ENCRYPTED for info in archive.infolist()):
        raise InputError(
            "the archive is encrypted",
            hint="Remove the password of the archive, and import the archive again.",
            place=str(source),
        )


def _manifest(archive: zipfile.ZipFile, source: Path) -> ArchiveManifest:
    names = archive.namelist()
    if _MANIFEST not in names:
        raise InputError("this is not an archive of a Gridmill project", place=str(source))
    size = archive.getinfo(_MANIFEST).file_size
    if size > _MANIFEST_BYTES:
        raise InputError(
            f"the manifest has {show_bytes(size)}; the limit is {show_bytes(_MANIFEST_BYTES)}",
            place=str(source),
        )
    manifest = decode(archive.read(_MANIFEST), ArchiveManifest)
    if sorted(names) != sorted([_MANIFEST, *manifest.files]):
        raise InputError("the archive does not have the files that its manifest lists", place=str(source))
    homes = (*(f"{_FILES}/{uri}/" for uri in manifest.project.uris), f"{_BUNDLES}/")
    homes = (*homes, *manifest_homes(manifest.project.artifacts))
    for name in manifest.files:
        _check_name(name, homes)
    return manifest


def _check_name(name: str, homes: Sequence[str]) -> None:
    parts = PurePosixPath(name).parts
    odd = "\\" in name or "\0" in name or str(PurePosixPath(name)) != name
    if odd or ".." in parts or name.startswith("/") or not name.startswith(tuple(homes)):
        raise UnsafePathError(f"the archive has a file at a path that is not allowed: {name!r}")


def _unpack(archive: zipfile.ZipFile, name: str, entry: ArchiveEntry, folder: Path) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if archive.getinfo(name).file_size != entry.size_bytes:
        raise InputError(f"{name} does not have the size in the manifest", hint="Copy the archive again.")
    with archive.open(name) as source, path.open("wb") as target:
        if _copy(source, target) != entry:
            raise InputError(
                f"{name} is damaged: its hash is not the one in the manifest", hint="Copy the archive again."
            )
        target.flush()
        os.fsync(target.fileno())
