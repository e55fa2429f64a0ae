"""This module compares models and any two versions, and previews the first rows of a version.

All functions of this module are pure and compare the records of versions. The functions of this module also
decide which models of a run are comparable, and which of their metrics and settings are shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import isfinite
from typing import Any

from gridmill.domain.artifact import Artifact, ArtifactKind, Column
from gridmill.domain.frozen import dataclass
from gridmill.domain.metrics import is_ranked, read_metric
from gridmill.domain.views import VersionView
from gridmill.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel:
    """A version of a model with its aliases, its inputs, its settings and its resource use. `dataset` is the
    version of the dataset that the model was trained on. `bundle` is the hash of the code of the model. If
    `bundle` is empty, the model was made by the code of Gridmill itself, whose version is in `gridmill`.
    `seconds` is the duration of the attempt that trained the model, or None if the attempt has no record.
    `created` is the time when the version was made, in Unix seconds."""

    id: str
    names: tuple[str, ...] = ()
    created: float = 0.0
    run_id: str = ""
    removed: bool = False
    dataset: str = ""
    bundle: str = ""
    gridmill: str = ""
    seconds: float | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """The values of a metric (such as `validation_rmse`), in the order of the models. A value is None if the
    metric was not measured for a model. `best` has the ids of the versions with the best value; empty if all
    values are equal."""

    name: str
    values: tuple[float | None, ...]
    best: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSetting:
    """The values of a setting that differs between the models, in the order of the models. A value is None
    for a model that does not have the setting."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """A comparison of versions of models, with one column for each version. `same` has the settings that
    have equal values in all models. `warnings` are the reasons why the metrics of the models may not be
    comparable."""

    models: tuple[ComparedModel, ...]
    metrics: tuple[ComparedMetric, ...] = ()
    settings: tuple[ComparedSetting, ...] = ()
    same: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactQuery:
    """A query about the version `artifact` below the storage root `root`. The query requests the first
    `rows` rows (of the rejected rows of a sink if `rejects` is true), or the list of the artifact's `files`,
    or the number of rows that differ from the version `other`. `key` has the columns that identify a row."""

    root: str
    artifact: Artifact
    rows: int = 0
    rejects: bool = False
    other: Artifact | None = None
    key: tuple[str, ...] = ()
    files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first rows of a table that has `total` rows, for display. The cells of the previewed rows are JSON
    values: times are in ISO 8601, and long texts are shortened."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """The numbers of rows, identified by `key`: rows only in the second version, rows only in the first
    version, and rows in both versions with different values."""

    key: tuple[str, ...]
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactAnswer:
    """The answer to an ArtifactQuery. Only the field for the requested content is set. `files` are paths
    below the folder of the artifact; for a table, the data files come before the files of the log. `error`
    has the same form as the result of `errors.to_body`."""

    preview: Preview | None = None
    changes: RowChanges | None = None
    files: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between two versions, with the value in each version. If a version does not have the
    value, the value is None. The field `part` has the kind of the difference, which is `facts`, `columns`
    (types), `statistics` (`COLUMN.FACT`), `metrics` or `settings`."""

    part: str
    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDiff:
    """The differences between two versions. `rows` is None if the rows were not compared, and `rows_why` is
    the reason why they were not compared."""

    before: str
    after: str
    differences: tuple[Difference, ...] = ()
    same_metrics: Mapping[str, float] = field(default_factory=dict)
    rows: RowChanges | None = None
    rows_why: str = ""


_SETTINGS = (
    "model", "objective", "labels", "label", "features", "sequence", "seed", "options", "best_by", "split",
    "sql",
)  # fmt: skip


def differences(before: Artifact, after: Artifact) -> Iterator[Difference]:
    """Return all differences between two versions, in this order: facts, columns, statistics, metrics,
    settings."""
    for part, of in _PARTS.items():
        old, new = of(before), of(after)
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                yield Difference(part=part, name=name, before=old.get(name), after=new.get(name))


def key_of_rows(version: Artifact) -> tuple[str, ...]:
    """Return the columns that identify a row, if the record of the version contains them."""
    details = version.output.details
    if version.kind == ArtifactKind.PREDICTION:
        names = [column.name for column in version.output.columns]
        return tuple(names[: names.index("row")]) if "row" in names else ()
    time = details.get("time")
    return (*map(str, details.get("entity") or ()), *((str(time),) if time else ()))


