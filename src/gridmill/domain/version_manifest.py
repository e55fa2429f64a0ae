"""Manifests of versions and the log of alias moves, stored below `manifests/` of the storage root."""

from collections.abc import Sequence
from enum import StrEnum

from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.provenance import Provenance

MANIFEST_FORMAT = 1
MANIFESTS = "manifests"
HANDED = "inputs"
"""Folder below the storage root: inputs copied for attempts whose work folders are on another disk."""
_VERSIONS = "versions"
_MOST_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file as it was when its version succeeded. `path` is relative to the version's folder, with `/`; `%`
    and bytes that are not UTF-8 are written `%XX`. `sha256` is the hash of its content, in hex."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLink:
    """A symbolic link, as in the code of a model. `path` is written as for a file; `target` is the target of
    the link."""

    path: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionContents:
    """All files of a version, by path. For a sink, these are the data files of exactly this version, and the
    part of the table's log that describes them; `rejects` are the files of the table of its rejected rows, by
    their paths there. `links` is None if they were not listed."""

    files: tuple[StoredFile, ...] = ()
    links: tuple[StoredLink, ...] | None = None
    rejects: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionManifest:
    """The content of `manifests/PIPELINE/JOB/NUMBER.json`. `version` is the record as it was committed, with
    its fingerprint and the versions that it was made from. `contents` is None if the files were not listed.
    `provenance` is None if the inputs of the fingerprint are unknown."""

    format: int
    gridmill: str
    version: Artifact
    contents: VersionContents | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasMove:
    """A line of `manifests/PIPELINE/JOB/aliases.jsonl`: after this move, `alias` meant `after`.

    `before` and `after` are a version (`weather/lstm@3`), `best by METRIC`, or empty for none. `time` is in
    Unix seconds. `by` is a run, an import, or the Unix user of the control node.
    """

    time: float
    name: str
    alias: str
    before: str
    after: str
    by: str


def manifest_uri(name: str, number: int) -> str:
    """The URI of the manifest of version `number` of `name` (`pipeline/job`), below the storage root."""
    return f"{MANIFESTS}/{name}/{number}.json"


def moves_uri(name: str) -> str:
    """The URI of the moves of the aliases of `name`, below the storage root."""
    return f"{MANIFESTS}/{name}/aliases.jsonl"


def contents_uri(output_uri: str) -> str:
    """The URI at which an attempt that writes to `KIND/PIPELINE/JOB/ATTEMPT` lists its output files, until
    the version is committed. The name tells `gridmill clean` to which attempt the list belongs."""
    _, pipeline, job, attempt = output_uri.split("/")
    return f"{MANIFESTS}/{pipeline}/{job}/.{attempt}.draft"


def version_uri(output: Output) -> str:
    """The URI of a version of a table at a farm, in a folder of its own: the farm makes it once and never
    changes it."""
    return f"{_VERSIONS}/{output.uri}@{output.table_version}"


def lies_alone(uri: str) -> bool:
    """Whether a table's folder has only one version."""
    return uri.startswith(f"{_VERSIONS}/")


class FileProblemKind(StrEnum):
    """The kinds of problems of a stored file."""

    MISSING = "missing"
    CHANGED = "changed"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A file of a version that differs from its manifest. `path` is the path in the manifest."""

    path: str
    kind: FileProblemKind

    @property
    def text(self) -> str:
        """The problem as text: `rows.parquet was changed`."""
        match self.kind:
            case FileProblemKind.MISSING:
                return f"{self.path} is missing"
            case FileProblemKind.CHANGED:
                return f"{self.path} was changed"
        return f"{self.path} was added"


def problem_text(problems: Sequence[FileProblem]) -> str:
    """A text about the first of the problems."""
    more = f" and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
    return ", ".join(one.text for one in problems[:_MOST_TOLD]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The result of reading the whole content of a version: `files` were read, and `file_problems` found.

    `problem` is the reason why nothing was compared, or the problem of the manifest. `known` means that the
    version has a list of its files. A version from before manifests existed has no list, which is not an
    error.
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
