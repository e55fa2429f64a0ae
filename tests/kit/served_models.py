"""Small models that a service can load, and a client that calls the application of a replica without a
network."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.domain.training import ModelKind, Objective
from gridmill.jobs.features import Encoding
from gridmill.jobs.model_files import ModelCard, save_model
from gridmill.serving.app import Application
from gridmill.serving.batching import Batcher, BatchLimits, Predict
from gridmill.serving.chain import HostedStage, chained_of
from gridmill.serving.hosting import HostedModel, Versions
from gridmill.serving.keyed_features import keyed_of
from gridmill.serving.metrics import Metrics
from gridmill.serving.served_model import ServedModel, load_version

FIELDS = ("temp", "wind speed", "city")
CITIES = ("Ulm", "Köln")
WEIGHTS = np.array([[1.0], [10.0], [100.0], [1000.0]])
"""The prediction is temp + 10 · wind speed + 100 · (city is Ulm) + 1000 · (city is Köln)."""


def linear_model(folder: Path, *, sequence: int | None = None, classes: Sequence[str] = ()) -> Path:
    """Write a model that computes a weighted sum of its inputs, and return its folder. Missing numbers make
    the output NaN. With a `sequence`, the inputs are summed over the sequence. With two classes, the sum is
    the probability of the second class."""
    folder.mkdir(parents=True)
    shape: list[int | None] = [None, 4] if sequence is None else [None, sequence, 4]
    taken = helper.make_tensor_value_info("inputs", TensorProto.DOUBLE, shape)
    given = helper.make_tensor_value_info("output", TensorProto.DOUBLE, [None, 1])
    nodes = [helper.make_node("MatMul", ["summed", "weights"], ["output"])]
    constants = [helper.make_tensor("weights", TensorProto.DOUBLE, [4, 1], WEIGHTS.ravel())]
    if sequence is None:
        nodes.insert(0, helper.make_node("Identity", ["inputs"], ["summed"]))
    else:
        nodes.insert(0, helper.make_node("ReduceSum", ["inputs", "axis"], ["summed"], keepdims=0))
        constants.append(helper.make_tensor("axis", TensorProto.INT64, [1], [1]))
    graph = helper.make_graph(nodes, "linear", [taken], [given], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    card = ModelCard(
        kind=ModelKind.LINEAR,
        objective=Objective.CLASSIFICATION if classes else Objective.REGRESSION,
        labels=("ahead",),
        encodings=(
            Encoding(column="temp", type="double"),
            Encoding(column="wind speed", type="double"),
            Encoding(column="city", type="string", categories=CITIES),
        ),
        classes=tuple(classes),
        sequence=sequence,
    )
    save_model(folder, card, onnx.ModelProto.SerializeToString(model))
    return folder


def sum_model(folder: Path, encodings: Sequence[Encoding], *, sequence: int | None = None) -> Path:
    """Write a model whose output is the sum of all its inputs, and return its folder."""
    folder.mkdir(parents=True)
    width = sum(len(one.inputs) for one in encodings)
    shape: list[int | None] = [None, width] if sequence is None else [None, sequence, width]
    axes = [1] if sequence is None else [1, 2]
    taken = helper.make_tensor_value_info("inputs", TensorProto.DOUBLE, shape)
    given = helper.make_tensor_value_info("output", TensorProto.DOUBLE, [None, 1])
    nodes = [
        helper.make_node("ReduceSum", ["inputs", "axes"], ["sum"], keepdims=0),
        helper.make_node("Reshape", ["sum", "shape"], ["output"]),
    ]
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes),
        helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 1]),
    ]
    graph = helper.make_graph(nodes, "sum", [taken], [given], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    card = ModelCard(
        kind=ModelKind.LINEAR,
        objective=Objective.REGRESSION,
        labels=("ahead",),
        encodings=tuple(encodings),
        sequence=sequence,
    )
    save_model(folder, card, onnx.ModelProto.SerializeToString(model))
    return folder


def row(temp: float | None = 1.0, wind: float | None = 2.0, city: str | None = "Ulm") -> dict[str, Any]:
    """A row of a request. Its prediction is temp + 10 · wind + 100, for the defaults 121."""
    return dict(zip(FIELDS, (temp, wind, city), strict=True))


class Reply(NamedTuple):
    """An answer of the application."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


