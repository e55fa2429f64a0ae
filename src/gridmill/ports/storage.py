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
    """One source file as it is now: enough to tell whether it changed. `ctime_ns` is when its content, name
    or rights last changed, which no program can set; 0 where nobody knows. `content` is the hash of what it
    holds (16 hex digits), empty where it was not read; `name` is its path relative to the folder of the
    pipeline, as far as it is below it."""

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
        """The root, as jobs are told it (a folder path)."""

    @property
    def bundles_location(self) -> str:
        """Where code bundles lie (a folder path)."""

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        """The files a source names now, sorted by path; relative paths start at `folder`.

        Raises InputError when a path or glob matches nothing, naming what is near.
        """

    def hash_sources(self, files: tuple[FileStat, ...], key: str) -> tuple[FileStat, ...]:
        """The same files with their content's hashes. Files that look as they did when they were read last
        are not read again; `key` names the source. May take long: not for holders of the lock. Raises
        InputError."""

    def code_files(self, bundle: str) -> tuple[CodeFile, ...]:
        """The files of a code bundle, by name. Raises StorageError where it is not here, InputError."""

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """What is wrong with jobs, as far as their data says. Takes bounded time and never raises."""

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
        """Write the manifest of a version that is about to be committed; it is on the disk once
        `sync_manifests` has returned.

        `listed` is the URI where its attempt listed the files; empty, or nothing there: the manifest has no
        list. `shared`: several processes wrote to its folder, which is looked at again. May be repeated.
        Raises StorageError.
        """

    def sync_manifests(self) -> None:
        """Have all manifests that were written on the disk, in one go. Raises StorageError; when they are
        then written again, `keep_manifest` raises it for those that cannot be."""

    def next_number(self, name: str, number: int, attempt_id: str, *, first: bool) -> int:
        """The number of the next version of `name`: `number`, or a higher one where a manifest shows that a
        version which this home does not know has that. One of the same attempt, or without files, was never
        committed. `first`: the home knows no version of that name."""

    def highest_run(self, pipeline: str) -> int:
        """The highest number of a run that left something below the root; 0 if none did."""

    def drop_listed(self, listed: str) -> None:
        """Remove such a list, which a manifest has now. Never raises."""

    def problems(self, version: Artifact) -> tuple[FileProblem, ...]:
        """Files of a version that are not as its manifest says, as far as a quick look tells; nothing where
        it has none. May take long: not for holders of the lock. Raises StorageError.
        """

    def verify(self, versions: Iterable[Artifact]) -> Iterator[VerificationResult]:
        """The same, one after the other, from all of their content."""

    def note_move(self, move: AliasMove) -> None:
        """Append a move of an alias to those of its name. Raises StorageError."""

    def claim(self, pipeline: str, owner: str) -> None:
        """Take the pipeline's folders below the root for a store, for good; may be repeated.

        Raises ConflictError when they are another store's, UnavailableError when they cannot be written.
        """

    def has_left(self, folder: str, host: str) -> bool:
        """Whether `folder` of that machine is known not to exist any more: only where it is this machine."""

    def free_bytes(self) -> int:
        """How much can still be written."""

    def has_bundle(self, bundle: str) -> bool:
        """Whether the code bundle of that hash is here."""

    def shared_bundle(self, bundle: str) -> str:
        """The path at which all machines that see the root find that code bundle, once it is shared."""

    def share_bundle(self, bundle: str) -> None:
        """Copy it there, unless it is there; may take its time. Raises StorageError."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Keep a code bundle, visible only when whole. Raises InputError when `bundle` is no hash."""
