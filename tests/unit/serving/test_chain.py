"""A chain of versions: stages that compute in parallel, one error for the fields of all stages, a stage that
fails, and rows that the chain must reproduce."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.served_models import run, sum_model

from gridmill.domain.frozen import replace
from gridmill.domain.serving import ServedStage, ServedVersion, ServiceOrder
from gridmill.errors import DataError, JobError
from gridmill.jobs.features import Encoding, Floats
from gridmill.online.chain_rows import ChainRows, load_chain_rows, save_chain_rows
from gridmill.online.definition import OnlineDefinition
from gridmill.online.plan import OnlinePlan
from gridmill.serving.served_model import ServedModel, SharedStages, load_version

ROW = {"temp": 3.0, "wind": 40.0}


def version(
    folder: Path, name: str, request: tuple[str, ...], feature: str, sql: str, stages: tuple[ServedStage, ...]
) -> ServedVersion:
    """A version that adds the columns of the request, and a feature that is an expression of them."""
    names = (*request, feature)
    plan = OnlinePlan(
        time=None,
        entity=(),
        request=dict.fromkeys(request, "DOUBLE"),
        feeds=(),
        expressions={feature: sql},
        features=names,
    )
    OnlineDefinition(plan=plan, view="view", example=dict.fromkeys(request, 1.0)).save(folder / f"{name}-def")
    model = sum_model(folder / name, [Encoding(column=one, type="double") for one in names])
    return ServedVersion(
        label=f"w/{name}@1", folder=str(model), features=str(folder / f"{name}-def"), stages=stages
    )


def nested(folder: Path, order: ServiceOrder) -> ServiceOrder:
    """A model over the chain of the order, which also reads a stage of this chain directly."""
    (last,) = order.versions
    stages = (
        ServedStage(version=last, columns={"m_says": "prediction"}),
        ServedStage(version=last.stages[0].version, columns={"a_says": "prediction"}),
    )
    top = version(folder, "top", ("m_says", "a_says", "sun"), "warmer", "a_says + 1", stages)
    return ServiceOrder(name="w", versions=(top, replace(last, label="w/m@0")))


@pytest.fixture
def order(tmp_path: Path) -> ServiceOrder:
    """Two stages, which predict 3 · temp and 3 · wind, and a model that predicts their sum and product."""
    stages = (
        ServedStage(
            version=version(tmp_path, "a", ("temp",), "twice", "2 * temp", ()),
            columns={"a_says": "prediction"},
        ),
        ServedStage(
            version=version(tmp_path, "b", ("wind",), "twice", "2 * wind", ()),
            columns={"b_says": "prediction"},
        ),
    )
    last = version(tmp_path, "m", ("a_says", "b_says"), "product", "a_says * b_says", stages)
    return ServiceOrder(name="w", versions=(last,))


def test_a_request_passes_through_all_stages_at_the_same_time(order: ServiceOrder, tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=60)

    def predict(model: ServedModel) -> Callable[[Floats], Floats]:
        def computed(inputs: Floats) -> Floats:
            if not model.stages:
                meeting.wait()  # passes only if the other stage computes now
            return model.predict(inputs)

        return computed

    async def scenario(call: Any, hosted: Any) -> None:
        reply = await call("/predict?features=values", {"rows": [ROW, {"temp": 1.0, "wind": 2.0}]})
        assert reply.status == 200, reply.json()
        assert reply.json()["predictions"] == [{"prediction": 129.0 + 1080.0}, {"prediction": 9.0 + 18.0}]
        values = reply.json()["features"]["values"][0]
        assert values == {
            "a_says": 9.0,
            "b_says": 120.0,
            "product": 1080.0,
            "temp": 3.0,
            "twice": 6.0,
            "wind": 40.0,
            "w/b@1.twice": 80.0,
        }

    run(scenario, order, tmp_path, predict=predict, inline=False)


def test_the_outside_has_the_fields_of_all_stages(order: ServiceOrder, tmp_path: Path) -> None:
    async def scenario(call: Any, hosted: Any) -> None:
        row = (await call("/openapi.json")).json()["components"]["schemas"]["Row"]
        assert set(row["required"]) == {"temp", "wind"}
        assert set(row["properties"]) == {"temp", "wind"}
        inputs = (await call("/v2/models/w")).json()["inputs"]
        assert {one["name"] for one in inputs} == {"temp", "wind"}
        reply = await call("/predict", {"rows": [ROW, {}]})
        found = [(one["row"], one["field"]) for one in reply.json()["problems"]]
        assert (reply.status, found) == (422, [(1, "temp"), (1, "wind")])
        assert reply.json()["hint"].startswith("A row needs wind, temp. ")
        reply = await call("/predict", {"rows": [{**ROW, "wind": "strong"}]})
        assert (reply.status, reply.json()["problems"][0]["field"]) == (422, "wind")
        kind = {"content-type": "application/x-ndjson"}
        lines = await call("/predict", b'{"temp":1,"wind":2}\n{"temp":1}\n', headers=kind)
        assert lines.headers["x-failed-rows"] == "1"
        assert b'"prediction":27' in lines.body.splitlines()[0]

    run(scenario, order, tmp_path)


def test_a_stage_that_fails_is_named(order: ServiceOrder, tmp_path: Path) -> None:
    def predict(model: ServedModel) -> Callable[[Floats], Floats]:
        def fails(inputs: Floats) -> Floats:
            raise JobError("it fails")

        return fails if model.label == "w/b@1" else model.predict

    async def scenario(call: Any, hosted: Any) -> None:
        reply = await call("/predict", {"rows": [ROW]})
        assert (reply.status, reply.json()["code"]) == (500, "model-failed")
        assert reply.json()["error"].startswith("stage w/b@1: ")

    run(scenario, order, tmp_path, predict=predict)


def chain_rows(changes: Mapping[str, float]) -> ChainRows:
    rows = {"a_says": 9.0, "b_says": 120.0, "product": 1080.0} | changes

    def table(**columns: float) -> pa.Table:
        return pa.table({name: [value] for name, value in columns.items()})

    return ChainRows(
        rows=table(**rows),
        stages={"w/a@1": [table(temp=3.0, twice=6.0)], "w/b@1": [table(wind=40.0, twice=80.0)]},
    )


def test_a_chain_that_predicts_other_features_than_its_dataset_has_is_not_loaded(
    order: ServiceOrder, tmp_path: Path
) -> None:
    (last,) = order.versions
    save_chain_rows(Path(last.features), chain_rows({}))
    loaded = load_chain_rows(Path(last.features))
    assert loaded is not None
    assert loaded.rows.equals(chain_rows({}).rows)
    model = load_version(last, "1", 1)
    assert [one.label for one in model.all_models()] == ["w/m@1", "w/a@1", "w/b@1"]
    assert model.predict(np.array([[9.0, 120.0, 1080.0]])).tolist() == [1209.0]
    save_chain_rows(Path(last.features), chain_rows({"b_says": 121.0}))
    with pytest.raises(DataError, match=r"stage w/b@1 predicts 120.0 as b_says of row 1 .* with 121.0"):
        load_version(last, "1", 1)


def test_a_stage_that_cannot_be_loaded_is_named(order: ServiceOrder) -> None:
    (last,) = order.versions
    (Path(last.stages[1].version.folder) / "model.json").write_text("{")
    with pytest.raises(DataError, match="stage w/b@1: "):
        load_version(last, "1", 1)


def test_a_chain_can_be_a_stage_of_another_chain(order: ServiceOrder, tmp_path: Path) -> None:
    row = {**ROW, "sun": 5.0}

    async def scenario(call: Any, hosted: Any) -> None:
        reply = await call("/predict?features=values", {"rows": [row]})
        assert reply.status == 200, reply.json()
        # m says 1209, a says 9
        assert reply.json()["predictions"] == [{"prediction": 1209.0 + 9.0 + 5.0 + 10.0}]
        values = reply.json()["features"]["values"][0]
        assert (values["m_says"], values["b_says"], values["warmer"]) == (1209.0, 120.0, 10.0)
        fields = (await call("/openapi.json")).json()["components"]["schemas"]["Row"]
        assert set(fields["required"]) == {"temp", "wind", "sun"}
        reply = await call("/predict", {"rows": [{"temp": 1.0}]})
        assert [one["field"] for one in reply.json()["problems"]] == ["wind"]
        assert reply.json()["hint"].startswith("A row needs ")
        reply = await call("/predict", {"rows": [{"temp": 1.0, "wind": 2.0}]})
        assert [one["field"] for one in reply.json()["problems"]] == ["sun"]

    made = nested(tmp_path, order)
    run(scenario, replace(made, versions=made.versions[:1]), tmp_path)


def test_a_stage_of_several_versions_is_loaded_once(order: ServiceOrder, tmp_path: Path) -> None:
    shared: SharedStages = {}
    top, other = (
        load_version(one, str(number), 1, shared=shared)
        for number, one in enumerate(nested(tmp_path, order).versions)
    )
    chain, direct = (one.model for one in top.stages)
    assert chain.stages[0].model is direct
    assert all(one.model is two.model for one, two in zip(other.stages, chain.stages, strict=True))
    assert len(shared) == 3
