"""Requests with keys: contextual features from the view, statuses, both protocols, and errors that name the
field."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.dataset_case import DatasetCase
from tests.kit.keyed_service import keyed_order
from tests.kit.online_case import OnlineCase
from tests.kit.served_models import run
from tests.oracles.dataset_cases import note_version

from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Join, Lag, Window
from gridmill.domain.service_features import FeatureRule, OnlinePolicy, OnTrouble
from gridmill.online.view import current_file
from gridmill.serving.inference_protocol import infer
from gridmill.serving.predict import predict
from gridmill.serving.request import Request
from gridmill.serving.shadow_comparison import rows_of_answer

START = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
SPEC = DatasetSpec(
    basis=Basis(table="temps", time="at", entity=("id",)),
    windows=(Window(column="x", aggregates=(Aggregate.MEAN, Aggregate.COUNT), span_seconds=600.0),),
    lags=(Lag(column="x", steps=(1,)),),
    joins=(Join(table="places", on=("city",)),),
    features={"twice": "2 * x"},
)
VALUES = {
    "x": 10.0,
    "city": "Ulm",
    "x_mean_10m": 2.0,
    "x_count_10m": 2,
    "x_lag_1": 3.0,
    "height": 100.0,
    "twice": 20.0,
}
"""The features of the request `ASK`. The model adds them: its prediction is 137."""
ASK = {"id": "a", "x": 10.0, "city": "Ulm", "at": (START + timedelta(minutes=6)).isoformat()}


@pytest.fixture
def case(tmp_path: Path) -> OnlineCase:
    tables = DatasetCase(tmp_path)
    minutes = (0, 5, 5)
    times = pa.array([START + timedelta(minutes=one) for one in minutes], pa.timestamp("us", "UTC"))
    columns = {"id": ["a", "a", "b"], "at": times, "x": [1.0, 3.0, None], "city": ["Ulm", "Ulm", "Köln"]}
    tables.give("temps", pa.table(columns))
    tables.give("places", pa.table({"city": ["Ulm", "Köln"], "height": [100.0, 50.0]}))
    for name in ("temps", "places"):
        note_version(tables, name)
    made = OnlineCase(tables, SPEC)
    made.now = START.timestamp() + 3600.0
    made.build()
    return made


def check(case: OnlineCase, scenario: Callable[[Any], Awaitable[None]], **settings: Any) -> None:
    async def inner(call: Any, hosted: Any) -> None:
        await scenario(call)

    run(inner, keyed_order(case, **settings), case.tables.folder)


def test_a_request_with_keys_gets_the_features_of_the_view(case: OnlineCase) -> None:
    async def scenario(call: Any) -> None:
        reply = await call("/predict", {"rows": [ASK]})
        assert (reply.status, reply.json()["predictions"]) == (200, [{"prediction": 137.0}])
        assert "features" not in reply.json()
        about = (await call("/predict?features=values", {"rows": [ASK]})).json()["features"]
        held = {name: one.table_version for name, one in case.tables.tables.items()}
        assert about == {"view": held, "values": [VALUES]}
        about = (await call("/predict?features=status", {"rows": [ASK]})).json()["features"]
        assert about == {"view": held}

    check(case, scenario)


def test_the_as_of_time_of_a_request_counts_for_rows_without_a_time(case: OnlineCase) -> None:
    plain = {name: value for name, value in ASK.items() if name != "at"}

    async def scenario(call: Any) -> None:
        reply = await call("/predict?features=values", {"rows": [plain, ASK], "as_of": START.isoformat()})
        values = reply.json()["features"]["values"]
        assert (values[0]["x_count_10m"], values[0]["x_lag_1"], values[1]) == (0, None, VALUES)
        now = (await call("/predict?features=values", {"rows": [plain]})).json()["features"]
        assert (now["values"][0]["x_lag_1"], now["values"][0]["x_count_10m"]) == (3.0, 0)

    check(case, scenario)


def test_values_that_are_not_present_are_marked_by_status_feature_and_row(case: OnlineCase) -> None:
    rules = {
        "x_lag_1": FeatureRule(max_age_seconds=30.0),
        "height": FeatureRule(default=7.0),
    }

    async def scenario(call: Any) -> None:
        rows = [ASK, {**ASK, "id": "new"}, {**ASK, "city": "Rom"}]
        about = (await call("/predict", rows)).json()["features"]
        assert about["stale"] == {"x_lag_1": [0, 2]}
        assert about["defaulted"] == {"height": [2]}
        assert about["missing"] == {"x_mean_10m": [1], "x_lag_1": [1]}

    check(case, scenario, rules=rules)


def test_features_that_the_request_sends_are_not_computed(case: OnlineCase) -> None:
    sent = {"city": "Rom", "x": 10.0, "x_mean_10m": 1, "x_count_10m": 1, "x_lag_1": 1, "height": 1}

    async def scenario(call: Any) -> None:
        reply = await call("/predict", {"rows": [sent]})
        assert reply.json()["predictions"] == [{"prediction": 34.0}], reply.json()
        assert "features" not in reply.json()
        reply = await call("/predict", {"rows": [{**sent, "x_lag_1": "high"}]})
        assert (reply.status, reply.json()["problems"][0]["field"]) == (422, "x_lag_1")

    check(case, scenario)


@pytest.mark.parametrize(
    ("change", "status", "place", "words"),
    [
        ({"id": 3}, 422, (0, "id"), "3 is not a text"),
        ({"x": "high"}, 422, (0, "x"), "'high' is not a number"),
        ({"at": "noon"}, 422, (0, "at"), "'noon' is not a time"),
        ({"at": "2124-01-01T00:00:00Z"}, 422, (0, None), "is in the future: the clock of the service shows"),
        ({"at": 17}, 422, (0, "at"), "17 is not a time in ISO 8601"),
    ],
)
def test_a_wrong_value_gets_one_clear_error(
    case: OnlineCase, change: dict[str, Any], status: int, place: tuple[int, str], words: str
) -> None:
    async def scenario(call: Any) -> None:
        reply = await call("/predict", {"rows": [{**ASK, **change}]})
        problem = reply.json()["problems"][0]
        assert (reply.status, (problem["row"], problem["field"])) == (status, place)
        assert words in reply.json()["error"]
        assert len(reply.json()["problems"]) == 1

    check(case, scenario)


def test_a_missing_key_is_named(case: OnlineCase) -> None:
    async def scenario(call: Any) -> None:
        reply = await call("/predict", {"rows": [ASK, {"x": 1.0, "city": "Ulm"}]})
        assert reply.status == 422
        assert reply.json()["problems"] == [{"row": 1, "field": "id", "problem": "the field is missing"}]

    check(case, scenario)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"rows": [{"id": NaN}]}', 400, "not valid JSON"),
        (b'{"rows": 3}', 422, "no list of rows"),
        (b'{"rows": [[]]}', 422, "not an object"),
        (b'{"rows": [], "as_of": 3}', 422, "not a time in ISO 8601"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (
            b'{"rows": [{"id": "a", "x": 1e999, "city": null}]}',
            422,
            "field 'x': the number is too large",
        ),
        (b'[{"id": "a", "x": [1e999], "city": null}]', 422, "a number is too large for a double"),
        (b'{"rows": [], "as_of": 1e999}', 422, "a number is too large for a double"),
        (b"", 400, "the body is empty"),
    ],
)
def test_a_wrong_body_is_explained(case: OnlineCase, body: bytes, status: int, words: str) -> None:
    async def scenario(call: Any) -> None:
        reply = await call("/predict", body)
        assert (reply.status, words in reply.json()["error"]) == (status, True), reply.json()

    check(case, scenario)


def test_an_unknown_key_is_refused_if_the_policy_says_so(case: OnlineCase) -> None:
    async def scenario(call: Any) -> None:
        reply = await call("/predict", {"rows": [{**ASK, "id": "new"}]})
        assert reply.status == 422
        assert "table 'temps' has no row with id='new'" in reply.json()["error"]

    check(case, scenario, policy=OnlinePolicy(on_unknown_key=OnTrouble.REFUSE))


def remove_file(case: OnlineCase) -> None:
    current_file(case.folder).unlink()


def remove_pointer(case: OnlineCase) -> None:
    (case.folder / "current").unlink()


def damage(case: OnlineCase) -> None:
    current_file(case.folder).write_bytes(b"x" * 4096)


@pytest.mark.parametrize("spoil", [remove_file, remove_pointer, damage])
@pytest.mark.parametrize("on_broken", list(OnTrouble))
def test_a_client_sees_no_path_of_the_server_if_the_view_cannot_be_used(
    case: OnlineCase,
    spoil: Callable[[OnlineCase], None],
    on_broken: OnTrouble,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spoil(case)

    async def scenario(call: Any) -> None:
        reply = await call("/predict", {"rows": [ASK]})
        assert reply.status == (503 if on_broken is OnTrouble.REFUSE else 200)
        assert "the view of the features is" in reply.body.decode()
        assert str(case.folder.parent) not in reply.body.decode()

    check(case, scenario, policy=OnlinePolicy(on_broken=on_broken))
    assert str(case.folder) in caplog.text


def test_a_missing_view_is_refused_or_answered_by_the_policy(case: OnlineCase) -> None:
    remove_file(case)

    async def refused(call: Any) -> None:
        reply = await call("/predict", {"rows": [ASK]})
        assert (reply.status, reply.json()["code"]) == (503, "view-unavailable")
        assert "is missing" in reply.json()["error"]
        assert int(reply.headers["retry-after"]) > 0
        assert (await call("/v2/health/ready")).status == 200

    async def served(call: Any) -> None:
        reply = await call("/predict", {"rows": [ASK]})
        about = reply.json()["features"]
        assert reply.status == 200
        assert about["defaulted"] == {"x_lag_1": [0]}
        assert set(about["missing"]) == {"x_mean_10m", "x_count_10m", "height"}
        assert "is missing" in about["problem"]

    check(case, refused)
    rules = {"x_lag_1": FeatureRule(default=0.0)}
    check(case, served, rules=rules, policy=OnlinePolicy(on_broken=OnTrouble.SERVE))


def test_a_damaged_view_and_an_old_view_are_refused(case: OnlineCase) -> None:
    old = OnlinePolicy(stale_after_seconds=60.0, on_stale=OnTrouble.REFUSE)

    async def is_old(call: Any) -> None:
        reply = await call("/predict", {"rows": [ASK]})
        assert (reply.status, reply.json()["code"]) == (503, "view-unavailable")
        assert "the view was last updated" in reply.json()["error"]

    case.now = time.time() - 120.0
    case.refresh()
    check(case, is_old, policy=old)
    path = current_file(case.folder)
    path.write_bytes(b"x" * path.stat().st_size)

    async def is_damaged(call: Any) -> None:
        reply = await call("/predict", {"rows": [ASK]})
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert reply.json()["hint"] == "The service builds the view again. Then send the request again."

    check(case, is_damaged)


def test_each_line_gets_its_own_features_and_errors(case: OnlineCase) -> None:
    lines = [json.dumps(ASK), json.dumps({**ASK, "x": "high"}), "{", json.dumps({**ASK, "id": "new"})]
    body, headers = "\n".join(lines).encode(), {"content-type": "application/x-ndjson"}

    async def scenario(call: Any) -> None:
        reply = await call("/predict", body, headers=headers)
        answers = [json.loads(line) for line in reply.body.splitlines()]
        assert (reply.status, reply.headers["x-failed-rows"]) == (200, "2")
        assert answers[0] == {"prediction": 137.0}
        assert (answers[1]["row"], answers[1]["problems"][0]["field"]) == (1, "x")
        assert answers[2]["code"] == "malformed"
        assert answers[3]["features"]["missing"] == ["x_mean_10m", "x_lag_1"]

    check(case, scenario)


def tensor(name: str, datatype: str, value: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [1], "data": [value]}


def test_the_open_inference_protocol_takes_keys_as_tensors(case: OnlineCase) -> None:
    inputs = [tensor("id", "BYTES", "a"), tensor("x", "FP64", 10.0), tensor("city", "BYTES", "Ulm")]

    async def scenario(call: Any) -> None:
        body = {"inputs": [*inputs, tensor("at", "BYTES", ASK["at"])], "parameters": {"features": "values"}}
        reply = (await call("/v2/models/temps/infer", body)).json()
        assert reply["outputs"][0]["data"] == [137.0]
        assert json.loads(reply["parameters"]["features"])["values"] == [VALUES]
        body = {"inputs": inputs, "parameters": {"as_of": ASK["at"]}}
        reply = (await call("/v2/models/temps/infer", body)).json()
        assert (reply["outputs"][0]["data"], "parameters" in reply) == ([137.0], False)
        encoded = {"name": "inputs", "datatype": "FP64", "shape": [1, 6], "data": [1, 1, 1, 1, 1, 1]}
        reply = await call("/v2/models/temps/infer", {"inputs": [encoded]})
        assert reply.json()["outputs"][0]["data"] == [6.0]
        named = (await call("/v2/models/temps")).json()["inputs"]
        assert [(one["name"], one["datatype"]) for one in named] == [
            ("id", "BYTES"),
            ("x", "FP64"),
            ("city", "BYTES"),
        ]
        reply = await call("/v2/models/temps/infer", {"inputs": inputs[1:]})
        assert (reply.status, reply.json()["problems"][0]["field"]) == (400, "id")
        wrong = {**inputs[0], "shape": [1, 1, 1]}
        assert (await call("/v2/models/temps/infer", {"inputs": [wrong, *inputs[1:]]})).status == 400

    check(case, scenario)


def test_the_openapi_document_shows_the_reduced_request(case: OnlineCase) -> None:
    async def scenario(call: Any) -> None:
        api = (await call("/openapi.json")).json()
        schema = api["components"]["schemas"]["Row"]
        assert schema["required"] == ["id", "x", "city"]
        assert set(schema["properties"]) == {
            *("id", "x", "city", "at"),
            *("x_mean_10m", "x_count_10m", "x_lag_1", "height"),
        }
        post = api["paths"]["/predict"]["post"]
        example = post["requestBody"]["content"]["application/json"]["example"]
        assert example == {"rows": [{"id": "b", "x": 2.0, "city": "Ulm"}]}
        assert (await call("/predict", example)).status == 200
        assert [one["name"] for one in post["parameters"]] == ["version", "features"]

    check(case, scenario, example={"id": "b", "x": 2.0, "city": "Ulm"})


def test_a_sequence_is_the_last_rows_of_the_key_and_the_row_of_the_request(tmp_path: Path) -> None:
    tables = DatasetCase(tmp_path)
    times = pa.array([START + timedelta(minutes=one) for one in range(4)], pa.timestamp("us", "UTC"))
    tables.give("temps", pa.table({"id": ["a", "a", "a", "b"], "at": times, "x": [1.0, 2.0, 4.0, 50.0]}))
    note_version(tables, "temps")
    case = OnlineCase(tables, DatasetSpec(basis=Basis(table="temps", time="at", entity=("id",))), sequence=3)
    case.now = START.timestamp() + 600.0
    case.build()

    async def scenario(call: Any) -> None:
        rows = [{"id": "a", "x": 8.0}, {"id": "b", "x": 100.0}, {"id": "new", "x": 7.0}]
        reply = (await call("/predict?features=values", rows)).json()
        assert [one["prediction"] for one in reply["predictions"]] == [14.0, 200.0, 21.0]
        assert [one["x"] for one in reply["features"]["values"][0]] == [2.0, 4.0, 8.0]
        complete = [[{"x": 1.0}, {"x": 2.0}, {"x": 3.0}]]
        assert (await call("/predict", complete)).json()["predictions"] == [{"prediction": 6.0}]
        body = {"inputs": [tensor("id", "BYTES", "a"), tensor("x", "FP64", 8.0)]}
        assert (await call("/v2/models/temps/infer", body)).json()["outputs"][0]["data"] == [14.0]
        body = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 3], "data": [1, 2, 3]}]}
        assert (await call("/v2/models/temps/infer", body)).json()["outputs"][0]["data"] == [6.0]

    check(case, scenario)


def test_the_event_loop_answers_while_features_are_computed(
    case: OnlineCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, release, begun = keyed_order(case), threading.Event(), threading.Event()

    async def scenario(call: Any, hosted: Any) -> None:
        features = hosted[0].model.features
        compute = features.features_for

        def slow(*given: Any) -> Any:
            begun.set()
            release.wait(30)
            return compute(*given)

        monkeypatch.setattr(features, "features_for", slow)
        waiting = asyncio.ensure_future(call("/predict", {"rows": [ASK]}))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert (await call("/v2/health/live")).status == 200
        release.set()
        assert (await waiting).json()["predictions"] == [{"prediction": 137.0}]

    run(scenario, order, case.tables.folder)


def test_numbers_of_tensors_that_are_nan_are_missing(case: OnlineCase) -> None:
    values = np.array([np.nan])
    inputs = [tensor("id", "BYTES", "a"), tensor("city", "BYTES", "Ulm")]

    async def scenario(call: Any) -> None:
        header = {
            "inputs": [
                *inputs,
                {"name": "x", "datatype": "FP64", "shape": [1], "parameters": {"binary_data_size": 8}},
            ],
            "parameters": {"features": "values"},
        }
        text = json.dumps(header).encode()
        headers = {"inference-header-content-length": str(len(text))}
        reply = await call("/v2/models/temps/infer", text + values.tobytes(), headers=headers)
        assert json.loads(reply.json()["parameters"]["features"])["values"][0]["x"] is None

    check(case, scenario)


def test_a_copy_of_a_request_is_computed_at_the_time_of_the_served_answer(case: OnlineCase) -> None:
    """10 minutes after START, a window of 10 minutes has rows that have left it since."""
    plain = {name: value for name, value in ASK.items() if name != "at"}
    tensors = [
        {"name": name, "shape": [1], "datatype": "FP64" if name == "x" else "BYTES", "data": [value]}
        for name, value in plain.items()
    ]
    six_minutes = round((START + timedelta(minutes=6)).timestamp()) * 1_000_000
    lines = f"{json.dumps(plain)}\n[]\n".encode()  # its second line has an error
    bodies = [
        ("/predict", b"application/json", json.dumps({"rows": [plain]}).encode()),
        ("/predict", b"application/x-ndjson", json.dumps(plain).encode()),
        ("/predict", b"application/x-ndjson", lines),
        ("/v2/models/temps/infer", b"application/json", json.dumps({"inputs": tensors}).encode()),
    ]

    async def answered(hosted: Any, path: str, kind: bytes, body: bytes, as_of_us: int) -> tuple[Any, int]:
        request = Request(
            method="POST",
            path=path,
            query={},
            headers={b"content-type": kind},
            body=body,
            request_id="1",
            as_of_us=as_of_us,
        )
        is_inference = path != "/predict"
        work = infer(hosted, request) if is_inference else predict(hosted, request, 1 << 20)
        answer = await work
        rows = rows_of_answer(answer.body, b"", is_inference=is_inference)
        value = rows[0]["prediction"]
        return value[0] if isinstance(value, list) else value, request.as_of_us

    async def scenario(call: Any, hosted: Any) -> None:
        for path, kind, body in bodies:
            begin = time.time()
            value, at_us = await answered(hosted[0], path, kind, body, 0)
            assert begin - 1e-3 <= at_us / 1e6 <= time.time()
            assert value != 137.0
            assert await answered(hosted[0], path, kind, body, at_us) == (value, at_us)
            assert await answered(hosted[0], path, kind, body, six_minutes) == (137.0, six_minutes)
        named = json.dumps({"rows": [ASK], "as_of": START.isoformat()}).encode()
        value, at_us = await answered(hosted[0], "/predict", b"application/json", named, six_minutes)
        assert (value, at_us) == (137.0, round(START.timestamp()) * 1_000_000)

    run(scenario, keyed_order(case), case.tables.folder)
