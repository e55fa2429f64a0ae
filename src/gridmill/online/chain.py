"""The chain of a model whose dataset joins predictions of other models: the features that these models
predict, and rows by which a service checks the whole chain."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.naming import did_you_mean
from gridmill.domain.service_features import FeatureDefinition, FeatureQuestion, FeatureStage
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError
from gridmill.jobs.dataset.labels import with_predictions
from gridmill.jobs.dataset_reader import open_partitions
from gridmill.jobs.duckdb_engine import quoted
from gridmill.online.chain_rows import ChainRows
from gridmill.online.definition import load_definition

MOST_ROWS = 20
_PREDICTED = ("prediction", "prediction_q", "probability_")
_MEASURED = "('validation', 'test')"


def predicted_features(question: FeatureQuestion) -> dict[str, dict[str, str]]:
    """Return for each stage, by its id, the columns of its predictions by the names of the features in the
    dataset. Features that requests send are left out."""
    inputs = question.inputs.items()
    predictions = {name: one.output for name, one in inputs if one.kind == ArtifactKind.PREDICTION}
    joins = with_predictions(question.spec, predictions).joins
    features: dict[str, dict[str, str]] = {}
    for stage in question.stages:
        features.setdefault(stage.version.id, {}).update(
            (f"{join.prefix}{column}", column)
            for join in joins
            if join.table in stage.tables
            for column in join.columns
            if column.startswith(_PREDICTED) and f"{join.prefix}{column}" not in question.settings.sent
        )
    return features


def check_single_label(stage: Artifact, features: Mapping[str, str]) -> None:
    """Raise InputError if a stage predicts several labels, whose predictions are lists."""
    labels = stage.output.details.get("labels") or ()
    if len(labels) > 1:
        raise InputError(
            f"{', '.join(features)} cannot be computed for a request, because {stage.id} predicts "
            f"{len(labels)} labels together",
            hint="Train a model for each label that the dataset reads.",
            place="model",
        )


def sent_features(question: FeatureQuestion) -> tuple[str, ...]:
    """Return the features of the dataset of one version that requests send by the settings of the service."""
    known = {column.name for column in question.dataset.output.columns} | question.spec.features.keys()
    return tuple(name for name in question.settings.sent if name in known)


def check_names(question: FeatureQuestion, definition: FeatureDefinition) -> None:
    """Raise InputError if the settings of the service name a feature that no version of the chain has."""
    root, settings = Path(question.root), question.settings
    plans = [load_definition(below(root, one.folder)).plan for one in definition.all_definitions()]
    computed = {name for plan in plans for name in plan.computed}
    sent = {name for plan in plans for name in (*plan.sent, *plan.features)}
    for place, names, known in (("rules", settings.rules, computed), ("sent", settings.sent, sent)):
        for name in names:
            if name not in known:
                raise InputError(
                    f"{name!r} is not a feature of a version of the chain{did_you_mean(name, known)}",
                    hint=f"The chain has {', '.join(sorted(known)) or 'none'}.",
                    place=f"features.{place}.{name}",
                )


def chosen_rows(question: FeatureQuestion, stages: Sequence[FeatureStage]) -> ChainRows | None:
    """Return rows of the dataset whose predictions were made by the stages themselves, and the rows that the
    stages read. The predictions of training rows can be those of other models. The result is None if the
    dataset has no such rows."""
    if not stages:
        return None
    of_stages = {one.version.id: one.question for one in question.stages}
    used = {stage.version: of_stages[stage.version] for stage in stages}
    predicted = [name for stage in stages for name in stage.columns]
    columns = set(open_partitions(_folder(question, question.dataset)).schema.names)
    if not {*predicted, *_keys(question)} <= columns:
        return None  # the dataset has encoded the predictions
    with duckdb.connect(config={"threads": 1}) as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.execute(f"CREATE TABLE chosen AS {_choice(question, list(used.values()), predicted)}")
        count = len(engine.execute("SELECT number FROM chosen").fetchall())
        rows = [_last_rows(engine, question, number) for number in range(count)]
        groups = {
            name: [_last_rows(engine, one, number) for number in range(count)] for name, one in used.items()
        }
    tables = [*rows, *(table for group in groups.values() for table in group)]
    if not rows or not all(table.num_rows for table in tables):
        return None
    return ChainRows(rows=pa.concat_tables(rows, promote_options="permissive"), stages=groups)


def _choice(question: FeatureQuestion, stages: Sequence[FeatureQuestion], predicted: Sequence[str]) -> str:
    """Return the SQL that chooses the keys of rows with the predictions of all stages, which no stage has
    learned."""
    keys = [quoted(name) for name in _keys(question)]
    joined = "".join(
        f" JOIN (SELECT {', '.join(keys)} FROM {_files(one)} WHERE split IN {_MEASURED}) USING"
        f" ({', '.join(keys)})"
        for one in stages
    )
    conditions = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in predicted)
    listed = ", ".join(keys)
    order = f"hash({listed})"
    rows = (
        f"SELECT {listed} FROM {_files(question)}{joined} WHERE {conditions} ORDER BY {order}, {listed}"
        f" LIMIT {MOST_ROWS}"
    )
    return f"SELECT row_number() OVER () - 1 AS number, * FROM ({rows})"


def _last_rows(engine: duckdb.DuckDBPyConnection, question: FeatureQuestion, number: int) -> pa.Table:
    """Return the chosen row with this number, and for a model of sequences also the rows before it, the
    oldest first."""
    *entity, time = (quoted(name) for name in _keys(question))
    same = "".join(f"f.{name} = chosen.{name} AND " for name in entity)
    columns = ", ".join(quoted(name) for name in question.columns)
    newest = (
        f"SELECT f.* FROM {_files(question)} AS f JOIN chosen ON {same}f.{time} <= chosen.{time}"
        f" WHERE chosen.number = {number} ORDER BY f.{time} DESC LIMIT {question.sequence or 1}"
    )
    return engine.execute(f"SELECT {columns} FROM ({newest}) ORDER BY {time}").to_arrow_table()


def _keys(question: FeatureQuestion) -> tuple[str, ...]:
    basis = question.spec.basis
    entity = basis.entity if basis is not None else question.spec.entity
    time = basis.time if basis is not None else question.spec.time
    return (*entity, time or "")


def _files(question: FeatureQuestion) -> str:
    pieces = open_partitions(_folder(question, question.dataset)).pieces
    files = dict.fromkeys(str(piece.file).replace("'", "''") for piece in pieces)
    return "read_parquet([" + ", ".join(f"'{file}'" for file in files) + "], hive_partitioning = false)"


def _folder(question: FeatureQuestion, dataset: Artifact) -> Path:
    return below(Path(question.root), dataset.output.uri)
