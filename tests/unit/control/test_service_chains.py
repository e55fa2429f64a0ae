"""The chain of a model follows from the versions from which its dataset was made."""

from dataclasses import replace

import pytest

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.service_chains import (
    chain_links,
    chain_stages,
    check_levels,
    check_stages_trusted,
)
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.dataset import Basis, DatasetSpec, Join
from gridmill.domain.service_canary import canary_bytes, with_canary, without_canary
from gridmill.domain.service_features import FeatureDefinition, FeatureStage
from gridmill.domain.service_settings import ServiceSettings
from gridmill.errors import InputError
from gridmill.stores.memory import make
from gridmill.testing.memory_logs import MemoryLogs
from gridmill.testing.store_samples import a_service


def version(name: str, kind: ArtifactKind, *made_from: str, **details: object) -> Artifact:
    pipeline_job = f"s/{name}"
    output = Output(kind=kind, uri=f"d/{name}", details=details)
    return Artifact(
        id=f"{pipeline_job}@1",
        name=pipeline_job,
        number=1,
        output=output,
        fingerprint=name,
        made_from=made_from,
    )


KEYS = {"entity": ["shop"], "time": "day", "dataset": "s/features@1"}
TREES = version("trees", ArtifactKind.MODEL)
CODE = version("code", ArtifactKind.MODEL, predict="code/own.py:predict")
VERSIONS = (
    TREES,
    CODE,
    version("features", ArtifactKind.DATASET),
    version("trees_say", ArtifactKind.PREDICTION, model_id="s/trees@1", **KEYS),
    version("code_says", ArtifactKind.PREDICTION, model_id="s/code@1", **KEYS),
    version("sales", ArtifactKind.SINK),
)
SECOND = version("second", ArtifactKind.DATASET, "s/sales@1", "s/trees_say@1", "s/code_says@1")
SPEC = DatasetSpec(
    basis=Basis(table="sales", time="day", entity=("shop",)),
    joins=(
        Join(table="trees_say", on=("shop", "day"), prefix="trees_"),
        Join(table="s/code_says", on=("day", "shop"), prefix="code_"),
    ),
)


def catalog(*versions: Artifact) -> Catalog:
    made = Catalog(ledger=Ledger(make(), MemoryLogs()))
    for one in versions:
        made.versions[one.id] = one
    return made


def test_predictions_that_are_joined_by_row_are_the_stages() -> None:
    links = chain_links(catalog(*VERSIONS), SECOND, SPEC)
    assert [(one.model.id, one.dataset.id, one.tables) for one in links] == [
        ("s/trees@1", "s/features@1", ("trees_say",)),
        ("s/code@1", "s/features@1", ("s/code_says",)),
    ]


def test_other_joins_and_other_tables_are_read_from_views() -> None:
    by_shop = replace(
        SPEC, joins=(Join(table="trees_say", on=("shop",)), Join(table="sales", on=("shop", "day")))
    )
    assert chain_links(catalog(*VERSIONS), SECOND, by_shop) == ()
    assert chain_links(catalog(*VERSIONS), replace(SECOND, made_from=()), SPEC) == ()


def test_a_stage_that_was_removed_is_an_error_with_the_way_out() -> None:
    removed = (replace(TREES, removed=True), *VERSIONS[1:])
    with pytest.raises(InputError, match=r"predictions s/trees_say@1.*s/trees@1 was removed") as refused:
        chain_links(catalog(*removed), SECOND, SPEC)
    assert "sent: ['*']" in refused.value.hint


def test_a_stage_with_its_own_code_needs_trust_and_is_kept() -> None:
    definition = FeatureDefinition(folder="f", view="v", tables={}, request={})
    stage = FeatureStage(version="s/code@1", columns={"code_prediction": "prediction"}, definition=definition)
    service = a_service()
    service = replace(service, features={service.version: replace(definition, stages=(stage,))})
    assert "s/code@1" in service.versions
    with pytest.raises(InputError, match="s/code@1 predicts with its own code"):
        check_stages_trusted(catalog(*VERSIONS), service)
    check_stages_trusted(catalog(*VERSIONS), replace(service, settings=ServiceSettings(trust=True)))


def test_a_canary_needs_the_memory_and_the_trust_of_its_stages_until_it_is_rolled_back() -> None:
    here = catalog(*VERSIONS)
    definition = FeatureDefinition(folder="f", view="v", tables={}, request={})
    code = FeatureStage(version="s/code@1", columns={"code_prediction": "prediction"}, definition=definition)
    trees = FeatureStage(
        version="s/trees@1",
        columns={"trees_prediction": "prediction"},
        definition=replace(definition, stages=(code,)),
    )
    nested = replace(definition, stages=(trees, code))
    stages = chain_stages(here, nested)
    assert [one.id for one in stages] == ["s/code@1", "s/trees@1"]
    canary = replace(TREES, id="s/stacked@2", output=replace(TREES.output, size_bytes=1000))
    before = a_service()
    after = with_canary(before, canary, stages=stages, model=canary.id, follows="", percent=10.0, now=1.0)
    after = replace(after, features={canary.id: nested})
    assert after.canary_bytes == 2000 + canary_bytes(CODE)
    assert {"s/code@1", "s/trees@1"} <= set(after.versions)
    with pytest.raises(InputError, match="s/code@1 predicts with its own code"):
        check_stages_trusted(here, after)
    rolled_back = without_canary(after, 2.0)
    check_stages_trusted(here, rolled_back)
    assert rolled_back.versions == before.versions


def test_a_chain_that_is_too_deep_is_refused_with_its_models() -> None:
    names = [f"s/m{number}@1" for number in range(6)]
    check_levels(names[:5])
    with pytest.raises(InputError, match=r"more than 4 levels of stages: it reads s/m1@1, which reads s/m2"):
        check_levels(names)
