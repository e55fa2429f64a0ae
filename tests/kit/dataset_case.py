"""A dataset job over given tables, for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.run import run
from gridmill.jobs.tables import columns_of, open_table, plain_schema


@dataclass
class DatasetCase:
    folder: Path
    tables: dict[str, Output] = field(default_factory=dict)
    runs: int = 0

    def give(self, name: str, columns: Mapping[str, object] | pa.Table) -> None:
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        table = table.cast(plain_schema(table.schema))
        uri = f"sinks/p/{name}/table"
        write_deltalake(self.folder / "root" / uri, table, mode="overwrite", schema_mode="overwrite")
        self.tables[name] = Output(
            kind=ArtifactKind.SINK, uri=uri, rows=table.num_rows, columns=columns_of(table.schema)
        )

    def context(self, spec: DatasetSpec, name: str = "d", cpus: float = 1) -> JobContext:
        self.runs += 1
        attempt = f"p-1.{name}.{self.runs}"
        work = self.folder / "work" / attempt
        work.mkdir(parents=True)
        inputs = tuple(
            Input(
                name=key,
                artifact=Artifact(id=f"p/{key}@1", name=f"p/{key}", number=1, output=o, fingerprint=""),
            )
            for key, o in self.tables.items()
        )
        order = AttemptOrder(
            attempt_id=attempt,
            token="t",
            run_id="p-1",
            pipeline="p",
            job=Job(name=name, dataset=spec),
            given=Amounts(cpus=cpus, memory_bytes=GIB),
            root=str(self.folder / "root"),
            output_uri=f"datasets/p/{name}/{attempt}",
            inputs=inputs,
        )
        return JobContext(order=order, work=work)

    def make(self, spec: DatasetSpec, name: str = "d", cpus: float = 1) -> Output:
        spec.check()
        output = run(self.context(spec, name, cpus)).outputs[0]
        self.tables[name] = output
        return output

    def rows(self, spec: DatasetSpec) -> list[dict[str, object]]:
        return self.table(self.make(spec)).to_pylist()

    def table(self, output: Output) -> pa.Table:
        return open_table(self.context(DatasetSpec(sql="", tables=())), output).to_table()
