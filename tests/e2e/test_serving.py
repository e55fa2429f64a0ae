"""A service whose replicas are killed, replaced and drained while clients send requests."""

import itertools
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.http as tritonclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gridmill.domain.serving import ServiceState
from tests.kit.served_models import linear_model, order_of, row
from tests.kit.services import Load, Service, wait_for

pytestmark = pytest.mark.e2e
BODY = {"rows": [row()]}


def test_a_service_answers_survives_kills_and_updates_without_a_failed_request(tmp_path):
    models = [linear_model(tmp_path / f"m{number}") for number in range(2)]
    order = order_of(models[0], replicas=2)
    with Service(tmp_path / "s", order) as service:
        report = service.report()
        assert service.call("/predict", BODY)[1]["predictions"] == [{"prediction": 121}]
        assert service.call("/v2/health/ready") == (200, {"ready": True})

        with Load(report.port, BODY) as load:
            first = service.ready_pids()
            both = order_of(*models, replicas=2)
            service.update(replace(both, versions=both.versions[1:], generation=2))
            service.wait_ready()
            load.wait_for_more(50)
        assert load.failures == []
        assert set(load.statuses) == {200}
        assert set(load.versions) == {"weather/linear@1", "weather/linear@2"}
        assert not first & service.ready_pids()

        with Load(report.port, BODY, retries=1) as load:
            victim = min(service.ready_pids())
            os.kill(victim, signal.SIGKILL)
            wait_for("a successor", lambda: len(service.ready_pids() - {victim}) == 2)
            load.wait_for_more(50)
        assert load.failures == []
        assert set(load.statuses) == {200}
        assert service.report().restarts == 1
        assert "SIGKILL" in service.report().last_failure
        assert service.stop() == 0
    assert service.report().state == ServiceState.STOPPED


def test_a_parent_process_that_was_killed_gets_its_port_again(tmp_path):
    with Service(tmp_path / "s", order_of(linear_model(tmp_path / "m"))) as service:
        port, pids = service.report().port, service.pids()
        service.parent.kill()
        service.parent.wait()
        service.start()
        service.wait_ready()
        assert service.report().port == port
        assert not set(pids) & set(service.pids())
        assert service.call("/predict", BODY)[0] == 200
        wait_for("the end of the first replica", lambda: not os.path.exists(f"/proc/{pids[0]}"))


def test_an_update_to_a_version_that_cannot_be_loaded_leaves_the_service_as_it_is(tmp_path):
    order = order_of(linear_model(tmp_path / "m"), max_failures=2)
    with Service(tmp_path / "s", order) as service:
        pids = service.ready_pids()
        wrong = replace(order.versions[0], label="weather/linear@2", folder=str(tmp_path / "nothing"))
        service.order = replace(order, versions=(wrong,), generation=2)
        service.update(service.order)
        wait_for("a failure", lambda: service.report().state == ServiceState.FAILED)
        report = service.report()
        assert "do not exist" in report.problem
        assert (report.generation, report.seen_generation) == (1, 2)
        assert service.ready_pids() == pids
        assert service.call("/predict", BODY)[0] == 200
        # a further order is tried again
        service.update(replace(order, generation=3))
        service.wait_ready()
        assert service.report().problem == ""


def test_an_unmodified_client_of_the_open_inference_protocol_works(tmp_path):
    model = linear_model(tmp_path / "m")
    with Service(tmp_path / "s", order_of(model)) as service:
        client = tritonclient.InferenceServerClient(f"127.0.0.1:{service.report().port}")
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("weather", "1")
        assert client.get_server_metadata()["name"] == "gridmill"
        assert client.get_model_metadata("weather")["inputs"][2]["datatype"] == "BYTES"
        assert client.get_model_config("weather")["input"][0]["data_type"] == "TYPE_FP64"
        assert client.get_model_repository_index()[0]["state"] == "READY"
        for binary, packing in itertools.product((True, False), (None, "gzip", "deflate")):
            result = client.infer(
                "weather",
                _tensors(binary),
                outputs=[tritonclient.InferRequestedOutput("prediction", binary_data=binary)],
                request_id="7",
                request_compression_algorithm=packing,
                response_compression_algorithm=packing,
            )
            assert result.as_numpy("prediction").tolist() == [121, 1002]
            assert result.get_response()["id"] == "7"
        assert client.infer("weather", _tensors(True)).as_numpy("prediction").tolist() == [121, 1002]
        assert client.get_inference_statistics("weather")["model_stats"][0]["inference_count"] == 14
        for wrong in ("other", "weather/versions/9"):
            with pytest.raises(InferenceServerException):
                client.infer(wrong, _tensors(True))
        with pytest.raises(InferenceServerException, match="there is no such path"):
            client.get_system_shared_memory_status()
        client.close()


def _tensors(binary: bool) -> list[tritonclient.InferInput]:
    arrays = {
        "temp": np.array([1, 2], np.float64),
        "wind speed": np.array([2, 0], np.float32),
        "city": np.array([b"Ulm", "Köln".encode()], object),
    }
    tensors = []
    for name, array in arrays.items():
        tensor = tritonclient.InferInput(name, [2], np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=binary)
        tensors.append(tensor)
    return tensors
