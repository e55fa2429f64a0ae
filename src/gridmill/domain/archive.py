"""This module has the records of a project's export to another grid: the records of its pipelines, and the
paths of its files."""

from gridmill.domain.artifact import Alias, Artifact, Latest
from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.run import JobRun, Run

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveContents:
    """The content of an archive: stored declarations, versions with the runs that made them, and aliases.
    `uris` are the folders of the versions in the archive, as paths below the storage root. `bundles` has the
    hashes of the code bundles of the runs that made the versions. `latest` has the latest version of each
    name, `provenances` has the inputs of the versions, and `code` has the lists of their code files."""

    format: int
    gridmill: str
    pipelines: tuple[Pipeline, ...] = ()
    runs: tuple[Run, ...] = ()
    job_runs: tuple[JobRun, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    aliases: tuple[Alias, ...] = ()
    uris: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    latest: tuple[Latest, ...] = ()
    provenances: tuple[Provenance, ...] = ()
    code: tuple[CodeList, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """The result of a backup or of a restore, with the ids of the versions. The versions in
    `already_present` existed in this grid with the same content before the restore."""

    path: str
    versions: tuple[str, ...]
    size_bytes: int
    already_present: int = 0
