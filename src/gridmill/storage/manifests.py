"""Writes and reads the manifests of versions and the moves of aliases, which are stored below the storage
root.

The module also checks the manifests in an archive, so that exported and imported files are equal to the
files that were made.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.artifact import LATEST, Artifact, ArtifactKind
from gridmill.domain.provenance import Provenance
from gridmill.domain.storage_uri import below, path_below
from gridmill.domain.version_manifest import (
    MANIFEST_FORMAT,
    MANIFESTS,
    AliasMove,
    FileProblem,
    FileProblemKind,
    StoredFile,
    VersionContents,
    VersionManifest,
    manifest_uri,
    moves_uri,
    problem_text,
)
from gridmill.errors import ConflictError, InputError, NotFoundError, StorageError
from gridmill.transfer.contents import (
    NOTHING,
    list_contents,
    place_of,
    read_contents,
    read_manifest,
    write_whole,
    written,
)
from gridmill.transfer.verify import is_foreign_file, seal
from gridmill.version import __version__


def keep_manifest(
    root: Path,
    version: Artifact,
    listed: str,
    *,
    shared: bool = False,
    provenance: Provenance | None = None,
    write: Callable[[Path, bytes], None] = write_whole,
) -> None:
    """See ports.storage.Storage. The function `write` writes the bytes, immediately or later."""
    contents = read_contents(below(root, listed)) if listed else None
    if not version.output.uri:
        contents = NOTHING
    if listed and shared:
        folder = below(root, version.output.uri)
        contents = list_contents(folder, contents or NOTHING)
        seal(folder, contents)
    manifest = new_manifest(version, contents)
    write(_place_of(root, version), encode(replace(manifest, provenance=provenance)))


def new_manifest(version: Artifact, contents: VersionContents | None) -> VersionManifest:
    """Returns the manifest of a new version, in the format of this release."""
    return VersionManifest(format=MANIFEST_FORMAT, gridmill=__version__, version=version, contents=contents)


def write_manifest(root: Path, manifest: VersionManifest) -> None:
    """Writes a manifest and renames it at the end, so that it is either complete or does not exist. Raises
    StorageError."""
    write_whole(_place_of(root, manifest.version), encode(manifest))


def _place_of(root: Path, version: Artifact) -> Path:
    return below(root, manifest_uri(version.name, version.number))


def next_number(root: Path, name: str, number: int, attempt_id: str, *, first: bool) -> int:
    """See ports.storage.Storage."""
    # one lookup for a usual job: the folder of a new name, or the manifest of the number of a known name
    uri = f"{MANIFESTS}/{name}" if first else manifest_uri(name, number)
    if not os.path.exists(path_below(str(root), uri)):
        return number
    highest = max(numbers_used(root, name), default=0)
    if highest < number:
        return number
    try:
        there = decode(below(root, manifest_uri(name, highest)).read_bytes(), VersionManifest).version
    except (OSError, InputError):
        return highest + 1
    # the number is used again, because an earlier commit of the same version failed
    if there.attempt_id == attempt_id:
        return highest
    output = there.output.uri
    unmade = highest == number and output and not os.path.lexists(below(root, output))
    return number if unmade else highest + 1


def numbers_used(root: Path, name: str) -> frozenset[int]:
    """Returns the numbers of versions that occur in manifests of `name` or in moves of its aliases."""
    try:
        files = os.listdir(below(root, f"{MANIFESTS}/{name}"))
    except OSError:
        return frozenset()
    numbers = {int(one.removesuffix(".json")) for one in files if one.removesuffix(".json").isdecimal()}
    for move in read_moves(root, name):
        for version in (move.before, move.after):
            number = version.rpartition("@")[2]
            numbers |= {int(number)} if number.isdecimal() else set()
    return frozenset(numbers)


def read_moves(root: Path, name: str) -> tuple[AliasMove, ...]:
    """Returns the moves of the aliases of `name`, with the oldest move first. Lines that cannot be read are
    skipped."""
    try:
        lines = below(root, moves_uri(name)).read_bytes().splitlines()
    except OSError:
        return ()
    moves: list[AliasMove] = []
    for line in lines:
        with suppress(InputError):
            moves.append(decode(line, AliasMove))
    return tuple(moves)


def note_move(root: Path, move: AliasMove) -> None:
    """See ports.storage.Storage."""
    path = below(root, moves_uri(move.name))
    try:
        descriptor = _open_to_append(path)
        try:
            os.write(descriptor, encode(move) + b"\n")  # one write, so that a line is complete or missing
            # only moves that users made are synced, because the latest version is known from the runs
            if move.alias != LATEST:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", place=str(path)) from error


def _open_to_append(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


FILES = "files"


def homes(versions: Iterable[Artifact]) -> tuple[str, ...]:
    """Returns the folders of an archive that may contain manifests."""
    return tuple(dict.fromkeys(f"{MANIFESTS}/{version.name}/" for version in versions))


def manifests_of(versions: Iterable[Artifact], root: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the manifests for an archive, with their names in the archive. The manifests contain no file
    times, because the unpacked files get other times. Therefore the same project gives the same archive."""
    for one in _existing(versions):
        manifest = _manifest(one, root)
        if manifest is not None:
            if manifest.contents is not None:
                timeless, rejects = (
                    tuple(replace(each, mtime_ns=0) for each in files)
                    for files in (manifest.contents.files, manifest.contents.rejects)
                )
                manifest = replace(
                    manifest, contents=replace(manifest.contents, files=timeless, rejects=rejects)
                )
            yield manifest_uri(one.name, one.number), encode(manifest)


