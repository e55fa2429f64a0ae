"""`POST /predict`: named fields in, named predictions out, and errors that name the field and the row."""

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.kit.served_models import linear_model, order_of, row, run
from tests.unit.jobs.training.test_training import classes, train

from gridmill.domain.serving import RequestLog, ServedVersion
from gridmill.jobs.apply_model import apply_model
from gridmill.serving.request_log import RequestLogWriter
from gridmill.serving.served_model import load_version


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return linear_model(tmp_path_factory.mktemp("models") / "m")


@pytest.mark.parametrize("form", [lambda rows: {"rows": rows}, lambda rows: rows], ids=["object", "list"])
def test_rows_with_named_fields_get_predictions(tmp_path, model, form):
    async def scenario(call, hosted):
        reply = await call(
            "/predict", form([row(), row(3, 0, "Köln"), row(1, 1, "unknown"), row(1, 1, None)])
        )
        assert reply.status == 200
        assert [one["prediction"] for one in reply.json()["predictions"]] == [121, 1003, 11, 11]
        assert reply.json()["version"] == reply.headers["x-model-version"] == "weather/linear@1"
        assert "not_finite" not in reply.json()

    run(scenario, order_of(model), tmp_path)


def test_no_rows_get_no_predictions(tmp_path, model):
    async def scenario(call, hosted):
        assert (await call("/predict", {"rows": []})).json()["predictions"] == []

    run(scenario, order_of(model), tmp_path)


def test_an_output_that_is_not_finite_is_null_and_its_row_is_named(tmp_path, model):
    async def scenario(call, hosted):
        answer = (await call("/predict", {"rows": [row(), row(None), row(1e308, 1e308)]})).json()
        assert [one["prediction"] for one in answer["predictions"]] == [121, None, None]
        assert answer["not_finite"] == [1, 2]

    run(scenario, order_of(model), tmp_path)


def test_an_error_names_every_wrong_field_and_its_row(tmp_path, model):
    async def scenario(call, hosted):
        reply = await call("/predict", {"rows": [row(), row("x"), {"temp": 1, "city": 3}, 4]})
        assert reply.status == 422
        found = [(one["row"], one["field"]) for one in reply.json()["problems"]]
        assert found == [(1, "temp"), (2, "wind speed"), (2, "city"), (3, None)]
        assert "row 1, field 'temp': the value is a text, not a number or null" in reply.json()["error"]

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "the body is empty"),
        (b"{", 400, "not valid JSON"),
        (b'{"rows": [{"temp": NaN}]}', 400, "not valid JSON"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b'{"rows": [{"temp": -Infinity}]}', 400, "the body is not valid JSON: invalid"),
        (b'{"rows": [', 400, "JSON: it is not complete"),
        (b'{"rows": [{"city": "\\ud800"}]}', 400, "JSON: half of a surrogate pair"),
        (b'{"rows": [{"city": "K\xf6ln"}]}', 400, "JSON: it is not UTF-8: byte 0xf6 (byte 21)"),
        (b'\xef\xbb\xbf{"rows": []}', 400, "JSON: it begins with a byte order mark"),
        ('{"rows": []}'.encode("utf-16"), 400, "JSON: it begins with a byte order mark"),
        (b'{"rows": [{"temp": "\xc3\xb6"}], 3}', 400, "double quotes (byte 27)"),
        (b'{"rows": [{"temp": %s, "wind speed": 1, "city": null}]}' % (b"9" * 5000), 422, "too large"),
        (b"{}", 422, "no list of rows"),
        (b"3", 422, "no list of rows"),
        (b'{"rows": [{"temp": 1e999, "wind speed": 1, "city": null}]}', 422, "temp': the number is too"),
        (b'{"rows": [{"temp": %s, "wind speed": 1, "city": null}]}' % (b"9" * 400), 422, "too large"),
        (b'{"rows": [{"temp": true, "wind speed": 1, "city": null}]}', 422, "the value is true"),
    ],
)
def test_a_wrong_body_is_explained(tmp_path, model, body, status, words):
    async def scenario(call, hosted):
        reply = await call("/predict", body)
        assert (reply.status, words in reply.json()["error"]) == (status, True), reply.body

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
def test_nan_in_json_gets_the_hint_to_send_null(tmp_path, model, value):
    async def scenario(call, hosted):
        body = b'{"rows": [{"temp": %s}]}' % value
        reply = await call("/predict", body)
        assert "Send null" in reply.json()["hint"]
        line = await call("/predict", body[10:-2], headers={"content-type": "application/x-ndjson"})
        assert "Send null" in line.json()["hint"]
        assert "hint" not in (await call("/predict", body[:-12] + b"x")).json()

    run(scenario, order_of(model), tmp_path)


def test_the_hint_about_a_body_without_rows_names_all_fields_that_exist(tmp_path, model):
    async def scenario(call, hosted):
        hint = (await call("/predict", {})).json()["hint"]
        assert "the fields 'temp', 'wind speed', 'city'. `GET /openapi.json`" in hint

    run(scenario, order_of(model), tmp_path)


