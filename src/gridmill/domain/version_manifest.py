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
    and bytes that are not UTF-8 are written `%XX`. `sha256` is of its content, in hex."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLink:
    """A symbolic link, as in the code of a model: `path` as of a file, `target` as the link has it."""

    path: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionContents:
    """All files of a version, by path. Of a sink: the data files that exactly this version has, and as much
    of the table's log as tells of it; `rejects` are those of the table of its rejected rows, by their paths
    there. `links` is None where nobody listed them."""

    files: tuple[StoredFile, ...] = ()
    links: tuple[StoredLink, ...] | None = None
    rejects: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionManifest:
    """`manifests/PIPELINE/JOB/NUMBER.json`. `version` is the record as it was committed, with its fingerprint
    and the versions that it was made from. `contents` is None where nobody listed the files, `provenance`
    where it is not known what the fingerprint is of."""

    format: int
    gridmill: str
    version: Artifact
    contents: VersionContents | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasMove:
    """A line of `manifests/PIPELINE/JOB/aliases.jsonl`: from then on `alias` stood for `after`.

    `before` and `after` are a version (`weather/lstm@3`), `best by METRIC`, or empty for none. `time` is in
    Unix seconds. `by` is a run, an import, or the Unix user that the control node belongs to.
    """

    time: float
    name: str
    alias: str
    before: str
    after: str
    by: str


def manifest_uri(name: str, number: int) -> str:
    """The manifest of version `number` of `name` (`pipeline/job`), below the storage root."""
    return f"{MANIFESTS}/{name}/{number}.json"


def moves_uri(name: str) -> str:
    """The moves of the aliases of `name`, below the storage root."""
    return f"{MANIFESTS}/{name}/aliases.jsonl"


def contents_uri(output_uri: str) -> str:
    """Where an attempt that writes to `KIND/PIPELINE/JOB/ATTEMPT` lists the files that it leaves, until the
    version is committed. `gridmill clean` knows whose it is by its name."""
    _, pipeline, job, attempt = output_uri.split("/")
    return f"{MANIFESTS}/{pipeline}/{job}/.{attempt}.draft"


def version_uri(output: Output) -> str:
    """Where a version of a table lies at a farm, alone: it is only ever made there, never changed."""
    return f"{_VERSIONS}/{output.uri}@{output.table_version}"


def lies_alone(uri: str) -> bool:
    """Whether a table's folder has one version only."""
    return uri.startswith(f"{_VERSIONS}/")


class FileProblemKind(StrEnum):
    """What is wrong with a stored file."""

    MISSING = "missing"
    CHANGED = "changed"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A file of a version that is not as its manifest says; `path` as there."""

    path: str
    kind: FileProblemKind

    @property
    def text(self) -> str:
        """`rows.parquet was changed`."""
        match self.kind:
            case FileProblemKind.MISSING:
                return f"{self.path} is missing"
            case FileProblemKind.CHANGED:
                return f"{self.path} was changed"
        return f"{self.path} was added"


def problem_text(problems: Sequence[FileProblem]) -> str:
    """The first of them in words."""
    more = f" and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
    return ", ".join(one.text for one in problems[:_MOST_TOLD]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The result of reading the whole content of a version: `files` were read, and `file_problems` found.

    `problem` says why nothing was compared, or what is wrong with the manifest. `known`: it has a list of its
    files; a version of before there were manifests has none, which is not wrong.
    """

    version: str
    files: int = 0
    size_bytes: int = 0
    file_problems: tuple[FileProblem, ...] = ()
    problem: str = ""
    known: bool = True

    @property
    def is_wrong(self) -> bool:
        """Whether it is not what it was when it was made, or nobody can tell although somebody should."""
        return bool(self.file_problems) or (self.known and bool(self.problem))