def check_archived(versions: Iterable[Artifact], root: Path, hashes: Mapping[str, str]) -> None:
    """Raises ConflictError if a version differs from its manifest below `root`. `hashes` contains the hashes
    of the files in an archive, by their names in the archive."""
    for one in _existing(versions):
        manifest = _manifest(one, root)
        problems = tuple(_troubles(one, manifest.contents if manifest else None, hashes))
        if problems:
            raise ConflictError(
                f"{one.id} was changed after it was made: {problem_text(problems)}",
                hint=f"On the grid that made it, `gridmill verify {one.id}` lists all changed files. Then "
                f"run its pipeline again or remove it (`gridmill remove {one.kind} {one.id}`).",
            )


def renew_manifests(versions: Iterable[Artifact], folder: Path, hashes: Mapping[str, str]) -> None:
    """Sets the file times in the manifests below `folder`, where an archive was unpacked, to the times of
    the unpacked files. If an archive from an older release has no manifests, new manifests are written.
    No manifests are written for tables, because the versions of a table share files."""
    for one in _existing(versions):
        manifest = _manifest(one, folder) or new_manifest(one, _made_of(one, hashes))
        if manifest.contents is not None and one.output.uri:
            data = below(folder / FILES, one.output.uri)
            dated = tuple(_dated(data, each) for each in manifest.contents.files)
            contents = replace(manifest.contents, files=dated)
            seal(data, contents)
            manifest = replace(manifest, contents=contents)
        write_manifest(folder, manifest)


def _existing(versions: Iterable[Artifact]) -> Iterator[Artifact]:
    return (version for version in versions if not version.removed)


def _manifest(version: Artifact, root: Path) -> VersionManifest | None:
    try:
        return read_manifest(root, version)
    except NotFoundError:
        return None


def _troubles(
    version: Artifact, contents: VersionContents | None, hashes: Mapping[str, str]
) -> Iterator[FileProblem]:
    if contents is None or not version.output.uri:
        return
    files_by_name = {_name(version, one.path): one for one in contents.files}
    for name, one in files_by_name.items():
        if name not in hashes:
            yield FileProblem(path=one.path, kind=FileProblemKind.MISSING)
        elif hashes[name] != one.sha256:
            yield FileProblem(path=one.path, kind=FileProblemKind.CHANGED)
    if version.kind != ArtifactKind.SINK:
        prefix = _name(version, "")
        for name in hashes:
            if name.startswith(prefix) and name not in files_by_name and not is_foreign_file(name):
                yield FileProblem(path=name.removeprefix(prefix), kind=FileProblemKind.EXTRA)


def _name(version: Artifact, path: str) -> str:
    """Returns the name of a manifest in an archive."""
    folder = f"{FILES}/{version.output.uri}"
    return place_of(Path(folder), path) if path else f"{folder}/"


def _made_of(version: Artifact, hashes: Mapping[str, str]) -> VersionContents | None:
    if version.kind == ArtifactKind.SINK:
        return None
    prefix = _name(version, "")
    names = sorted(name for name in hashes if version.output.uri and name.startswith(prefix))
    return VersionContents(
        files=tuple(
            StoredFile(path=written(name.removeprefix(prefix)), size_bytes=0, mtime_ns=0, sha256=hashes[name])
            for name in names
        )
    )


def _dated(data: Path, stored_file: StoredFile) -> StoredFile:
    status = os.lstat(place_of(data, stored_file.path))
    return replace(stored_file, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
