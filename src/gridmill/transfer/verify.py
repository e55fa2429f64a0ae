"""Verifies that the files of a version are equal to the files in its manifest."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import (
    FileProblem,
    FileProblemKind,
    StoredFile,
    VerificationResult,
    VersionContents,
    problem_text,
)
from gridmill.errors import DataError, GridmillError, NotFoundError
from gridmill.transfer.contents import (
    hash_all,
    list_paths,
    place_of,
    read_manifest,
    reading_errors,
    target_of,
)

SMALL_BYTES, SMALL_FILES = 16 << 20, 1000
"""A version up to this size is read completely at each check, which takes some hundredths of a second."""
_LITTER = ("/__pycache__/", "/.nfs")
"""Names of files that Python and NFS clients create beside files that they read."""


def seal(folder: Path, contents: VersionContents) -> None:
    """Removes the write permissions of the version's files. If the system refuses the change, the
    permissions stay as they are."""
    for file in contents.files:
        with suppress(OSError):
            place = place_of(folder, file.path)
            mode = os.lstat(place).st_mode
            if mode & 0o222:
                os.chmod(place, stat.S_IMODE(mode) & ~0o222)


def seal_again(root: str | Path, version: Artifact) -> None:
    """Removes the write permissions of a version's files again, because the files may have become writable.
    If the version has no list of files, the function does nothing."""
    contents = _contents(root, version)
    if contents is not None:
        seal(below(root, version.output.uri), contents)


def check_order(order: AttemptOrder, root: str | Path, say: Callable[[str], object]) -> AttemptOrder:
    """Checks the versions that the job reads, and the table to which the job adds rows.

    Raises DataError if a version was changed after it was made, and StorageError. If the previous version of
    an incremental dataset was changed, the dataset does not continue from it. The function reports the
    change, and the returned order of the job contains no previous version.
    """
    check_inputs(root, (entry.artifact for entry in order.inputs))
    earlier = tuple(entry.artifact for entry in order.earlier)
    if order.job.sink is not None:
        check_inputs(root, earlier)
    elif order.job.dataset is not None and order.job.dataset.incremental:
        for version in earlier:
            problems = find_troubles(root, version)
            if problems:
                say(
                    f"{version.id} was changed after it was made: {problem_text(problems)}; the job "
                    "executes again"
                )
                return replace(order, earlier=())
    return order


def check_inputs(root: str | Path, versions: Iterable[Artifact]) -> None:
    """Raises DataError if a version was changed after it was made, and StorageError."""
    for version in versions:
        problems = find_troubles(root, version)
        if problems:
            raise DataError(
                f"{version.id} was changed after it was made: {problem_text(problems)}",
                hint=f"`gridmill verify {version.id}` lists all such files. {repair_hint(version)}",
            )


def repair_hint(version: Artifact) -> str:
    """Returns the hint for a version that was changed."""
    pipeline = version.name.partition("/")[0]
    if version.kind != ArtifactKind.SINK:
        return f"Make a new version: `gridmill run FILE --force`, with the file of pipeline {pipeline!r}."
    return (
        f"Restore the files from a backup. Or run `gridmill remove sink {version.name} --force`, and then "
        f"run pipeline {pipeline!r} again: the table is loaded again from its source."
    )


def find_troubles(root: str | Path, version: Artifact, *, read_all: bool = False) -> tuple[FileProblem, ...]:
    """Returns the problems of the version's files, by path, or none if the version has no list of files.

    The function reads the content of each file whose time of change differs. For small versions, and with
    `read_all`, it reads the content of all files. Raises StorageError if a file cannot be read.
    """
    contents = _contents(root, version)
    return _compared(root, version, contents, read_all=read_all) if contents is not None else ()


def verify(root: str | Path, version: Artifact, read: dict[str, str]) -> VerificationResult:
    """Verifies the complete content of a version.

    `read` contains the hashes of files that were just read, by path, because the versions of a table share
    files. Raises only internal errors.
    """
    if not version.output.uri:
        return VerificationResult(version=version.id)
    try:
        manifest = read_manifest(root, version)
        if (manifest.version.attempt_id, manifest.version.fingerprint) != (
            version.attempt_id,
            version.fingerprint,
        ):
            return VerificationResult(version=version.id, problem="the manifest belongs to another version")
        if manifest.contents is None:
            return VerificationResult(
                version=version.id, problem="the version has no list of its files", known=False
            )
        problems = _compared(root, version, manifest.contents, read_all=True, read=read)
        problems += _differing_rejects(root, version, manifest.contents, read)
    except NotFoundError:
        return VerificationResult(version=version.id, problem="it has no manifest", known=False)
    except GridmillError as error:
        return VerificationResult(version=version.id, problem=str(error))
    files = (*manifest.contents.files, *manifest.contents.rejects)
    size = sum(file.size_bytes for file in files)
    return VerificationResult(version=version.id, files=len(files), size_bytes=size, file_problems=problems)


def _contents(root: str | Path, version: Artifact) -> VersionContents | None:
    try:
        return read_manifest(root, version).contents if version.output.uri else None
    except NotFoundError:
        return None


def _compared(
    root: str | Path,
    version: Artifact,
    contents: VersionContents,
    *,
    read_all: bool,
    read: dict[str, str] | None = None,
) -> tuple[FileProblem, ...]:
    folder = below(root, version.output.uri)
    small = (
        len(contents.files) <= SMALL_FILES and sum(file.size_bytes for file in contents.files) <= SMALL_BYTES
    )
    extra = () if version.kind == ArtifactKind.SINK else _extra(folder, contents)
    differing = _differing(folder, contents, read_all or small, {} if read is None else read)
    problems = (*differing, *_differing_links(folder, contents), *extra)
    return tuple(sorted(problems, key=lambda one: one.path))


def _differing(
    folder: Path, contents: VersionContents, read_all: bool, read: dict[str, str]
) -> Iterator[FileProblem]:
    doubtful: dict[str, StoredFile] = {}
    for one in contents.files:
        place = place_of(folder, one.path)
        status = _looked(place)
        if status is None:
            yield FileProblem(path=one.path, kind=FileProblemKind.MISSING)
        elif not stat.S_ISREG(status.st_mode) or status.st_size != one.size_bytes:
            yield FileProblem(path=one.path, kind=FileProblemKind.CHANGED)
        elif read_all or status.st_mtime_ns != one.mtime_ns:
            doubtful[place] = one
    with reading_errors(folder):
        read.update(hash_all({place: one.size_bytes for place, one in doubtful.items() if place not in read}))
    for place, one in doubtful.items():
        if read[place] != one.sha256:
            yield FileProblem(path=one.path, kind=FileProblemKind.CHANGED)


def _differing_rejects(
    root: str | Path, version: Artifact, contents: VersionContents, read: dict[str, str]
) -> tuple[FileProblem, ...]:
    """Returns the differences in the files with rejected rows. Jobs do not read rejected rows, so only a
    complete verification checks these files."""
    folder = below(root, str((version.output.details.get("rejects") or {}).get("uri") or version.output.uri))
    problems = _differing(folder, VersionContents(files=contents.rejects), read_all=True, read=read)
    return tuple(replace(one, path=f"rejects/{one.path}") for one in problems)


def _differing_links(folder: Path, contents: VersionContents) -> Iterator[FileProblem]:
    for link in contents.links or ():
        place = place_of(folder, link.path)
        if _looked(place) is None:
            yield FileProblem(path=link.path, kind=FileProblemKind.MISSING)
        elif target_of(place) != link.target:
            yield FileProblem(path=link.path, kind=FileProblemKind.CHANGED)


def _looked(place: str) -> os.stat_result | None:
    with reading_errors(place), suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(place)
    return None


def _extra(folder: Path, contents: VersionContents) -> Iterator[FileProblem]:
    listed_paths = {one.path for one in contents.files} | {one.path for one in contents.links or ()}
    with suppress(FileNotFoundError):
        for path in list_paths(folder, links=contents.links is not None):
            if path not in listed_paths and not is_foreign_file(path):
                yield FileProblem(path=path, kind=FileProblemKind.EXTRA)


def is_foreign_file(path: str) -> bool:
    """Returns whether the file was not written by a job, but was created by a program that reads other
    files."""
    return any(part in f"/{path}" for part in _LITTER)
