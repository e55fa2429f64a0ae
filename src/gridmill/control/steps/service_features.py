"""This module has what ticks and use cases do with the contextual features of services: the question that
defines them, and the newest versions of the tables behind their views."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gridmill.codec import from_builtins
from gridmill.control.catalog import Catalog
from gridmill.control.steps.references import fetch_artifact, find_version
from gridmill.control.steps.service_chains import ChainLink, chain_links, check_levels, stage_folders
from gridmill.domain.artifact import Artifact, Output, split_reference
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import replace
from gridmill.domain.run import JobRun
from gridmill.domain.service import Service
from gridmill.domain.service_features import (
    ALL_SENT,
    DECLARATION,
    FeatureDefinition,
    FeatureQuestion,
    FeatureSettings,
    StageQuestion,
    TableVersion,
    ViewOrder,
    ViewOrders,
    check_sent_features,
    may_need_view,
    request_differences,
)
from gridmill.domain.serving import ServedStage, ServedVersion, ServiceOrder
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, InputError, NotFoundError, from_body
from gridmill.ports.storage import Storage

_READ_DETAILS = ("outages",)
"""The details of a table that are needed to read its rows."""


def feature_question(
    catalog: Catalog,
    storage: Storage,
    name: str,
    model: Artifact,
    settings: FeatureSettings,
    definitions: Iterable[FeatureDefinition],
) -> FeatureQuestion | None:
    """Return the question that defines the contextual features of a model for the service `name`.

    The result is None if requests send all features. `definitions` are the definitions that the service has;
    their folders are kept. Raises InputError if a table of the dataset was removed.
    """
    needed = _dataset_to_compute(catalog, model, settings)
    if needed is None:
        return None
    dataset, spec = needed
    details = model.output.details
    kept = (part for one in definitions for part in one.all_definitions())
    question = FeatureQuestion(
        service=name,
        root=storage.location,
        dataset=dataset,
        spec=spec,
        inputs=_tables(catalog, dataset, spec),
        columns=tuple(details.get("features") or ()),
        sequence=details.get("sequence"),
        settings=settings,
        kept=tuple(uri for one in kept for uri in (one.folder, one.view)),
    )
    return replace(question, stages=_stages(catalog, question, (model.id,)))


def _dataset_to_compute(
    catalog: Catalog, model: Artifact, settings: FeatureSettings
) -> tuple[Artifact, DatasetSpec] | None:
    """Return the dataset of a model with its declaration. The result is None if requests send all
    features."""
    dataset = _dataset_of(catalog, model.output.details)
    spec = _declared(catalog, dataset) if dataset is not None else None
    if dataset is None or spec is None or settings.sent == (ALL_SENT,):
        return None
    return (dataset, spec) if may_need_view(spec, model.output.details.get("sequence")) else None


def check_feature_names(catalog: Catalog, model: Artifact, settings: FeatureSettings) -> None:
    """Raise InputError for settings that name features that a service of this version does not compute, as
    far as this is known without the data."""
    if _dataset_to_compute(catalog, model, settings) is None:
        check_sent_features(model, settings)


def _stages(catalog: Catalog, question: FeatureQuestion, path: Sequence[str]) -> tuple[StageQuestion, ...]:
    """Return the questions about the models whose predictions the dataset of a question joins. `path` are the
    ids of the models from the last one of the chain to that of the question."""
    return tuple(
        StageQuestion(
            tables=link.tables, version=link.model, question=_of_stage(catalog, question, link, path)
        )
        for link in chain_links(catalog, question.dataset, question.spec)
    )


def _of_stage(
    catalog: Catalog, question: FeatureQuestion, link: ChainLink, path: Sequence[str]
) -> FeatureQuestion:
    path = (*path, link.model.id)
    check_levels(path)
    details, spec = link.model.output.details, _declared(catalog, link.dataset)
    if spec is None:
        raise InputError(
            f"the features of {link.model.id} cannot be computed, because the declaration of "
            f"{link.dataset.id} has no record",
            hint=f"Run the pipeline again, or let requests send all features (sent: ['{ALL_SENT}']).",
            place="model",
        )
    of_stage = replace(
        question,
        dataset=link.dataset,
        spec=spec,
        inputs=_tables(catalog, link.dataset, spec),
        columns=tuple(details.get("features") or ()),
        sequence=details.get("sequence"),
        is_stage=True,
    )
    return replace(of_stage, stages=_stages(catalog, of_stage, path))


def has_stages(catalog: Catalog, model: Artifact) -> bool:
    """Return whether features of a model are predictions of other versions. Raises InputError if such a
    version was removed."""
    dataset = _dataset_of(catalog, model.output.details)
    spec = _declared(catalog, dataset) if dataset is not None else None
    return dataset is not None and spec is not None and bool(chain_links(catalog, dataset, spec))


def define_features(storage: Storage, question: FeatureQuestion | None) -> FeatureDefinition | None:
    """Store the definition of the features, and return it. The result is None if requests send all features.

    Takes long: do not call it while you hold the lock of the control node. Raises InputError that names each
    feature that cannot be computed by key, UnavailableError.
    """
    if question is None:
        return None
    answer = storage.define_features(question)
    if answer.error is not None:
        raise from_body(dict(answer.error))
    return answer.definition


def why_other_requests(before: FeatureDefinition | None, after: FeatureDefinition | None) -> str:
    """Return why requests to one version of a model cannot be sent to another version; empty if they can."""
    if before is None or after is None:
        if before is after:
            return ""
        return "requests send all features" if after is None else "requests send keys instead of all features"
    return "; ".join(request_differences(before.request, after.request))


def _dataset_of(catalog: Catalog, details: Mapping[str, Any]) -> Artifact | None:
    dataset_id = details.get("dataset")
    try:
        return fetch_artifact(catalog, dataset_id) if dataset_id else None
    except NotFoundError:
        return None


def _declared(catalog: Catalog, dataset: Artifact) -> DatasetSpec | None:
    """Return the declaration of a dataset. A version that was made before declarations were recorded has it
    only as long as its run has a record."""
    try:
        found = dataset.output.details.get(DECLARATION)
        if found is not None:
            return from_builtins(found, DatasetSpec)
    except GridmillError:
        return None
    job_run = catalog.ledger.read(JobRun, f"{dataset.run_id}/{dataset.name.partition('/')[2]}")
    return job_run.job.dataset if job_run is not None else None


def _tables(catalog: Catalog, dataset: Artifact, spec: DatasetSpec) -> dict[str, Artifact]:
    """Return the newest versions of the tables of a dataset, by their names in the declaration."""
    pipeline = dataset.name.partition("/")[0]
    tables: dict[str, Artifact] = {}
    for name in spec.references():
        job = split_reference(name)[0]
        artifact = job if "/" in job else f"{pipeline}/{job}"
        try:
            tables[name] = find_version(catalog, artifact)
        except NotFoundError as error:
            raise InputError(
                f"the features of {dataset.id} are computed from {artifact}, which has no version",
                hint=f"Load it again, or let requests send all features (sent: ['{ALL_SENT}']).",
                place="features",
            ) from error
    return tables


def view_orders(catalog: Catalog, storage: Storage, service: Service, now: float) -> ViewOrders | None:
    """Return the newest versions of the tables behind the views of a service; None if it has no views."""
    if not service.features:
        return None
    # stages can have the same definition
    parts = {part.folder: part for one in service.definitions for part in one.all_definitions()}
    views = (_view_order(catalog, storage, one, service.feature_settings) for one in parts.values())
    return ViewOrders(views=tuple(one for one in views if one is not None), checked_at=now)


def _view_order(
    catalog: Catalog, storage: Storage, definition: FeatureDefinition, settings: FeatureSettings
) -> ViewOrder | None:
    """Return the newest versions of the tables behind one view. The result is None while a table has no
    version; the view then keeps what it holds."""
    try:
        tables = {
            name: _table_version(find_version(catalog, artifact))
            for name, artifact in definition.tables.items()
        }
    except NotFoundError:
        return None
    root = storage.location
    return ViewOrder(
        definition=str(below(root, definition.folder)),
        folder=str(below(root, definition.view)),
        root=root,
        tables=tables,
        reach_back_seconds=settings.reach_back_seconds,
    )


def _table_version(version: Artifact) -> TableVersion:
    output: Output = version.output
    details = {name: output.details[name] for name in _READ_DETAILS if name in output.details}
    return TableVersion(artifact=version.id, output=replace(output, columns=(), metrics={}, details=details))


def with_definitions(
    catalog: Catalog, storage: Storage, service: Service, order: ServiceOrder
) -> ServiceOrder:
    """Return the order with the paths of the definitions of the features of its versions, and with the stages
    of these versions. The memory of a replica was measured without features, so it is not limited with
    them."""
    if not any(one.label in service.features for one in order.loaded):
        return order
    folders = stage_folders(catalog, service)

    def defined(version: ServedVersion, definition: FeatureDefinition) -> ServedVersion:
        stages = tuple(
            ServedStage(
                version=defined(
                    ServedVersion(
                        label=one.version,
                        folder=str(below(storage.location, folders[one.version])),
                        trust=bool(service.settings.trust),
                    ),
                    one.definition,
                ),
                columns=one.columns,
            )
            for one in definition.stages
        )
        folder, view = (str(below(storage.location, uri)) for uri in (definition.folder, definition.view))
        return replace(version, features=folder, view=view, stages=stages)

    versions = tuple(
        defined(one, service.features[one.label]) if one.label in service.features else one
        for one in order.versions
    )
    shadow = order.shadow
    if shadow is not None and shadow.version.label in service.features:
        version = defined(shadow.version, service.features[shadow.version.label])
        shadow = replace(shadow, version=version, memory_bytes=None)
    return replace(order, versions=versions, shadow=shadow, memory_bytes=None)


def with_definition(service: Service, version: str, definition: FeatureDefinition | None) -> Service:
    """Return the service with the definition of a version. Definitions of versions that the service no longer
    needs are left out."""
    needed = {one: service.features[one] for one in service.versions if one in service.features}
    before = needed.pop(version, None)
    if definition is not None:
        needed[version] = definition
    replaced = () if before is None or before == definition else (before,)
    used = service.features_before
    used += tuple(one for one in replaced if one not in used)
    return replace(service, features=needed, features_before=used)
