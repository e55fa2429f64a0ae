"""The definition of the features of a service. It is made from a version of a dataset, and stored in the
folder of the view.

Replicas read the definition from the file, so that they need neither the pipeline nor the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime
from math import isfinite
from pathlib import Path
from time import time
from typing import Any

import duckdb

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.service_features import FeatureRule, OnlinePolicy
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError
from gridmill.jobs.dataset.columns import SQL_RESULT
from gridmill.jobs.dataset.encode import load_encoders
from gridmill.jobs.dataset.encoders import FittedEncoder
from gridmill.jobs.dataset.label_availability import with_label_clock
from gridmill.jobs.dataset.labels import with_predictions
from gridmill.jobs.dataset.prepare import register_functions, spread
from gridmill.jobs.dataset.time_units import TIMES, Units, find_units
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import types_of
from gridmill.jobs.parquet import storage_errors
from gridmill.online.features import OnlineFeatures
from gridmill.online.plan import OnlinePlan, plan_online
from gridmill.online.source_rows import SourceTable, open_sources, table_types
from gridmill.online.view import MissingViewError

FILE = "features.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineDefinition:
    """The plan of the features, the rules of single features, the policy, and the encoders of the dataset in
    the order in which they are applied. `units` are the time units of numeric columns of the tables.

    `view` is the path of the folder of the view, relative to the folder of the definition; several
    definitions can share a view. `example` is a row of the basis table in the form of a request; it is empty
    if there is none."""

    plan: OnlinePlan
    rules: Mapping[str, FeatureRule] = field(default_factory=dict)
    policy: OnlinePolicy = OnlinePolicy()
    encoders: tuple[FittedEncoder, ...] = ()
    units: Units = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    view: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether requests to a service differ from the rows of the dataset: features are computed by key or
        by an expression, or encoded."""
        plan = self.plan
        return bool(plan.stored or plan.expressions or self.encoders)

    def sources(self, root: Path, versions: Mapping[str, Artifact]) -> dict[str, SourceTable]:
        """Return versions of the tables (by the names in the declaration of the dataset) below the storage
        root, for `build_view` and `refresh_view`."""
        return {
            name: SourceTable(name=name, root=root, output=versions[name].output, units=self.units)
            for name in self.plan.tables
        }

    def save(self, folder: Path) -> None:
        """Write the definition into the folder of the view. Raises StorageError."""
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{FILE}"
            draft.write_bytes(encode(self))
            draft.replace(folder / FILE)


def load_definition(folder: Path) -> OnlineDefinition:
    """Read the definition from the folder of a view. Raises MissingViewError."""
    try:
        return decode((folder / FILE).read_bytes(), OnlineDefinition)
    except (OSError, InputError) as error:
        raise MissingViewError(f"the definition {folder / FILE} of a view cannot be read: {error}") from error


def open_features(
    folder: Path,
    clock: Callable[[], float] = time,
    *,
    ahead_seconds: float | None = None,
    view: Path | None = None,
    most_rows: int | None = None,
) -> OnlineFeatures:
    """Return the features of a service from the folder of its view. Raises MissingViewError if the folder has
    no definition; a missing view is treated by the policy when a request arrives. `ahead_seconds` is how far
    in the future an as-of time may be (None: any time). `view` is the folder of the view, if it is not the
    one that the definition names. `most_rows` limits the rows of the view that a call holds in memory."""
    made = load_definition(folder)
    return OnlineFeatures(
        view or folder / made.view,
        made.plan,
        rules=made.rules,
        policy=made.policy,
        encoders=made.encoders,
        clock=clock,
        ahead_seconds=ahead_seconds,
        example=made.example,
        most_rows=most_rows,
    )


def define_online(
    dataset: Artifact,
    spec: DatasetSpec,
    inputs: Mapping[str, Artifact],
    root: Path,
    *,
    columns: Sequence[str] | None = None,
    sent: Sequence[str] = (),
    sequence: int | None = None,
    rules: Mapping[str, FeatureRule] | None = None,
    policy: OnlinePolicy | None = None,
) -> OnlineDefinition:
    """Return the definition of the features of a model.

    `dataset` is the version on which the model was trained, `spec` is its declaration, and `inputs` are
    versions of the tables that the declaration names. `columns` are the columns that the model reads, as they
    are named in the dataset (default: all). Raises InputError that names each feature that cannot be computed
    by key, StorageError.
    """
    predictions = {name: one.output for name, one in inputs.items() if one.kind == ArtifactKind.PREDICTION}
    declared = with_predictions(spec, predictions)
    clocked = with_label_clock(declared, inputs)
    encoders = load_encoders(below(root, dataset.output.uri)) if spec.encoders else ()
    with open_sources(root) as engine:
        types, units = _types(engine, declared, clocked, inputs, root, dataset)
        plan = plan_online(
            clocked, types, features=_before_encoding(columns, encoders), sent=sent, sequence=sequence
        )
        example = _example(engine, spec, plan)
    read = set(plan.features)
    return OnlineDefinition(
        plan=plan,
        rules=dict(rules or {}),
        policy=policy or OnlinePolicy(),
        encoders=tuple(one for one in encoders if one.column in read),
        units=units,
        example=example,
    )


def _example(engine: duckdb.DuckDBPyConnection, spec: DatasetSpec, plan: OnlinePlan) -> dict[str, Any]:
    """Return the columns of the first row of the basis table that a request sends, as JSON values."""
    names = [name for name in plan.request if name not in plan.sent]
    if spec.basis is None or not names:
        return {}
    listed = ", ".join(quoted(name) for name in names)
    row = engine.execute(f"SELECT {listed} FROM {quoted(spec.basis.table)} LIMIT 1").fetchone()
    return {name: _json_value(value) for name, value in zip(names, row or (), strict=False)}


def _json_value(value: Any) -> Any:  # noqa: ANN401  a value of any type
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _types(
    engine: duckdb.DuckDBPyConnection,
    declared: DatasetSpec,
    clocked: DatasetSpec,
    inputs: Mapping[str, Artifact],
    root: Path,
    dataset: Artifact,
) -> tuple[dict[str, Types], Units]:
    """Return the columns of all tables, with times instead of numbers that are used as times, and the units
    of these numbers."""
    plain = {
        name: SourceTable(name=name, root=root, output=one.output, units={}) for name, one in inputs.items()
    }
    types = dict(table_types(engine, plain))
    before = dataset.output.details.get(TIMES) or {}
    units = find_units(engine, declared, types, clocked=clocked, before=before)
    if any(units.values()):
        changed = {name: replace(one, units=units) for name, one in plain.items()}
        types = dict(table_types(engine, changed))
    if declared.sql is not None:
        register_functions(engine, declared.sql)
        text = declared.sql.strip().rstrip(";")
        types[SQL_RESULT] = spread(text, types_of(engine, text)).types
    return types, units


def _before_encoding(columns: Sequence[str] | None, encoders: Sequence[FittedEncoder]) -> list[str] | None:
    """Return the names of features before they are encoded."""
    if columns is None:
        return None
    encoded = {name: one.column for one in encoders for name in one.made}
    return list(dict.fromkeys(encoded.get(name, name) for name in columns))
