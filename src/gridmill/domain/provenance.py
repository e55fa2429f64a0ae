"""This module has the provenance of a job's result. The provenance is the record of all inputs of the job,
which later shows which inputs have changed."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.sql_statement import Given

FIRST, SAME = "first run", "nothing changed since"
"""FIRST is the reason why a job without an earlier version executes. SAME is the beginning of the reason why
an unchanged job does not execute; the name of a version follows it."""
HASHED = "sha256:"
TEXT_BYTES = 80
"""If a declared text has more than this number of bytes, only its hash is recorded, after the prefix
HASHED."""
MOST_FILES = 2000
"""The largest number of files in a record that has one hash for each file. If there are more files, the
record has one hash for each folder."""


EXECUTABLE_MARK, LINK_MARK, FOLDER_MARK = ":x", ":l", ":d"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """One file of a code bundle, with its `name` in the bundle. `digest` is the hash of the content of the
    file, with a suffix if the file is executable, a link or an empty folder. `pipeline` is true if
    the file declares a pipeline.
    """

    name: str
    digest: str
    pipeline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeList:
    """A list of files of a project that jobs read, each with a hash of its content, and the `hash` of the
    whole list. Many versions and jobs refer to the same list. `created` is the time when Gridmill first saw
    the list (Unix seconds)."""

    hash: str
    files: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """All inputs from which a result of the job `name` (`pipeline/job`) is made, with the `fingerprint` of
    these inputs.

    `declared` are the fields of the job's declaration that differ from their defaults (`command.run`), as
    short texts. `parameters` are the parameters of the pipeline to which the job refers. `inputs` are the
    ids of the versions that the job reads, by the names in its declaration. `code` is the hash of the
    project's files that the code of the job reads (a CodeList; empty if the job runs no code). `source` has
    the files that a sink loads, each with a hash of its content. `format` is a number that increases when a
    new version of Gridmill changes the results of built-in kinds of jobs. `artifact` is the last version
    that was made from exactly these inputs; it is empty if no such version exists yet. `created` is the time
    when Gridmill first saw these inputs (Unix seconds).
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
        """The id of the provenance record, `pipeline/job#fingerprint`."""
        return f"{self.name}#{self.fingerprint}"
