"""The provenance of a job's result: the record of all its inputs, which shows later what has changed."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.sql_statement import Given

FIRST, SAME = "first run", "nothing changed since"
"""The reason why a job without an earlier version executes, and the reason (before a version's name) why one
does not."""
HASHED = "sha256:"
TEXT_BYTES = 80
"""Longer texts of a declaration are recorded as hashes, which begin with HASHED."""
MOST_FILES = 2000
"""With more files than this a record has one hash per folder."""


EXECUTABLE_MARK, LINK_MARK, FOLDER_MARK = ":x", ":l", ":d"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """One file of a code bundle, by its `name` in it. `digest` is of its content, with a mark where it
    is executable, a link or an empty folder; `pipeline`: it declares a pipeline."""

    name: str
    digest: str
    pipeline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeList:
    """Files of a project that jobs read, each with a hash of its content, under the `hash` of all: many
    versions and jobs refer to one list. `created` is when it was first seen (Unix seconds)."""

    hash: str
    files: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What the job `name` (`pipeline/job`) makes its result from, under the `fingerprint` of all of it.

    `declared` are the fields of its declaration that are not their defaults (`command.run`), as short texts;
    `parameters` the parameters of the pipeline that it refers to; `inputs` the ids of the versions that it
    reads, by the name that its declaration uses; `code` is the hash of the files of the project that its code
    reads (a CodeList; empty: it runs no code), `source` are the files that a sink loads, each with a hash of
    its content. `format` is Gridmill's own part.
    `artifact` is the version that was made last from just this; empty until there is one. `created` is when
    it was first seen (Unix seconds).
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
        """`pipeline/job#fingerprint`."""
        return f"{self.name}#{self.fingerprint}"
