"""This module has the manifests of versions and the log of alias moves, which are stored in `manifests/`
below the storage root."""

from collections.abc import Sequence
from enum import StrEnum

from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.provenance import Provenance

MANIFEST_FORMAT = 1
MANIFESTS = "manifests"
HANDED = "inputs"
"""The name of a folder below the storage root with copies of inputs, for attempts whose work folders are on
another disk."""
_VERSIONS = "versions"
_MOST_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a version as it was when the version was made. `path` is relative to the folder of the
    version, with `/` as the separator. In `path`, `%` and bytes that are not UTF-8 are written as `%XX`.
    `sha256` is the SHA-256 hash of the content of the file, in hex."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLink:
    """A symbolic link in a version, for example in the code of a model. `path` is written in the same way as
    the path of a stored file. `target` is the path to which the link points."""

    path: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionContents:
    """All files of a version, ordered by path. For a sink, the files are the data files of exactly this
    version, and the part of the table's log that describes these files. `rejects` are the files of the table
    of rejected rows, by their paths in that table. `links` is None if the links of the version were not
    listed."""

    files: tuple[StoredFile, ...] = ()
    links: tuple[StoredLink, ...] | None = None
    rejects: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionManifest:
    """The content of the file `manifests/PIPELINE/JOB/NUMBER.json`. `version` is the record of the version
    as it was committed, with its fingerprint and the versions that it was made from. `contents` is None if
    the files of the version were not listed. `provenance` is None if the inputs of the fingerprint are
    unknown."""

    format: int
    gridmill: str
    version: Artifact
    contents: VersionContents | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasMove:
    """A line of the file `manifests/PIPELINE/JOB/aliases.jsonl`: after this move, `alias` named the version
    `after`.

    `before` and `after` are a version (`weather/lstm@3`), `best by METRIC`, or empty if the alias named no
    version. `time` is the time of the move in Unix seconds. `by` is a run, an import, or the Unix user of
    the control node that moved the alias.
    """

    time: float
    name: str
    alias: str
    before: str
    after: str
    by: str


def manifest_uri(name: str, number: int) -> str:
    """Return the URI of the manifest of version `number` of `name` (`pipeline/job`), below the storage
    root."""
    return f"{MANIFESTS}/{name}/{number}.json"


def moves_uri(name: str) -> str:
    """Return the URI of the file with the moves of the aliases of `name`, below the storage root."""
    return f"{MANIFESTS}/{name}/aliases.jsonl"


def contents_uri(output_uri: str) -> str:
    """Return the URI at which an attempt that writes to `KIND/PIPELINE/JOB/ATTEMPT` lists its output files,
    until the version is committed. From the name of the list, `gridmill clean` finds the attempt to which
    the list belongs."""
    _, pipeline, job, attempt = output_uri.split("/")
    return f"{MANIFESTS}/{pipeline}/{job}/.{attempt}.draft"


def version_uri(output: Output) -> str:
    """Return the URI of a version of a table at a farm. Each version has its own folder, which the farm
    writes once and never changes."""
    return f"{_VERSIONS}/{output.uri}@{output.table_version}"


def lies_alone(uri: str) -> bool:
    """Return whether the folder of a table contains only one version."""
    return uri.startswith(f"{_VERSIONS}/")


class FileProblemKind(StrEnum):
    """The kinds of problems that a stored file can have."""

    MISSING = "missing"
    CHANGED = "changed"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A file of a version that differs from its entry in the manifest. `path` is the path of the file in the
    manifest."""

    path: str
    kind: FileProblemKind

    @property
    def text(self) -> str:
        """The problem of the file as text, such as `rows.parquet was changed`."""
        match self.kind:
            case FileProblemKind.MISSING:
                return f"{self.path} is missing"
            case FileProblemKind.CHANGED:
                return f"{self.path} was changed"
        return f"{self.path} was added"


def problem_text(problems: Sequence[FileProblem]) -> str:
    """Return a text about the first of the problems."""
    more = f" and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
    return ", ".join(one.text for one in problems[:_MOST_TOLD]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The result of a check of the whole content of a version. `files` is the number of files that were
    read, and `file_problems` are the problems that were found.

    `problem` is the reason why no file was compared, or the problem of the manifest. `known` means that a
    list of the files of the version exists. A version that was made before Gridmill wrote manifests has no
    list of its files; this is not an error.
    """

    version: str
    files: int = 0
    size_bytes: int = 0
    file_problems: tuple[FileProblem, ...] = ()
    problem: str = ""
    known: bool = True

    @property
    def is_wrong(self) -> bool:
        """Whether the version differs from its manifest, or cannot be compared although it should have a
        manifest."""
        return bool(self.file_problems) or (self.known and bool(self.problem))
