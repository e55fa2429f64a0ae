"""The storage port: the location of the root, the listing of sources, code bundles, and deletion."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.domain.provenance import CodeFile, Provenance
from gridmill.domain.source import Source
from gridmill.domain.version_manifest import AliasMove, FileProblem, VerificationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """A source file in its present state, which shows whether the file has changed. `ctime_ns` is the time of
    the last change of its content, name or permissions, which no program can set; 0 if the time is not known.
    `content` is the hash of the file's content (16 hex digits); empty if the content was not read. `name` is
    the path relative to the pipeline's folder, if the file is below this folder."""

    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int = 0
    inode: int = 0
    content: str = ""
    name: str = ""


class Storage(Protocol):
    """One storage root and the bundles of one home."""

    @property
    def location(self) -> str:
        """The path of the root folder, as jobs get it."""

    @property
    def bundles_location(self) -> str:
        """The path of the folder with code bundles."""

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        """The files to which a source refers now, sorted by path. Relative paths start at `folder`.

        Raises InputError if a path or glob matches nothing; the message names similar paths.
        """

    def hash_sources(self, files: tuple[FileStat, ...], key: str) -> tuple[FileStat, ...]:
        """The same files with the hashes of their content. A file that has not changed since it was last read
        is not read again; `key` names the source. May take long: do not call it while holding the lock.
        Raises InputError."""

    def code_files(self, bundle: str) -> tuple[CodeFile, ...]:
        """The files of a code bundle, by name. Raises StorageError if the bundle is not stored,
        InputError."""

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """The problems of jobs that their data shows. Takes bounded time and never raises."""

    def remove(self, uri: str) -> None:
        """Delete a folder below the root; succeeds if it does not exist. Raises UnsafePathError."""

    def keep_manifest(
        self,
        version: Artifact,
        listed: str,
        *,
        shared: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """Write the manifest of a version that is about to be committed. It is on the disk after the next
        `sync_manifests`.

        `listed` is the URI of the list of files that the attempt wrote. If `listed` is empty or the list does
        not exist, the manifest has no list. With `shared`, several processes wrote to the version's folder,
        and the folder is read again. May be repeated. Raises StorageError.
        """

    def sync_manifests(self) -> None:
        """Write all new manifests to the disk together. Raises StorageError. If the caller then calls
        `keep_manifest` again, that method raises StorageError for each manifest that cannot be written."""

    def next_number(self, name: str, number: int, attempt_id: str, *, first: bool) -> int:
        """The number of the next version of `name`. It is `number`, or a higher number if a manifest shows
        that a version unknown to this home already has `number`. A manifest of the same attempt, or of a
        version without files, does not use up its number, because the version was never committed. `first`:
        the home knows no version of `name`."""

    def highest_run(self, pipeline: str) -> int:
        """The highest number of a run of the pipeline that left files below the root; 0 if there is none."""

    def drop_listed(self, listed: str) -> None:
        """Delete the list of files at `listed` after it was copied into a manifest. Never raises."""

    def problems(self, version: Artifact) -> tuple[FileProblem, ...]:
        """The files of a version that differ from its manifest, as far as a quick check shows; none if the
        version has no manifest. May take long: do not call it while holding the lock. Raises StorageError."""

    def verify(self, versions: Iterable[Artifact]) -> Iterator[VerificationResult]:
        """The result of a check of the whole content of each version, one version after the other."""

    def note_move(self, move: AliasMove) -> None:
        """Append a move of an alias to the stored moves of its name. Raises StorageError."""

    def claim(self, pipeline: str, owner: str) -> None:
        """Reserve the pipeline's folders below the root for a store permanently. May be repeated.

        Raises ConflictError if the folders belong to another store, UnavailableError if they cannot be
        written.
        """

    def has_left(self, folder: str, host: str) -> bool:
        """Whether it is certain that `folder` of the machine `host` no longer exists. True only if `host` is
        this machine."""

    def free_bytes(self) -> int:
        """The number of bytes that can still be written."""

    def has_bundle(self, bundle: str) -> bool:
        """Whether the code bundle with this hash is stored."""

    def shared_bundle(self, bundle: str) -> str:
        """The path of a shared code bundle for all machines that see the root."""

    def share_bundle(self, bundle: str) -> None:
        """Copy a code bundle to the path of `shared_bundle`, unless the copy exists. May take long. Raises
        StorageError."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Store a code bundle, which becomes visible only when it is complete. Raises InputError if `bundle`
        is not the hash of `data`."""
