"""A prediction held against its models and its dataset: columns, labels, split, metric."""

from collections.abc import Mapping
from difflib import get_close_matches

from gridmill.errors import InputError
from gridmill.jobs.features import is_number
from gridmill.jobs.metrics import BEST_BY, check_metric
from gridmill.jobs.partitions import open_partitions
from gridmill.jobs.prediction.cut import selected_rows
from gridmill.jobs.preflight.known import Model, Scene, Table
from gridmill.model.job import Job
from gridmill.model.prediction import PredictionSpec


def check_prediction(scene: Scene, job: Job, dataset: Table | None, models: Mapping[str, Model]) -> None:
    """Raises InputError and DataError for what the run would fail with."""
    spec = job.prediction
    assert spec is not None
    _check_alike(spec, models)
    _check_metric(spec, models)
    if dataset is None:
        return
    context = scene.context(job, {spec.dataset: dataset.artifact})
    parts = open_partitions(context.below_root(dataset.artifact.output.uri))
    if spec.split is not None and "split" not in parts.schema.names:
        raise InputError(
            "the dataset has no splits",
            hint="Use `split: null` to predict all rows.",
            place="prediction.split",
        )
    if dataset.whole:
        selected_rows(parts, spec.split)
    for number, name in enumerate(spec.models):
        model = models.get(name)
        for column, is_numeric in model.features.items() if model is not None else ():
            place = f"prediction.models[{number}]"
            if column not in parts.schema.names:
                near = get_close_matches(column, parts.schema.names, n=1)
                raise InputError(
                    f"model {name!r} needs column {column!r}, which dataset {spec.dataset!r} does not have"
                    + (f"; did you mean {near[0]!r}?" if near else ""),
                    hint="A dataset to predict has the features of the one that the model learned from.",
                    place=place,
                )
            kind = parts.schema.field(column).type
            if is_numeric != is_number(kind):
                was = "a number" if is_numeric else "text"
                raise InputError(
                    f"column {column!r} was {was} in training and is {kind} in dataset {spec.dataset!r}",
                    place=place,
                )


def _check_alike(spec: PredictionSpec, models: Mapping[str, Model]) -> None:
    known = [(name, models[name]) for name in spec.models if name in models and models[name].labels]
    for name, model in known[1:]:
        first_name, first = known[0]
        if (model.labels, model.objective) != (first.labels, first.objective):
            raise InputError(
                f"model {first_name!r} predicts {', '.join(first.labels)} ({first.objective}) and model "
                f"{name!r} predicts {', '.join(model.labels)} ({model.objective})",
                hint="Name only models of the same label: the same column, horizon, type and classes.",
                place=f"prediction.models[{spec.models.index(name)}]",
            )


def _check_metric(spec: PredictionSpec, models: Mapping[str, Model]) -> None:
    first = next((models[name] for name in spec.models if name in models), None)
    if first is not None:
        check_metric(spec.best_by, first.objective, BEST_BY)
