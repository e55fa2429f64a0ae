"""The expected results of jobs before they run, and the contexts in which preflight runs the code of these
jobs."""

import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.storage_uri import below
from gridmill.domain.training import Objective
from gridmill.jobs.context import JobContext
from gridmill.jobs.tables import columns_of, open_version

WHOLE_ROWS = 50_000
"""If a table has more rows than this number, preflight uses only the columns of the table."""
_NO_COLUMN = re.compile(
    r"has no column|there is no column|has no feature|needs column|not found|does not have|holds no times"
)


class NotCheckableError(Exception):
    """The error of preflight for a job that cannot be checked. The message of the error is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightTable:
    """The table that a job would read.

    If `whole` is true, the table has all of its rows. If `whole` is false, the table has no rows. If `open`
    is true, the table may have more columns. The types of the `unsure` columns can change when later rows
    are read.
    """

    artifact: Artifact
    whole: bool = False
    open: bool = False
    unsure: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightModel:
    """The model that a prediction would use: its features, whether each feature is a number, its labels, and
    the objective.

    If `open` is true, the model may use other features.
    """

    features: Mapping[str, bool]
    labels: tuple[str, ...]
    objective: Objective
    open: bool = False


Known = PreflightTable | PreflightModel


def doubtful(message: str, tables: Mapping[str, PreflightTable]) -> bool:
    """Return whether a finding on a sample of the rows may be wrong for the complete table."""
    if _NO_COLUMN.search(message):
        return any(table.open for table in tables.values())
    words = set(re.findall(r"\w+", message))
    return any(words & table.unsure for table in tables.values())


@dataclass(slots=True)
class PreflightContext:
    """The folders in which preflight runs the code of jobs.

    Preflight writes files below the folder `work`, and reads tables below the storage root `root`.
    """

    work: Path
    folder: str
    root: str
    pipeline: str = "preflight"
    count: int = field(default=0, init=False)

    def context(self, job: Job, inputs: Mapping[str, Artifact]) -> JobContext:
        """Return a context in which preflight can call the code of the job.

        The storage root of this context is the root of the file system, because the files that preflight
        writes are outside of the real storage root.
        """
        self.count += 1
        own = self.work / str(self.count)
        own.mkdir()
        given = tuple(Input(name=name, artifact=artifact) for name, artifact in inputs.items())
        order = AttemptOrder(
            attempt_id=f"preflight.{job.name}",
            token="",
            run_id="preflight",
            pipeline=self.pipeline,
            job=job,
            given=Amounts(cpus=1, memory_bytes=GIB),
            root="/",
            output_uri=_uri(own / "output"),
            inputs=given,
            folder=self.folder,
        )
        return JobContext(order=order, work=own)

    def keep(self, name: str, rows: pa.Table, details: Mapping[str, object] | None = None) -> Artifact:
        """Store a table with these rows as a version, and return the version."""
        self.count += 1
        folder = self.work / str(self.count)
        folder.mkdir()
        pq.write_table(rows, folder / "rows.parquet")
        output = Output(
            kind=ArtifactKind.DATASET,
            uri=_uri(folder),
            rows=rows.num_rows,
            columns=columns_of(rows.schema),
            details=details or {},
        )
        return Artifact(id=f"{name}@0", name=name, number=0, output=output, fingerprint="")

    def stored(self, artifact: Artifact) -> PreflightTable:
        """Return the table of a version in the storage root. If the table is small, the result has its rows.
        If the table is large, the result has only its columns.

        Raises OSError and the errors of the libraries that read tables.
        """
        output = replace(artifact.output, uri=_uri(below(self.root, artifact.output.uri)))
        if (output.rows or 0) <= WHOLE_ROWS and output.rows is not None:
            return PreflightTable(artifact=replace(artifact, output=output), whole=True)
        empty = self.keep(artifact.name, self.schema_of(artifact).empty_table(), output.details)
        kept = replace(output, uri=empty.output.uri, rows=0, table_version=None)
        kind = output.kind if output.kind == ArtifactKind.PREDICTION else ArtifactKind.DATASET
        return PreflightTable(artifact=replace(artifact, output=replace(kept, kind=kind)))

    def schema_of(self, artifact: Artifact) -> pa.Schema:
        """Return the schema of a version. Raises OSError and the errors of the libraries that read
        tables."""
        return open_version(below(self.root, artifact.output.uri), artifact.output).schema


def _uri(path: Path) -> str:
    return str(path.resolve()).lstrip("/")