def rows_measured_on(model: Artifact, metric: str = "validation") -> str:
    """Return a text that is the same for all models that were measured on the same rows with the same
    labels. If this text differs between two models, these models cannot be ranked by the metric. If the
    metric is from the test split, the text describes the test rows.
    """
    details = model.output.details
    rows_by_split = _mapping(details.get("measured_on")).get(
        "test" if metric.startswith("test_") else "validation"
    )
    return str(
        [
            details.get("predicts"),
            rows_by_split or details.get("dataset"),
            details.get("labels"),
            details.get("classes"),
        ]
    )


def shared_metric(models: Sequence[Artifact]) -> str:
    """Return the validation metric by which all models can be ranked: the metric that the models declare,
    otherwise the first metric that all models have. The result is empty if the models have no metric in
    common."""
    shared = [
        name for name in models[0].output.metrics if all(name in model.output.metrics for model in models)
    ]
    named = f"validation_{models[0].output.details.get('best_by')}"
    return next((name for name in (named, *shared) if name in shared and name.startswith("validation_")), "")


def best_models(artifacts: Iterable[Artifact]) -> Iterator[tuple[Artifact, str, str]]:
    """Return the best of several models that were measured on the same rows with the same labels. Each set
    of comparable models gives one best model, with the metric and, if there are several sets, with a
    description of the label and the dataset."""
    models = [one for one in artifacts if one.kind == ArtifactKind.MODEL and one.output.metrics]
    groups: dict[str, list[Artifact]] = {}
    for one in models:
        groups.setdefault(rows_measured_on(one), []).append(one)
    for group in groups.values():
        name = shared_metric(group)
        if len(group) > 1 and name:
            pick = max if read_metric(name)[1] else min
            of = f" of {_dataset_and_label(group[0])}" if len(groups) > 1 else ""
            yield pick(group, key=lambda one: one.output.metrics[name]), name, of


def _dataset_and_label(model: Artifact) -> str:
    details = model.output.details
    return (
        f"{details.get('predicts') or details.get('label') or 'a label'} on"
        f" {details.get('dataset') or 'a dataset'}"
    )


def _facts(version: Artifact) -> Mapping[str, Any]:
    output = version.output
    return {
        "kind": output.kind.value,
        "rows": output.rows,
        "size_bytes": output.size_bytes,
        "made_from": list(version.made_from),
        **{f"rows.{split}": count for split, count in _mapping(output.details.get("splits")).items()},
    }


def _columns(version: Artifact) -> Mapping[str, Any]:
    return {column.name: column.type for column in version.output.columns}


def _statistics(version: Artifact) -> Mapping[str, Any]:
    columns = _mapping(version.output.details.get("columns"))
    return {
        f"{column}.{fact}": value
        for column, facts in columns.items()
        for fact, value in _mapping(facts).items()
        if value is None or isinstance(value, str | int | float)
    }


_FORMER: Mapping[str, Mapping[str, str]] = {
    "gbdt": {"max_iter": "trees", "max_leaf_nodes": "max_leaves", "n_iter_no_change": "patience"},
    "mlp": {"changes": "residual"},
}
"""Former names of options and their present names in the pipeline file, by kind of model."""


