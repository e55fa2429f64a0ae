"""Records of a project's export to another grid: the records of its pipelines and the places of its files."""

from gridmill.domain.artifact import Alias, Artifact, Latest
from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.provenance import CodeList, Provenance
from gridmill.domain.run import JobRun, Run

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveContents:
    """Stored declarations, versions with the runs that made them, and aliases. `uris` are the folders of the
    existing versions, below the storage root. `bundles` are the hashes of the runs' code. `latest` has the
    latest version of each name, `provenances` the inputs of the versions, `code` the files of their code."""

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
    """The result of a backup or a restore, with versions by id. Versions in `already_present` existed in this
    grid with the same content."""

    path: str
    versions: tuple[str, ...]
    size_bytes: int
    already_present: int = 0
