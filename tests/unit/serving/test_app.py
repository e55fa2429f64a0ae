"""Keys, CORS, draining, versions, metrics and unexpected failures of the application of a replica."""

import asyncio
import hashlib
import json
from dataclasses import replace

import pytest
from tests.kit.served_models import application, asgi_client, linear_model, order_of, row, run

from gridmill.errors import InputError
from gridmill.serving.api_keys import ApiKeys
from gridmill.serving.metrics import BOUNDS, Metrics

BODY = {"rows": [row()]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return linear_model(tmp_path_factory.mktemp("models") / "m")


def key_file(path, *keys: str):
    lines = [f"{hashlib.sha256(key.encode()).hexdigest()} name-of-{key}" for key in keys]
    path.write_text("# keys\n\n" + "\n".join(lines))
    return path


def test_a_request_needs_a_key_but_a_health_check_does_not(tmp_path, model):
    path = key_file(tmp_path / "keys", "alpha", "beta")
    keys = ApiKeys(path)

    async def scenario(call, hosted):
        for headers in ({"authorization": "Bearer beta"}, {"x-api-key": "alpha"}):
            assert (await call("/predict", BODY, headers=headers)).status == 200
        for headers in (
            {},
            {"authorization": "Bearer gamma"},
            {"authorization": "Basic alpha"},
            {"x-api-key": ""},
        ):
            reply = await call("/predict", BODY, headers=headers)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert (await call("/metrics")).status == 401
        assert (await call("/v2/health/ready")).status == 200
        key_file(path, "a-longer-key")
        keys.reload()
        assert (await call("/predict", BODY, headers={"x-api-key": "alpha"})).status == 401
        assert (await call("/predict", BODY, headers={"x-api-key": "a-longer-key"})).status == 200

    run(scenario, order_of(model, api_keys_file=str(path)), tmp_path, keys=keys)


def test_a_damaged_file_of_keys_names_its_line(tmp_path):
    (tmp_path / "keys").write_text("# a\nabc name\n")
    with pytest.raises(InputError, match="keys:2: not a SHA-256 hash"):
        ApiKeys(tmp_path / "keys")
    with pytest.raises(InputError, match="cannot be read"):
        ApiKeys(tmp_path / "none")


def test_browsers_may_call_from_the_origins_of_the_order(tmp_path, model):
    async def scenario(call, hosted):
        asked = {"origin": "https://a.example", "access-control-request-headers": "x-api-key"}
        reply = await call("/predict", method="OPTIONS", headers=asked)
        assert (reply.status, reply.headers.keys() & {"content-length", "content-type"}) == (204, set())
        assert reply.headers["access-control-allow-origin"] == "https://a.example"
        assert reply.headers["access-control-allow-headers"] == "x-api-key"
        other = await call("/predict", BODY, headers={"origin": "https://b.example"})
        assert other.status == 200
        assert "access-control-allow-origin" not in other.headers

    run(scenario, order_of(model, cors_origins=("https://a.example",)), tmp_path)


def test_without_origins_a_preflight_is_refused(tmp_path, model):
    async def scenario(call, hosted):
        assert (
            await call("/predict", method="OPTIONS", headers={"origin": "https://a.example"})
        ).status == 405

    run(scenario, order_of(model), tmp_path)


def test_a_draining_replica_answers_and_asks_to_close_the_connection(tmp_path, model):
    order = order_of(model)

    async def inner():
        app, _ = application(order, tmp_path)
        call = asgi_client(app)
        assert "connection" not in (await call("/predict", BODY)).headers
        app.is_draining = True
        reply = await call("/predict", BODY)
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert (await call("/v2/health/ready")).status == 503
        assert (await call("/v2/health/live")).status == 200

    asyncio.run(inner())


def test_requests_are_divided_by_weight_and_can_name_a_version(tmp_path, model):
    order = order_of(model, model, model)
    weights = (1.0, 3.0, 0.0)
    versions = tuple(replace(one, weight=weight) for one, weight in zip(order.versions, weights, strict=True))

    async def scenario(call, hosted):
        replies = [(await call("/predict", BODY)).headers["x-model-version"] for _ in range(400)]
        # 300 of 400 are expected, with a standard deviation of 9
        assert 230 < replies.count("weather/linear@2") < 370
        assert "weather/linear@3" not in replies
        reply = await call("/predict?version=3", BODY)
        assert reply.headers["x-model-version"] == "weather/linear@3"
        assert (await call("/predict?version=weather/linear@1", BODY)).json()["version"] == "weather/linear@1"
        assert (await call("/predict?version=9", BODY)).status == 404

    run(scenario, replace(order, versions=versions), tmp_path)


def test_a_model_that_fails_answers_500_for_that_request_only(tmp_path, model):
    def fails_for_seven(model):
        def predict(inputs):
            if (inputs[:, 0] == 7).any():
                raise OSError("seven")
            return model.predict(inputs)

        return predict

    async def scenario(call, hosted):
        reply = await call("/predict", {"rows": [row(7)]})
        assert (reply.status, reply.json()["code"]) == (500, "model-failed")
        assert "seven" not in reply.body.decode()
        assert (await call("/predict", BODY)).status == 200

    run(scenario, order_of(model), tmp_path, predict=fails_for_seven)


def test_other_methods_paths_and_media_types_are_refused(tmp_path, model):
    async def scenario(call, hosted):
        for path, body, allowed in (("/predict", None, "POST"), ("/v2/health/live", {}, "GET, HEAD")):
            reply = await call(path, body)
            assert (reply.status, reply.headers["allow"]) == (405, allowed)
        assert (await call("/nothing")).status == 404
        assert (await call("/predict", BODY, headers={"content-type": "application/xml"})).status == 415
        assert (
            await call("/predict", BODY, headers={"content-type": "Application/JSON; charset=utf-8"})
        ).status == 200

    run(scenario, order_of(model), tmp_path)


def test_the_metrics_of_all_replicas_are_added_and_continue_after_a_restart(tmp_path, model):
    async def scenario(call, hosted):
        await call("/predict", BODY)
        await call("/predict", b"{")
        other = Metrics(tmp_path, 1)
        other.count("weather/linear@1", "predict", 200, 0.002)
        other.count("weather/linear@2", "predict", 200, 20.0)
        other.save()
        restarted = Metrics(tmp_path, 1)
        restarted.count("weather/linear@1", "predict", 200, 20.0)
        restarted.save()
        text = (await call("/metrics")).body.decode()
        assert 'gridmill_requests_total{version="weather/linear@1",kind="predict",status="200"} 3' in text
        assert 'gridmill_requests_total{version="weather/linear@1",kind="predict",status="400"} 1' in text
        assert 'gridmill_request_seconds_bucket{version="weather/linear@1",le="+Inf"} 4' in text
        assert 'gridmill_request_seconds_bucket{version="weather/linear@1",le="10"} 3' in text
        # Prometheus would miss the first request of a bucket that appears later
        assert text.count('gridmill_request_seconds_bucket{version="weather/linear@2"') == len(BOUNDS) + 1
        assert text.count("# TYPE gridmill_request_seconds histogram") == 1

    run(scenario, order_of(model), tmp_path)


def test_an_error_has_the_id_of_the_request(tmp_path, model):
    async def scenario(call, hosted):
        reply = await call("/predict", b"{", headers={"x-request-id": "abc"})
        assert json.loads(reply.body)["request_id"] == reply.headers["x-request-id"] == "abc"

    run(scenario, order_of(model), tmp_path)