Call = Callable[..., Awaitable[Reply]]


def asgi_client(app: Application) -> Call:
    """A function that sends a request to the application, as a server would."""

    async def call(
        path: str,
        body: bytes | object | None = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
        pieces: Sequence[bytes] = (),
    ) -> Reply:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        parts = list(pieces) or [content]
        messages = [
            {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
            for number, part in enumerate(parts)
        ]
        sent: list[dict[str, Any]] = []
        route, _, query = path.partition("?")

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method or ("GET" if body is None and not pieces else "POST"),
            "path": route,
            "raw_path": route.encode(),
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        }
        await app(scope, receive, send)
        reply = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], reply, sent[1]["body"])

    return call


def order_of(*folders: Path, **settings: Any) -> ServiceOrder:
    """An order with a version `weather/linear@N` per folder, N from 1."""
    versions = tuple(
        ServedVersion(label=f"weather/linear@{number}", folder=str(folder))
        for number, folder in enumerate(folders, start=1)
    )
    return ServiceOrder(**{"name": "weather", "versions": versions, **settings})


def limits_of(order: ServiceOrder) -> BatchLimits:
    return BatchLimits(
        max_rows=order.max_batch,
        max_requests=order.max_concurrent,
        queue_limit=order.queue_limit,
        max_wait_seconds=order.max_wait_seconds,
        timeout_seconds=order.timeout_seconds,
    )


def application(
    order: ServiceOrder,
    folder: Path,
    *,
    predict: Callable[[ServedModel], Predict] = lambda model: model.predict,
    inline: bool = True,
    **parts: Any,
) -> tuple[Application, list[HostedModel]]:
    """The application of a replica, and its versions. `predict` makes the function that computes."""

    def host(model: ServedModel) -> HostedModel:
        batcher = Batcher(predict(model), limits_of(order), inline=inline, row_seconds=1e-6)
        stages = [HostedStage(host=host(one.model), columns=one.columns) for one in model.stages]
        keyed = chained_of(model, limits_of(order), stages) or keyed_of(model, limits_of(order))
        return HostedModel(service=order.name, model=model, batcher=batcher, keyed=keyed)

    hosted = [
        host(load_version(version, str(number), 1)) for number, version in enumerate(order.versions, start=1)
    ]
    return Application(order, Versions(hosted), Metrics(folder, 0), **parts), hosted


def run(
    scenario: Callable[[Call, list[HostedModel]], Awaitable[None]],
    order: ServiceOrder,
    folder: Path,
    **parts: Any,
) -> None:
    """Run a scenario with a client of a new application."""

    async def inner() -> None:
        app, hosted = application(order, folder, **parts)
        try:
            await scenario(asgi_client(app), hosted)
        finally:
            for one in hosted:
                one.batcher.close()
                if one.keyed is not None:
                    one.keyed.close()

    asyncio.run(inner())


CODE = """
import os, sys, time
import numpy as np

LEAKED = []

def predict(folder, inputs):
    for temp, wind in inputs:
        if temp == -1: raise ValueError("the secret of a traceback")
        if temp == -2: os._exit(3)
        if temp == -3: time.sleep(3600)
        if temp == -4: LEAKED.append(np.ones(4_000_000))
        if temp == -5: sys.exit(4)
        if temp == -6: return np.zeros(99)
        if temp == -7: return np.zeros((len(inputs), 3))
        if temp == -8: return None
    return inputs[:, 0] + 10 * inputs[:, 1]
"""


def code_model(folder: Path, *, environment: str = "") -> Path:
    """Write a model whose own code computes temp + 10 · wind speed, and fails in different ways if temp is
    negative. Return its folder."""
    (folder / "code").mkdir(parents=True)
    (folder / "code/own.py").write_text(CODE)
    card = ModelCard(
        kind=ModelKind.CUSTOM,
        objective=Objective.REGRESSION,
        labels=("ahead",),
        encodings=tuple(Encoding(column=name, type="double") for name in FIELDS[:2]),
        predict="code/own.py:predict",
        environment=environment,
        spread=(1.0,),
    )
    save_model(folder, card, None)
    return folder
