"""The record of a load, which is stored in the commit of the load for the report and for the next load.

The record is a part of the commit itself, so that it is not lost if an attempt dies right after the commit.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.domain.amounts import show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.remarks import REMARKS
from gridmill.jobs.column_stats import describe
from gridmill.jobs.context import JobContext
from gridmill.jobs.parquet import ParquetPart
from gridmill.jobs.parquet_reader import thrifty
from gridmill.jobs.sink.column_stats import Facts, merged
from gridmill.jobs.sink.constraints import ConstraintFilter
from gridmill.jobs.sink.files_to_load import LoadPlan
from gridmill.jobs.sink.metrics import LoadMetrics, drifts, histograms
from gridmill.jobs.sink.rejects import count_reasons
from gridmill.jobs.sink.table import SinkTable
from gridmill.jobs.sink.value_forms import Forms
from gridmill.jobs.sink.write import kept_rows

MOST_NAMES = 20
MOST_TEXT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """A load that is about to be committed."""

    context: JobContext
    plan: LoadPlan
    table: SinkTable
    schema: pa.Schema
    sieve: ConstraintFilter
    meter: LoadMetrics
    parts: Sequence[ParquetPart]
    spared: Sequence[ParquetPart] = ()
    later: Set[str] = frozenset()
    untold: Sequence[str] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    keys: Sequence[str] = ()
    forms: Mapping[str, Forms] = field(default_factory=dict)
    read_as: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Return the number of rows that the load adds."""
        return sum(part.rows for part in self.parts)

    def write(self, rejects: SinkTable, rejects_version: int | None, uri: str) -> Mapping[str, Any]:
        """Return the record of the load as JSON values."""
        before = self.table.note
        measured = self.meter.columns([part.path for part in self.parts]) if self.rows else {}
        drift = self._drift(before)
        details = {
            "loaded": [file.name for file in self.plan.load][:MOST_NAMES],
            "copies": list(self.plan.copies[:MOST_NAMES]),
            "rows_added": self.rows,
            "loaded_anew": self.plan.anew,
            "columns": self._columns(before.get("details", {}).get("columns", {}), measured),
            "metrics": {
                "rows": self.rows,
                "columns": measured,
                "values": self.meter.values if self.rows else {},
            },
            "drift": drift,
            REMARKS: list(self._remarks()),
            "rejects": _rejects(self.sieve, rejects, rejects_version, uri),
        }
        return {
            "files": [{"file": file.name, "content": file.content} for file in self.plan.load],
            "positions": self.plan.positions,
            "details": details,
            "later": sorted(self.later & set(self.schema.names)),
            "forms": {name: sorted(forms) for name, forms in self.forms.items()},
            "untold": sorted(set(self.untold) & set(self.schema.names)),
            "histograms": histograms(self.meter.sample.rows()) if self.rows else before.get("histograms", {}),
        }

    def _remarks(self) -> Iterator[str]:
        """Yield sentences about values that were changed while they were read."""
        for what, count in self.lost.items():
            yield f"{show_count(count, 'value')} of column {what}"
        for name, example_text in self.read_as.items():
            yield f"column {name}: {example_text}"
        for name in self.keys:
            yield f"column {name} is text, because numbers in it begin with a zero or a plus"

    def _drift(self, before: Mapping[str, Any]) -> Mapping[str, Any]:
        limit = self.sieve.spec.drift_threshold
        if limit is None or not self.rows or not before.get("histograms"):
            return {}
        drift = drifts(before["histograms"], self.meter.sample.rows())
        shifted = {name: index for name, index in drift.items() if index > limit}
        return {"columns": drift, "shifted": shifted, "threshold": limit}

    def _columns(self, before: Facts, measured: Facts) -> Facts:
        """Return the statistics of the complete table. If the load only adds rows, their statistics are
        merged with the earlier statistics of the table."""
        if self.plan.anew:
            return measured
        if not self.rows and not self.plan.remove:
            return before
        if before and not self.plan.remove:
            old_rows = sum(entry.rows for entry in self.table.loaded)
            return merged(before, old_rows, measured, self.rows)
        kept = kept_rows(self.table, self.plan, (*self.spared, *self.parts))
        if kept is None:
            return {}
        rows = thrifty(ds.dataset(kept.files, schema=self.schema))
        names = self.schema.names
        return describe(self.context, {"": rows.turns().to_reader()}, names, self.schema)


def by_source(
    origins: Mapping[str, str], table: SinkTable, rejects: SinkTable
) -> Mapping[str, Mapping[str, int]]:
    """Return the numbers of files, rows and rejected rows for each path or glob pattern of the source.

    `origins` contains for each file, by its key, the pattern that matches the file. If `origins` is empty,
    the result is empty.
    """
    counts = {written: {"files": 0, "rows": 0, "rejects": 0} for written in dict.fromkeys(origins.values())}
    for written in origins.values():
        counts[written]["files"] += 1
    for fact, loaded in (("rows", table.loaded), ("rejects", rejects.loaded)):
        for entry in loaded:
            if entry.key in origins:
                counts[origins[entry.key]][fact] += entry.rows
    return counts


def _rejects(sieve: ConstraintFilter, table: SinkTable, version: int | None, uri: str) -> Mapping[str, Any]:
    """Return the number of rejected rows, the number of new rejected rows, the reasons, and some examples.
    The result is empty if no row was rejected."""
    rows = sum(entry.rows for entry in table.loaded)
    if table.delta is None or not rows:
        return {}
    head = table.delta.to_pyarrow_dataset().head(MOST_NAMES)
    return {
        "rows": rows,
        "added": sieve.rejected,
        "reasons": dict(count_reasons(table).most_common(MOST_NAMES)),
        "uri": uri,
        "table_version": version,
        "sample": [row | {"record": row["record"][:MOST_TEXT]} for row in _by_place(head)],
    }


def _by_place(rejects: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = rejects.sort_by([("source", "ascending"), ("row", "ascending")]).to_pylist()
    return rows
