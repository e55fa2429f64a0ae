"""The provenance of a job's result: the record of all its inputs, which shows later what has changed."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.sql_statement import Given

FIRST, SAME = "first run", "nothing changed since"
"""The reason why a job without an earlier version executes, and the reason (before a version's name) why an
unchanged job does not execute."""
HASHED = "sha256:"
TEXT_BYTES = 80
"""Longer texts of a declaration are recorded as hashes, which begin with HASHED."""
MOST_FILES = 2000
"""The most files of a record with one hash per file. With more files, the record has one hash per folder."""


EXECUTABLE_MARK, LINK_MARK, FOLDER_MARK = ":x", ":l", ":d"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """One file of a code bundle, by its `name` in the bundle. `digest` is the hash of its content, with a
    mark if it is executable, a link or an empty folder. `pipeline` means that the file declares a pipeline.
    """

    name: str
    digest: str
    pipeline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeList:
    """Files of a project that jobs read, each with a hash of its content, under the `hash` of all of them:
    many versions and jobs refer to one list. `created` is when Gridmill first saw the list (Unix seconds)."""

    hash: str
    files: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """All inputs of a result of the job `name` (`pipeline/job`), under the `fingerprint` of all of them.

    `declared` are the fields of its declaration that differ from their defaults (`command.run`), as short
    texts. `parameters` are the parameters of the pipeline that the job refers to. `inputs` are the ids of the
    versions that it reads, by the names in its declaration. `code` is the hash of the project's files that
    its code reads (a CodeList; empty: it runs no code). `source` are the files that a sink loads, each with a
    hash of its content. `format` is Gridmill's own part. `artifact` is the last version that was made from
    exactly these inputs; it is empty until there is one. `created` is when Gridmill first saw these inputs
    (Unix seconds).
    """

    name: str
    fingerprint: str
    format: int
    declared: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Given] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    artifact: str = ""
    created: float = 0.0

    @property
    def id(self) -> str:
        """The id of the record, `pipeline/job#fingerprint`."""
        return f"{self.name}#{self.fingerprint}"
