"""The interface of the storage root: its location, the files of sources, code bundles, and deletion."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.log_counts import LogArrivals
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.domain.provenance import CodeFile, Provenance
from gridmill.domain.service_features import FeatureAnswer, FeatureQuestion
from gridmill.domain.source import Source
from gridmill.domain.version_manifest import AliasMove, FileProblem, VerificationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """The state of a source file, which shows whether the file has changed since an earlier check.
    `ctime_ns` is the time of the last change of the file's content, name or permissions. No program can set
    this time. If the time is not known, `ctime_ns` is 0. `content` is the hash of the file's content (16 hex
    digits); empty if the content was not read. `name` is the path relative to the folder of the pipeline, if
    the file is below this folder."""

    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int = 0
    inode: int = 0
    content: str = ""
    name: str = ""


class Storage(Protocol):
    """One storage root and the code bundles of one home."""

    @property
    def location(self) -> str:
        """The path of the storage root, as jobs receive it."""

    @property
    def bundles_location(self) -> str:
        """The path of the folder with code bundles."""

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        """Return the files that a source refers to now, sorted by path. Relative paths of a source begin at
        `folder`.

        Raises InputError if a path or glob of the source matches nothing; the message names similar paths.
        """

    def hash_sources(self, files: tuple[FileStat, ...], key: str) -> tuple[FileStat, ...]:
        """Return the same files with the hashes of their content. A file that has not changed since it was
        last read is not read again. `key` names the source. This method may take long: do not call it while
        you hold the lock of the control node. Raises InputError."""

    def code_files(self, bundle: str) -> tuple[CodeFile, ...]:
        """Return the files of a code bundle, by name. Raises StorageError if the bundle is not stored,
        InputError."""

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """Check the data of jobs, and return the problems that the jobs would have with this data. The
        method takes a limited time and never raises an error."""

    def define_features(self, question: FeatureQuestion) -> FeatureAnswer:
        """Store the definition of the contextual features of a service. This method may take long: do not
        call it while you hold the lock of the control node. Raises UnavailableError."""

    def remove(self, uri: str) -> None:
        """Delete a folder below the storage root; the call succeeds if the folder does not exist. Raises
        UnsafePathError."""

    def keep_manifest(
        self,
        version: Artifact,
        listed: str,
        *,
        shared: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """Write the manifest of a version that the caller commits next. The manifest is certain to be on the
        disk after the next call of `sync_manifests`.

        `listed` is the URI of the list of files that the attempt wrote. If `listed` is empty or the list
        does not exist, the manifest has no list. With `shared`, several processes wrote to the folder of the
        version, and the method reads the folder again. May be repeated. Raises StorageError.
        """

    def sync_manifests(self) -> None:
        """Make sure that all new manifests are on the disk, in one step. Raises StorageError. If this method
        raises StorageError, the caller can call `keep_manifest` again for each version: that method raises
        StorageError for each manifest that cannot be written."""

    def next_number(self, name: str, number: int, attempt_id: str, *, first: bool) -> int:
        """Return the number of the next version of the artifact `name`. The result is `number`, or a higher
        number if a manifest shows that a version unknown to this home already has `number`. If a manifest
        with `number` is from the same attempt, or if the files of its version do not exist, the number is
        used again, because that version was never committed. `first` is true if the home knows no version of
        `name`."""

    def highest_run(self, pipeline: str) -> int:
        """Return the highest number of a run of the pipeline that left files below the storage root; 0 if
        there is no such run."""

    def drop_listed(self, listed: str) -> None:
        """Delete the list of files at `listed`, after the list was copied into a manifest. Never raises."""

    def problems(self, version: Artifact) -> tuple[FileProblem, ...]:
        """Return the files of a version that differ from its manifest, as far as a quick check shows; empty
        if the version has no manifest. This method may take long: do not call it while you hold the lock of
        the control node. Raises StorageError."""

    def verify(self, versions: Iterable[Artifact]) -> Iterator[VerificationResult]:
        """Check the whole content of each version, one version after the other, and return the results."""

    def note_move(self, move: AliasMove) -> None:
        """Append a move of an alias to the stored list of moves for this artifact. Raises StorageError."""

    def claim(self, pipeline: str, owner: str) -> None:
        """Reserve the folders of a pipeline below the storage root permanently for one store. May be
        repeated.

        Raises ConflictError if the folders belong to another store, UnavailableError if the folders cannot
        be written.
        """

    def has_left(self, folder: str, host: str) -> bool:
        """Return whether it is certain that `folder` on the machine `host` no longer exists. The result can
        be true only if `host` is this machine."""

    def log_arrivals(self, service: str, writers: Iterable[str]) -> LogArrivals:
        """Return how many lines of the request log of a service have arrived from other sites, for these
        writers, and how many were deleted above the limit. Records that cannot be read are left out."""

    def free_bytes(self) -> int:
        """Return the number of bytes that can still be written to the storage root."""

    def has_bundle(self, bundle: str) -> bool:
        """Return whether the code bundle with this hash is stored."""

    def shared_bundle(self, bundle: str) -> str:
        """The path of a shared copy of a code bundle, for all machines that can read the storage root."""

    def share_bundle(self, bundle: str) -> None:
        """Copy a code bundle to the path of `shared_bundle`, unless the copy already exists. May take long.
        Raises StorageError."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Store a code bundle; readers see the bundle only when it is complete. Raises InputError if
        `bundle` is not the hash of `data`."""
