"""Which models are put side by side, and what is told of them: pure functions of their records."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from gridmill.errors import InputError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.compared import ComparedMetric, ComparedModel, ComparedSetting, ModelComparison
from gridmill.model.comparison import rows_measured_on, settings_of
from gridmill.model.metric import is_ranked, read_metric
from gridmill.model.view import VersionView

LAST = 5
"""Versions that are compared when none is named."""


def references_of(name: str, versions: Sequence[str]) -> tuple[str, ...]:
    """What `compare NAME V ...` names: a number or an alias is one of `name`, `pipeline/job` another model's.

    `name` itself is one of them where it says a version, or where no V is a version of it.
    """
    base = name.partition("@")[0]
    full = tuple(one if "/" in one else f"{base}@{one.removeprefix('@')}" for one in versions)
    itself = "@" in name or all("/" in one for one in versions)
    return (name, *full) if itself else full


def check_models(versions: Sequence[Artifact], name: str) -> tuple[Artifact, ...]:
    """The different ones, as they were named. Raises InputError for what is no model, and for only one."""
    for one in versions:
        if one.kind != ArtifactKind.MODEL:
            raise InputError(
                f"{one.id} is no model but a version of kind {one.kind}",
                hint="`gridmill diff VERSION VERSION` says how any two versions differ.",
            )
    different = tuple({one.id: one for one in versions}.values())
    if len(different) < 2:
        only = different[0].id if different else name
        raise InputError(
            f"all of these are {only}" if len(versions) > 1 else f"there is only {only} to compare",
            hint="Run the training again with other settings, or name another training's model beside it.",
        )
    return different


def side_by_side(
    views: Sequence[VersionView], seconds: Mapping[str, float], best_by: str = ""
) -> ModelComparison:
    """The models of these versions, in their order; `seconds` by id. `best_by` is a metric that says its own
    direction (`max:score`)."""
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
    told, told_higher = read_metric(best_by) if best_by else ("", False)
    for name in dict.fromkeys(name for one in versions for name in one.output.metrics):
        values = tuple(one.output.metrics.get(name) for one in versions)
        higher = told_higher if name == told else read_metric(name)[1]
        same = len({rows_measured_on(one, name) for one in versions}) == 1
        best = _best(values, higher=higher) if same and is_ranked(name) else None
        ids = tuple(one.id for one, value in zip(versions, values, strict=True) if value == best)
        yield ComparedMetric(name=name, values=values, best=ids if best is not None else ())


def _best(values: Sequence[float | None], *, higher: bool) -> float | None:
    known = [value for value in values if value is not None and isfinite(value)]
    if len(set(known)) < 2:
        return None
    return max(known) if higher else min(known)


def _warnings(versions: Sequence[Artifact]) -> Iterator[str]:
    datasets = tuple(dict.fromkeys(_dataset(one) for one in versions))
    if len(datasets) > 1:
        same = len({rows_measured_on(one) for one in versions}) == 1
        rows = (
            "their validation rows are the same" if same else "no best is marked: the rows are not the same"
        )
        yield f"they learned from {', '.join(datasets)}; {rows}"
    labels = {str(one.output.details.get("predicts") or one.output.details.get("labels")) for one in versions}
    if len(labels) > 1:
        yield f"they predict different labels: {'; '.join(sorted(labels))}"
