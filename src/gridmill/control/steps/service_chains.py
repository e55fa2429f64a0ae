"""This module finds the chain of a model: the versions whose predictions are features of the model, which a
service computes for each request."""

from collections.abc import Iterator, Mapping, Sequence

from gridmill.control.catalog import Catalog
from gridmill.control.steps.references import fetch_artifact
from gridmill.domain.artifact import Artifact, ArtifactKind, split_reference
from gridmill.domain.dataset import DatasetSpec, Join
from gridmill.domain.frozen import dataclass
from gridmill.domain.service import Service, check_trusted
from gridmill.domain.service_features import FeatureDefinition
from gridmill.errors import InputError, NotFoundError

MOST_LEVELS = 4
"""The number of levels of stages below the model of a chain. Each level adds its own time to a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A prediction whose rows a dataset joins to its own rows. `tables` are its names in the declaration of
    the dataset. `model` made the prediction from the rows of `dataset`."""

    tables: tuple[str, ...]
    model: Artifact
    dataset: Artifact


def chain_links(catalog: Catalog, dataset: Artifact, spec: DatasetSpec) -> tuple[ChainLink, ...]:
    """Return the predictions that a dataset joins row by row: by the entity and the time of its rows. The
    predictions are those from which this version of the dataset was made. Raises InputError if the model of
    such a prediction was removed."""
    predictions = {one.name: one for one in _made_from(catalog, dataset)}
    tables: dict[str, list[str]] = {}
    for join in spec.joins:
        name = _artifact_name(join.table, dataset)
        if name in predictions and _is_by_row(join, spec, predictions[name]):
            tables.setdefault(name, []).append(join.table)
    return tuple(
        _link(catalog, dataset, predictions[name], tuple(dict.fromkeys(names)))
        for name, names in tables.items()
    )


def check_levels(path: Sequence[str]) -> None:
    """Raise InputError for a chain that is too deep. `path` are the ids of a model, of one of its stages, of
    a stage of this stage, and so on."""
    if len(path) > MOST_LEVELS + 1:
        raise InputError(
            f"the chain of {path[0]} has more than {MOST_LEVELS} levels of stages: it reads "
            f"{', which reads '.join(path[1:])}",
            hint="Train the model on predictions of fewer levels, or let requests send all features "
            "(sent: ['*']).",
            place="model",
        )


def _made_from(catalog: Catalog, dataset: Artifact) -> Iterator[Artifact]:
    for version_id in dataset.made_from:
        try:
            version = fetch_artifact(catalog, version_id)
        except NotFoundError:
            continue
        if version.kind == ArtifactKind.PREDICTION:
            yield version


def _artifact_name(table: str, dataset: Artifact) -> str:
    job = split_reference(table)[0]
    return job if "/" in job else f"{dataset.name.partition('/')[0]}/{job}"


def _is_by_row(join: Join, spec: DatasetSpec, prediction: Artifact) -> bool:
    """Return whether a join gives each row the prediction for the same row."""
    details = prediction.output.details
    keys = {*(details.get("entity") or ()), details.get("time")}
    time = spec.basis.time if spec.basis is not None else None
    return bool(time) and time in join.on and keys == set(join.on)


def _link(catalog: Catalog, dataset: Artifact, prediction: Artifact, tables: tuple[str, ...]) -> ChainLink:
    details = prediction.output.details
    try:
        model = fetch_artifact(catalog, str(details.get("model_id")))
        made_from = fetch_artifact(catalog, str(details.get("dataset")))
    except NotFoundError as error:
        raise _removed(dataset, prediction, str(error)) from error
    if model.removed:
        raise _removed(dataset, prediction, f"{model.id} was removed")
    return ChainLink(tables=tables, model=model, dataset=made_from)


def _removed(dataset: Artifact, prediction: Artifact, why: str) -> InputError:
    return InputError(
        f"{dataset.id} joins the predictions {prediction.id}, which the service cannot compute: {why}",
        hint="Make the predictions and the model again, or let requests send all features (sent: ['*']).",
        place="model",
    )


def check_stages_trusted(
    catalog: Catalog, service: Service, definitions: Sequence[FeatureDefinition | None] = ()
) -> None:
    """Raise InputError if a stage predicts with its own code, and the settings of the service do not allow
    this code. By default, these are the stages of the versions that get requests."""
    versions = (service.version, service.canary, service.shadow_version)
    serving = [service.features.get(one) for one in versions]
    for definition in filter(None, definitions or serving):
        for version in chain_stages(catalog, definition):
            check_trusted(version, service.settings)


def chain_stages(catalog: Catalog, definition: FeatureDefinition | None) -> tuple[Artifact, ...]:
    """Return the different versions that are stages of a definition, and their stages."""
    stages = definition.all_stages() if definition is not None else ()
    return tuple(fetch_artifact(catalog, one) for one in dict.fromkeys(stage.version for stage in stages))


def stage_folders(catalog: Catalog, service: Service) -> Mapping[str, str]:
    """Return the URIs of the files of all stages of a service, by their ids."""
    return {
        stage.version: fetch_artifact(catalog, stage.version).output.uri
        for definition in service.features.values()
        for stage in definition.all_stages()
    }
