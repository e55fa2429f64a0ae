"""How the records of two versions differ: a pure function of both."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.look import Difference
from gridmill.model.metric import read_metric

_SETTINGS = (
    "model", "objective", "labels", "label", "features", "sequence", "seed", "options", "best_by", "split",
    "sql",
)  # fmt: skip


def differences(before: Artifact, after: Artifact) -> Iterator[Difference]:
    """Everything not alike: what they are, columns, statistics, metrics, settings; in that order."""
    for part, of in _PARTS.items():
        old, new = of(before), of(after)
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                yield Difference(part=part, name=name, before=old.get(name), after=new.get(name))


def key_of_rows(version: Artifact) -> tuple[str, ...]:
    """The columns that tell its rows apart, as far as its record says."""
    told = version.output.details
    if version.kind == ArtifactKind.PREDICTION:
        names = [column.name for column in version.output.columns]
        return tuple(names[: names.index("row")]) if "row" in names else ()
    time = told.get("time")
    return (*map(str, told.get("entity") or ()), *((str(time),) if time else ()))


def rows_measured_on(model: Artifact, metric: str = "validation") -> str:
    """A text that is the same for models measured on the same rows with the same labels: only these can be
    ranked by the metric, of the test split if it is called so."""
    told = model.output.details
    known = _mapping(told.get("measured_on")).get("test" if metric.startswith("test_") else "validation")
    return str([told.get("predicts"), known or told.get("dataset"), told.get("labels"), told.get("classes")])


def shared_metric(models: Sequence[Artifact]) -> str:
    """The validation metric by which all of them can be ranked: their own, else the first; empty for none."""
    shared = [name for name in models[0].output.metrics if all(name in one.output.metrics for one in models)]
    named = f"validation_{models[0].output.details.get('best_by')}"
    return next((name for name in (named, *shared) if name in shared and name.startswith("validation_")), "")


def best_models(artifacts: Iterable[Artifact]) -> Iterator[tuple[Artifact, str, str]]:
    """The best of several models measured on the same rows with the same labels; for each such set, with the
    metric and (where there are several sets) with the label and the dataset in words."""
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
    told = model.output.details
    return f"{told.get('predicts') or told.get('label') or 'a label'} on {told.get('dataset') or 'a dataset'}"


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
    known = _mapping(version.output.details.get("columns"))
    return {
        f"{column}.{fact}": value
        for column, facts in known.items()
        for fact, value in _mapping(facts).items()
        if value is None or isinstance(value, str | int | float)
    }


_FORMER: Mapping[str, Mapping[str, str]] = {
    "gbdt": {"max_iter": "trees", "max_leaf_nodes": "max_leaves", "n_iter_no_change": "patience"},
    "mlp": {"changes": "residual"},
}
"""By model kind, how options were called that now have the names of the pipeline file."""


def options_of(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options in the details of a model, by the names of the pipeline file, and what came of them."""
    former = _FORMER.get(str(told.get("model")), {})
    return {former.get(name, name): value for name, value in _mapping(told.get("options")).items()}


def settings_of(version: Artifact) -> Mapping[str, Any]:
    """What it was declared with, and the packages it was made with, by name."""
    told = version.output.details
    found = {name: told[name] for name in _SETTINGS if told.get(name) is not None}
    found |= {"options": options_of(told)} if "options" in found else {}
    return {
        **{name: value for name, value in found.items() if not isinstance(value, Mapping)},
        **{name: value for part in found.values() for name, value in _mapping(part).items()},
        **{f"package {name}": value for name, value in _mapping(told.get("packages")).items()},
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
