"""Checks a prediction against its models and its dataset, and checks a training against its dataset.

For a prediction, this module checks the columns, labels, split and metric. For a training, this module
checks the label, features, splits, weights, metrics and lengths of sequences.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job
from gridmill.domain.naming import did_you_mean, suggestion
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.training import Combine, ModelKind, Objective, TrainingSpec
from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.features import is_number
from gridmill.jobs.metrics import BEST_BY, SEARCH_METRIC, check_metric
from gridmill.jobs.prediction.shards import selected_rows
from gridmill.jobs.preflight.results import (
    NotCheckableError,
    PreflightContext,
    PreflightModel,
    PreflightTable,
)
from gridmill.jobs.training.columns import choose_encodings
from gridmill.jobs.training.cross_validation import plan_folds
from gridmill.jobs.training.data import DatasetColumns, SortedFrame, find_subject, read_frame, whole_windows
from gridmill.jobs.training.thresholds import check_decisions
from gridmill.jobs.training.weights import check_column


def check_prediction(
    scene: PreflightContext, job: Job, dataset: PreflightTable | None, models: Mapping[str, PreflightModel]
) -> None:
    """Check a prediction before it runs. If the run would fail, the function raises the InputError or
    DataError of the run."""
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
                raise InputError(
                    f"model {name!r} needs column {column!r}, which dataset {spec.dataset!r} does not have"
                    + did_you_mean(column, parts.schema.names),
                    hint="A dataset to predict needs the features of the dataset on which the model is "
                    "trained.",
                    place=place,
                )
            kind = parts.schema.field(column).type
            if is_numeric != is_number(kind):
                was = "a number" if is_numeric else "text"
                raise InputError(
                    f"column {column!r} was {was} in training and is {kind} in dataset {spec.dataset!r}",
                    place=place,
                )


def _check_alike(spec: PredictionSpec, models: Mapping[str, PreflightModel]) -> None:
    labelled_models = [(name, models[name]) for name in spec.models if name in models and models[name].labels]
    for name, model in labelled_models[1:]:
        first_name, first = labelled_models[0]
        if (model.labels, model.objective) != (first.labels, first.objective):
            raise InputError(
                f"model {first_name!r} predicts {', '.join(first.labels)} ({first.objective}), but model "
                f"{name!r} predicts {', '.join(model.labels)} ({model.objective})",
                hint="Name only models with the same label: the same column, horizon, type and classes.",
                place=f"prediction.models[{spec.models.index(name)}]",
            )


def _check_metric(spec: PredictionSpec, models: Mapping[str, PreflightModel]) -> None:
    first = next((models[name] for name in spec.models if name in models), None)
    if first is not None:
        check_metric(spec.best_by, first.objective, BEST_BY)


_NO_VALIDATION = "a search compares its trials on the validation split, but the dataset has none"


def check_training(
    scene: PreflightContext,
    job: Job,
    dataset: PreflightTable,
    members: Sequence[PreflightModel],
    made_by: DatasetSpec | None,
) -> PreflightModel:
    """Return the model that a run would train.

    `members` are the members of an ensemble. `made_by` is the declaration of the dataset, if it is known. If
    the run would fail, the function raises the InputError or DataError of the run.
    """
    spec = job.training
    assert spec is not None
    context = scene.context(job, {spec.dataset: dataset.artifact})
    parts = open_partitions(context.below_root(dataset.artifact.output.uri))
    subject = _subject(spec, dataset, parts)
    objective = _check_label(spec, subject, parts.schema)
    _check_choices(spec, objective)
    if spec.search is not None:
        _check_validation(spec, made_by)
    if spec.model == ModelKind.ENSEMBLE:
        return _ensemble(spec, members, subject, objective)
    if dataset.whole:
        frame = _check_rows(context, spec)
        features = {encoding.column: encoding.categories is None for encoding in frame.encodings}
    else:
        names = [name for name in subject.features if name != spec.weight]
        features = {name: is_number(parts.schema.field(name).type) for name in names}
        _check_kinds(spec, parts.schema)
        _check_repeated(spec, [name for name, numeric in features.items() if numeric], dataset)
    return PreflightModel(
        features=features, labels=subject.labels, objective=objective, open=dataset.open or not dataset.whole
    )


def _check_kinds(spec: TrainingSpec, schema: pa.Schema) -> None:
    """Raise an error for declared features that are neither numbers nor text."""
    names = [name for name in spec.features if name in schema.names]
    choose_encodings(pa.schema([schema.field(name) for name in names]).empty_table(), names, declared=True)


def _check_repeated(spec: TrainingSpec, numeric: Sequence[str], dataset: PreflightTable) -> None:
    """Check that the feature whose value a naive model repeats exists and is numeric. If the feature is the
    input of a category, such as `origin=EWR`, this function does not check it, because the check needs
    rows."""
    name = spec.repeat
    if name is None or name in numeric or "=" in name or dataset.open:
        return
    hint = suggestion(name, numeric, f"Numeric features: {', '.join(numeric)}.")
    raise InputError(f"there is no numeric feature {name!r} to repeat", hint=hint, place="training.repeat")


def _subject(spec: TrainingSpec, dataset: PreflightTable, parts: Partitions) -> DatasetColumns:
    details = dataset.artifact.output.details
    features = spec.features
    if dataset.open:  # the columns of an open dataset are not all known, so other names may be features too
        features = tuple(name for name in features if name in (details.get("features") or ()))
    try:
        result = find_subject(details, parts, features, "training.features")
    except InputError as error:
        place = error.place
        # replaced, because the error has to point at the item with the wrong name
        if place == "training.features":
            place = _named(place, spec.features, error.message)
        raise InputError(error.message, hint=error.hint, place=place or "training.dataset") from error
    if spec.weight is not None:
        check_column(spec.weight, parts.schema, spec.features)
    return result


def _named(place: str, names: Sequence[str], message: str) -> str:
    at = next((number for number, name in enumerate(names) if repr(name) in message), None)
    return place if at is None else f"{place}[{at}]"


def _check_label(spec: TrainingSpec, subject: DatasetColumns, schema: pa.Schema) -> Objective:
    kinds = [schema.field(name).type for name in subject.labels]
    numeric = is_number(kinds[0]) and not pa.types.is_boolean(kinds[0])
    objective = spec.objective or (Objective.REGRESSION if numeric else Objective.CLASSIFICATION)
    wrong = next((n for n, kind in enumerate(kinds) if not is_number(kind)), None)
    if objective == Objective.REGRESSION and wrong is not None:
        raise InputError(
            f"label {subject.labels[wrong]!r} has type {kinds[wrong]}, but regression needs a numeric label",
            hint="Use `objective: classification`, or a numeric label.",
            place="training.objective" if spec.objective else "training.dataset",
        )
    if objective == Objective.CLASSIFICATION and len(kinds) > 1:
        raise InputError(
            f"the dataset has {len(kinds)} labels, but classification needs exactly one",
            hint="Declare one dataset per label, or use numeric labels.",
            place="training.dataset",
        )
    return objective


def _check_choices(spec: TrainingSpec, objective: Objective) -> None:
    """Check the options that exist only for classifications or only for regressions."""
    if spec.search is not None:
        check_metric(spec.search.metric, objective, SEARCH_METRIC)
    if spec.quantiles and objective != Objective.REGRESSION:
        raise InputError(
            "quantiles need a numeric label, but the label has classes", place="training.quantiles"
        )
    if objective == Objective.REGRESSION:
        for name in ("threshold", "threshold_by"):
            if getattr(spec, name) is not None:
                raise InputError(
                    "a threshold separates two classes, but the label has numbers", place=f"training.{name}"
                )
        for name in ("class_weight", "class_weights"):
            if getattr(spec, name):
                raise InputError(
                    "class weights need a label with classes, but the label has numbers",
                    place=f"training.{name}",
                )
        if spec.combine == Combine.VOTE:
            raise InputError(
                "a vote needs a label with classes, but the label has numbers",
                hint="Use `combine: mean` or `combine: weighted`.",
                place="training.combine",
            )


def _check_validation(spec: TrainingSpec, made_by: DatasetSpec | None) -> None:
    split = made_by.split if made_by is not None else None
    if split is not None and split.validation is None and split.validation_from is None:
        raise InputError(
            _NO_VALIDATION,
            hint="Add `validation: 0.15` (or `validation_from`) to the dataset's `split`.",
            place="training.search",
        )


def _ensemble(
    spec: TrainingSpec, members: Sequence[PreflightModel], subject: DatasetColumns, objective: Objective
) -> PreflightModel:
    if len(members) < len(spec.models):
        raise NotCheckableError("the models that the ensemble combines are not known before the run")
    for name, member in zip(spec.models, members, strict=True):
        if member.labels and member.labels != subject.labels:
            raise InputError(
                f"model {name!r} predicts {', '.join(member.labels)}, but the dataset's label is "
                f"{', '.join(subject.labels)}",
                hint="Name only models with the dataset's label.",
                place=_named("training.models", spec.models, repr(name)),
            )
    features = {name: number for member in members for name, number in member.features.items()}
    open_ = any(member.open for member in members)
    return PreflightModel(features=features, labels=subject.labels, objective=objective, open=open_)


def _check_rows(context: JobContext, spec: TrainingSpec) -> SortedFrame:
    """Check the conditions of a training that depend on the rows of its dataset. Raises InputError and
    DataError."""
    try:
        frame = read_frame(context, spec)
    except (InputError, DataError) as error:
        error.place = error.place or "training.dataset"
        raise
    check_decisions(frame, spec)
    if spec.search is not None and len(frame.rows["validation"]) == 0:
        raise InputError(
            _NO_VALIDATION,
            hint="Add `validation: 0.15` (or `validation_from`) to the dataset's `split`.",
            place="training.search",
        )
    if spec.folds:
        plan_folds(frame, spec, context)
    if spec.model == ModelKind.LSTM:
        _check_sequence(frame, spec)
    if spec.repeat is not None:
        # imported here, because it loads ONNX, which most checks do not need
        from gridmill.jobs.training.naive import repeated_input

        repeated_input(frame, spec.repeat)
    return frame


def _check_sequence(frame: SortedFrame, spec: TrainingSpec) -> None:
    """Check the longest sequence that a trial can have. If the training is a search, the check fails only if
    all trials of the search would fail."""
    searched = spec.search.parameters.get("sequence") if spec.search is not None else None
    tried = [int(one) for one in (searched.among or searched.bounds)] if searched else [spec.sequence]
    whole_windows(frame, min(tried))
