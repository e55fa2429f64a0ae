"""Models with their own code: the process of the code is replaced when it fails, hangs, ends or leaks."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kit.served_models import code_model, order_of, row, run

from gridmill.domain.serving import ServiceOrder
from gridmill.errors import InputError, JobError
from gridmill.jobs.model_files import load_card
from gridmill.serving.code_model import CodeModel, python_of
from gridmill.serving.served_model import load_version

GOOD = np.array([[1.0, 2.0]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return code_model(tmp_path_factory.mktemp("models") / "m")


@pytest.fixture
def model(folder):
    made = CodeModel(
        load_card(folder),
        folder,
        python=python_of(folder, load_card(folder)),
        threads=1,
        timeout_seconds=0.5,
        growth_bytes=2**22,
    )
    made.predict(GOOD)
    yield made
    made.close()


def trusted(folder: Path, **settings: object) -> ServiceOrder:
    order = order_of(folder, **settings)
    return replace(order, versions=(replace(order.versions[0], trust=True),))


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_an_exception_of_the_code_leaves_its_process(model):
    pid = model.pid
    with pytest.raises(JobError, match="raised ValueError"):
        model.predict(np.array([[-1.0, 0.0]]))
    with pytest.raises(JobError, match="99 predictions for 1 rows"):
        model.predict(np.array([[-6.0, 0.0]]))
    with pytest.raises(JobError, match="returned None or a single number for 1 rows"):
        model.predict(np.array([[-8.0, 0.0]]))
    with pytest.raises(JobError, match=r"own.py:predict: the model returned an array of shape \(1, 3\)"):
        model.predict(np.array([[-7.0, 0.0]]))
    assert model.predict(GOOD).tolist() == [21.0]
    assert model.pid == pid


@pytest.mark.parametrize(
    ("temp", "message"), [(-2.0, "exit code 3"), (-3.0, "within 0.5 s"), (-5.0, "exit code 4")]
)
def test_a_process_that_ends_or_hangs_is_replaced(model, temp, message):
    pid = model.pid
    with pytest.raises(JobError, match=message):
        model.predict(np.array([[temp, 0.0]]))
    assert gone(pid)
    assert model.predict(GOOD).tolist() == [21.0]


def test_a_process_that_leaks_is_replaced_without_a_failed_prediction(model):
    pid = model.pid
    for _ in range(200):
        assert model.predict(np.array([[-4.0, 1.0], [1.0, 2.0]])).tolist() == [6.0, 21.0]
        if model.pid != pid:
            break
    assert model.pid != pid
    assert gone(pid)


def test_the_time_in_which_code_is_loaded_does_not_count_as_the_time_of_a_batch(folder, model):
    served = load_version(trusted(folder).versions[0], "1", 1)
    try:
        served.predict(GOOD)
        now = time.monotonic()
        assert served.busy_seconds(3.0, now + 3.0) == pytest.approx(3.0, abs=0.5)
        assert served.busy_seconds(300.0, now) < 60.0  # the code was loaded less than a minute ago
        served.predictor.loaded_at = math.inf
        assert served.busy_seconds(300.0, now) == 0.0
    finally:
        served.close()
    before = model.loaded_at
    with pytest.raises(JobError, match="exit code 3"):
        model.predict(np.array([[-2.0, 0.0]]))
    assert model.predict(GOOD).tolist() == [21.0]
    assert before < model.loaded_at < time.monotonic()


def test_a_close_ends_the_process(folder, model):
    pid = model.pid
    model.close()
    assert gone(pid)


def test_code_needs_trust(folder):
    with pytest.raises(InputError, match="predicts with its own code") as caught:
        load_version(order_of(folder).versions[0], "1", 1)
    assert "--trust" in caught.value.hint


def test_a_client_gets_the_failure_without_a_traceback_and_others_get_predictions(tmp_path, folder):
    async def scenario(call, hosted):
        try:
            good, bad = ({"rows": [row(temp, 2)]} for temp in (1, -1))
            assert (await call("/predict", good)).json()["predictions"] == [{"prediction": 21}]
            reply = await call("/predict", bad, headers={"x-request-id": "r-1"})
            assert reply.status == 500
            assert (reply.json()["code"], reply.json()["request_id"]) == ("model-failed", "r-1")
            assert b"secret" not in reply.body
            assert b"Traceback" not in reply.body
            wrong = (await call("/predict", {"rows": [row(-6, 2)]})).json()
            assert (wrong["code"], wrong["error"]) == ("model-failed", "the model failed for these rows")
            assert (await call("/predict", good)).status == 200
        finally:
            for one in hosted:
                one.model.close()

    run(scenario, trusted(folder), tmp_path, inline=False)


def test_an_environment_that_cannot_be_built_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("GRIDMILL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRIDMILL_ENVIRONMENT_BUILDER", "gridmill.pod.version_environment")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wrong = code_model(tmp_path / "m", environment="no-such-package-of-ours==1.0\n")
    with pytest.raises(InputError, match=r"(?s)the environment of the model: .*no-such-package-of-ours"):
        python_of(wrong, load_card(wrong))
