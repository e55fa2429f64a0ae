"""What a sink's version says of the rows it rejected."""

from collections.abc import Mapping
from typing import Any

from gridmill.model.artifact import Artifact

_REASONS = 3


def rejects_of(artifact: Artifact) -> Mapping[str, Any]:
    """`rows` in all, `added` by the last load, `reasons` with counts, the `uri` and `table_version` of the
    Delta table that has them all, and a `sample`; empty when none was rejected."""
    found: Mapping[str, Any] = artifact.output.details.get("rejects") or {}
    return found


def rejects_line(artifact: Artifact) -> str:
    """`shops/sales@3: 12 rows rejected, 2 by its last load: 9 price: missing, 3 ...`; empty without any."""
    found = rejects_of(artifact)
    if not found:
        return ""
    rows, added, reasons = found["rows"], found["added"], found["reasons"]
    listed = ", ".join(f"{count:,} {reason}" for reason, count in list(reasons.items())[:_REASONS])
    more = f", and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
    return (
        f"{artifact.id}: {rows:,} row{'s' * (rows != 1)} rejected, {added:,} by its last load: {listed}{more}"
    )