def test_each_json_line_gets_one_line(tmp_path, model):
    lines = [json.dumps(row()), "{", json.dumps(row("x")), json.dumps(row(None)), json.dumps(row(2))]

    async def scenario(call, hosted):
        kind = {"content-type": "application/x-ndjson"}
        reply = await call("/predict", "\n".join(lines).encode(), headers=kind)
        answers = [json.loads(line) for line in reply.body.splitlines()]
        assert reply.headers["x-failed-rows"] == "2"
        assert (answers[0], answers[4]) == ({"prediction": 121}, {"prediction": 122})
        assert answers[1]["row"] == 1
        assert "not valid JSON" in answers[1]["error"]
        assert (answers[2]["problems"][0]["row"], answers[2]["problems"][0]["field"]) == (2, "temp")
        assert answers[2]["error"].startswith("row 2, field 'temp': ")
        assert answers[3] == {"prediction": None, "not_finite": True}

    run(scenario, order_of(model), tmp_path)


def test_bodies_are_compressed_in_both_directions(tmp_path, model):
    content = gzip.compress(json.dumps({"rows": [row()] * 500}).encode())

    async def scenario(call, hosted):
        headers = {"content-encoding": "gzip", "accept-encoding": "br, gzip;q=0.5"}
        reply = await call("/predict", content, headers=headers)
        assert reply.headers["content-encoding"] == "gzip"
        assert len(json.loads(gzip.decompress(reply.body))["predictions"]) == 500
        plain = await call("/predict", content, headers=headers | {"accept-encoding": "gzip;q=0"})
        assert len(plain.json()["predictions"]) == 500
        for wrong in (content[:-9], content + b"x", content + content, json.dumps([row()]).encode()):
            reply = await call("/predict", wrong, headers=headers)
            assert (reply.status, reply.json()["code"]) == (400, "malformed")
        assert (await call("/predict", content, headers={"content-encoding": "br"})).status == 415

    run(scenario, order_of(model), tmp_path)


def test_a_body_that_is_too_large_is_refused_also_when_it_is_compressed(tmp_path, model):
    async def scenario(call, hosted):
        assert (await call("/predict", b" " * 2000, headers={"content-length": "2000"})).status == 413
        assert (await call("/predict", pieces=[b" " * 600] * 3)).status == 413
        bomb = gzip.compress(b" " * 100_000)
        assert (await call("/predict", bomb, headers={"content-encoding": "gzip"})).status == 413
        assert (await call("/predict", pieces=[json.dumps([row()]).encode(), b"  ", b" "])).status == 200

    run(scenario, order_of(model, max_body_bytes=1000), tmp_path)


def test_a_row_of_a_sequence_model_is_a_list_of_objects(tmp_path):
    model = linear_model(tmp_path / "sequence", sequence=3)

    async def scenario(call, hosted):
        rows = [[row(1), row(2), row(3)], [row(9), row(1), row(2), row(3)], [row(1)]]
        answer = (await call("/predict", {"rows": rows})).json()
        # the second has more rows than the model reads, and the only row of the third is repeated
        assert [one["prediction"] for one in answer["predictions"]] == [366, 366, 363]
        for wrong in ([], [row()], row(), [row("x")]):
            reply = await call("/predict", {"rows": [rows[0], wrong]})
            assert (reply.status == 422) == (wrong != [row()])
            if reply.status == 422:
                assert reply.json()["problems"][0]["row"] == 1

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize("kind", ["gbdt", "linear", "mlp", "lstm", "naive"])
@pytest.mark.parametrize("columns", [None, classes], ids=["numbers", "classes"])
def test_a_service_predicts_what_a_prediction_job_predicts(tmp_path, kind, columns):
    train(tmp_path, kind, columns and columns())
    folder = tmp_path / "outputs/m"
    table = pq.read_table(tmp_path / "datasets/d").sort_by([("city", "ascending"), ("time", "ascending")])
    expected = apply_model(folder, "m", table.slice(0, 100)).to_pylist()
    model = load_version(ServedVersion(label="m@1", folder=str(folder)), "1", 1)
    names = [one.name for one in model.reader.fields]
    rows = table.slice(0, 100).select(names).to_pylist()
    if (length := model.card.sequence) is not None:
        rows = [rows[max(0, n + 1 - length) : n + 1] for n in range(100)]
    assert len(rows) == 100

    async def scenario(call, hosted):
        predictions = (await call("/predict", {"rows": rows})).json()["predictions"]
        for one, other in zip(predictions, expected, strict=True):
            assert one == {name: close_to(other[name]) for name in one}
        assert set(predictions[0]) == set(expected[0]) - {"row", "city", "time", "truth"}

    run(scenario, order_of(folder), tmp_path)


def close_to(value: object) -> object:
    return pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize("bodies", [False, True])
def test_the_request_log_has_ids_and_no_bodies_unless_they_are_asked_for(tmp_path, model, bodies):
    log = RequestLogWriter(RequestLog(folder=str(tmp_path / "log"), bodies=bodies), "weather", 0)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def scenario(call, hosted):
        headers = {"x-request-id": "mine", "traceparent": trace}
        reply = await call("/predict", {"rows": [row(41)]}, headers=headers)
        assert (reply.headers["x-request-id"], reply.headers["traceparent"]) == ("mine", trace)
        other = await call("/predict", {"rows": [row(41)]}, headers={"x-request-id": "a\x01" + "b" * 200})
        assert len(other.headers["x-request-id"]) < 60

    run(scenario, order_of(model), tmp_path, log=log)
    log.flush()
    text = (tmp_path / "log/requests-0.jsonl").read_text("utf-8")
    first = json.loads(text.splitlines()[0])
    assert (first["request_id"], first["traceparent"], first["rows"], first["status"]) == (
        "mine",
        trace,
        1,
        200,
    )
    # "161" alone may also be in the time or the duration of a request
    assert ('"prediction\\": 161' in text or '"prediction\\":161' in text) == bodies