def options_of(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options in the details of a model, by their names in the pipeline file, and results of
    training such as the number of epochs used."""
    former = _FORMER.get(str(details.get("model")), {})
    return {former.get(name, name): value for name, value in _mapping(details.get("options")).items()}


def settings_of(version: Artifact) -> Mapping[str, Any]:
    """Return the declared options of a version, and the versions of the packages with which it was made, by
    name."""
    details = version.output.details
    settings = {name: details[name] for name in _SETTINGS if details.get(name) is not None}
    settings |= {"options": options_of(details)} if "options" in settings else {}
    return {
        **{name: value for name, value in settings.items() if not isinstance(value, Mapping)},
        **{name: value for part in settings.values() for name, value in _mapping(part).items()},
        **{f"package {name}": value for name, value in _mapping(details.get("packages")).items()},
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


_PARTS = {
    "facts": _facts,
    "columns": _columns,
    "statistics": _statistics,
    "metrics": lambda version: version.output.metrics,
    "settings": settings_of,
}


LAST = 5
"""The number of versions that are compared if the user names no version."""


def references_of(name: str, versions: Sequence[str]) -> tuple[str, ...]:
    """Return the references to the versions that the command `compare NAME V ...` compares. A number or an
    alias means a version of `name`. An argument of the form `pipeline/job` is a reference to another model.

    `name` itself is compared too if it contains a version, or if no argument V is a version of `name`.
    """
    base = name.partition("@")[0]
    full = tuple(version if "/" in version else f"{base}@{version.removeprefix('@')}" for version in versions)
    itself = "@" in name or all("/" in version for version in versions)
    return (name, *full) if itself else full


def check_models(versions: Sequence[Artifact], name: str) -> tuple[Artifact, ...]:
    """Return the distinct versions, in the order in which they were passed. Raises InputError if a version
    is not a model, and if there are fewer than two models."""
    for version in versions:
        if version.kind != ArtifactKind.MODEL:
            raise InputError(
                f"{version.id} is not a model: its kind is {version.kind}",
                hint="`gridmill diff VERSION VERSION` compares any two versions.",
            )
    different = tuple({version.id: version for version in versions}.values())
    if len(different) < 2:
        only = different[0].id if different else name
        raise InputError(
            f"all of these are {only}" if len(versions) > 1 else f"there is only {only} to compare",
            hint="Run the training again with other settings, or add a model of another training.",
        )
    return different


def side_by_side(
    views: Sequence[VersionView], seconds: Mapping[str, float], best_by: str = ""
) -> ModelComparison:
    """Return the comparison of these versions, in their order. `seconds` has, by the id of a version, the
    duration of the attempt that made it. `best_by` is a metric with its direction (`max:score`)."""
    versions = [view.artifact for view in views]
    settings = [settings_of(one) for one in versions]
    names = dict.fromkeys(name for one in settings for name in one)
    rows = {name: tuple(one.get(name) for one in settings) for name in names}
    alike = {name: all(value == values[0] for value in values) for name, values in rows.items()}
    return ModelComparison(
        models=tuple(_model(view, seconds.get(view.artifact.id)) for view in views),
        metrics=tuple(_metrics(versions, best_by)),
        settings=tuple(ComparedSetting(name=name, values=rows[name]) for name in names if not alike[name]),
        same={name: rows[name][0] for name in names if alike[name]},
        warnings=tuple(_warnings(versions)),
    )


def _model(view: VersionView, seconds: float | None) -> ComparedModel:
    one = view.artifact
    packages = one.output.details.get("packages")
    return ComparedModel(
        id=one.id,
        names=view.names,
        created=one.created,
        run_id=one.run_id,
        removed=one.removed,
        dataset=_dataset(one),
        bundle=view.bundle,
        gridmill=str(packages.get("gridmill", "")) if isinstance(packages, Mapping) else "",
        seconds=seconds,
        size_bytes=one.output.size_bytes,
    )


def _dataset(model: Artifact) -> str:
    return str(model.output.details.get("dataset") or next(iter(model.made_from), ""))


def _metrics(versions: Sequence[Artifact], best_by: str) -> Iterator[ComparedMetric]:
    best_by_name, told_higher = read_metric(best_by) if best_by else ("", False)
    for name in dict.fromkeys(name for one in versions for name in one.output.metrics):
        values = tuple(one.output.metrics.get(name) for one in versions)
        higher = told_higher if name == best_by_name else read_metric(name)[1]
        same = len({rows_measured_on(one, name) for one in versions}) == 1
        best = _best(values, higher=higher) if same and is_ranked(name) else None
        ids = tuple(one.id for one, value in zip(versions, values, strict=True) if value == best)
        yield ComparedMetric(name=name, values=values, best=ids if best is not None else ())


def _best(values: Sequence[float | None], *, higher: bool) -> float | None:
    present_values = [value for value in values if value is not None and isfinite(value)]
    if len(set(present_values)) < 2:
        return None
    return max(present_values) if higher else min(present_values)


def _warnings(versions: Sequence[Artifact]) -> Iterator[str]:
    datasets = tuple(dict.fromkeys(_dataset(version) for version in versions))
    if len(datasets) > 1:
        same = len({rows_measured_on(version) for version in versions}) == 1
        rows = (
            "the validation rows of the models are the same"
            if same
            else "no model is marked as the best, because the models were not measured on the same rows"
        )
        yield f"the models were trained on {', '.join(datasets)}; {rows}"
    labels = {
        str(version.output.details.get("predicts") or version.output.details.get("labels"))
        for version in versions
    }
    if len(labels) > 1:
        yield f"the models predict different labels: {'; '.join(sorted(labels))}"
