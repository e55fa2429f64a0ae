"""A sink job to run in a folder of its own, for tests."""

import gzip
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import Input, Output
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.jobs.context import JobContext
from gridmill.jobs.sink.run import run

TABLE = "sinks/p/s/table"


@dataclass
class SinkCase:
    folder: Path
    attempts: int = 0

    def context(
        self, spec: SinkSpec, attempt: str = "", inputs: tuple[Input, ...] = (), kept: tuple[int, ...] = ()
    ) -> JobContext:
        self.attempts += 1
        name = attempt or f"p-1.s.{self.attempts}"
        work = self.folder / "work" / name
        work.mkdir(parents=True, exist_ok=True)
        order = AttemptOrder(
            attempt_id=name,
            token="t",
            run_id="p-1",
            pipeline="p",
            job=Job(name="s", sink=spec),
            given=Amounts(cpus=1, memory_bytes=GIB),
            root=str(self.folder / "root"),
            output_uri=f"sinks/p/s/{name}",
            table_uri=TABLE,
            folder=str(self.folder),
            inputs=inputs,
            kept_versions=kept,
        )
        return JobContext(order=order, work=work)

    def context_spec(self, path: str) -> SinkSpec:
        return SinkSpec(source=Source(path=path))

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        data = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    def load(self, path: str | tuple[str, ...] = "*.csv", attempt: str = "", **spec: object) -> Output:
        source = {"path": path} | {
            key: spec.pop(key)
            for key in (
                "nulls",
                "encoding",
                "timestamp_format",
                "delimiter",
                "format",
                "compression",
                "settled_seconds",
                "decimal",
                "sheet",
            )
            if key in spec
        }
        inputs, kept = spec.pop("inputs", ()), spec.pop("kept", ())
        context = self.context(SinkSpec(source=Source(**source), **spec), attempt, inputs, kept)
        return run(context).outputs[0]

    def table(self, version: int | None = None) -> pa.Table:
        return DeltaTable(self.folder / "root" / TABLE, version=version).to_pyarrow_table()

    def rows(self, version: int | None = None) -> list[dict[str, object]]:
        return sorted(self.table(version).to_pylist(), key=str)

    def rejects(self, output: Output) -> list[dict[str, object]]:
        """Rejected rows as that version has them, in the order of their places."""
        known = output.details["rejects"]
        if not known:
            return []
        table = DeltaTable(self.folder / "root" / known["uri"], version=known["table_version"])
        return sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: (row["source"], row["row"]))
