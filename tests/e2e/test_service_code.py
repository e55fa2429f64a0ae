"""Code of a model in a service, whose failures cost only the requests that cause them, and the drift
of requests."""

import json
import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

from gridmill.domain.amounts import MIB, POD_GPU_SHARES
from gridmill.jobs.model_files import load_card
from gridmill.jobs.training_statistics import save_statistics, statistics_of
from tests.kit.gpus import SimulatedGpus
from tests.kit.served_models import FIELDS, code_model, linear_model, order_of, row
from tests.kit.services import Load, Service, wait_for
from tests.unit.serving.test_code_model import trusted
from tests.unit.serving.test_drift_counter import predictions, rows

pytestmark = pytest.mark.e2e


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
        int(one)
        for task in Path(f"/proc/{pid}/task").iterdir()
        if task.name != str(pid)
        for one in (task / "children").read_text().split()
    ]


def test_code_that_fails_hangs_or_ends_is_replaced_and_other_requests_are_answered(tmp_path: Path) -> None:
    order = trusted(code_model(tmp_path / "m"), replicas=1, timeout_seconds=1.0)
    with Service(tmp_path / "s", order) as service:
        replica = min(service.ready_pids())

        def status_of(temp: int) -> int:
            return service.call("/predict", {"rows": [row(temp, 2)]})[0]

        for temp, failure in ((-1, (500,)), (-2, (500,)), (-3, (500, 504))):
            wait_for("an answer", lambda: status_of(1) == 200)
            assert status_of(temp) in failure
        wait_for("an answer", lambda: status_of(1) == 200)
        assert service.ready_pids() == {replica}
        assert service.report().restarts == 0
        assert "the secret of a traceback" in service.log()

        left = children(replica)
        assert left
        with Load(service.report().port, {"rows": [row(1, 2)]}, clients=2, retries=1) as load:
            load.wait_for_more(20)
        assert set(load.statuses) == {200}
        os.kill(replica, signal.SIGKILL)
        wait_for("the end of the code", lambda: not any(os.path.exists(f"/proc/{one}") for one in left))
        wait_for("a successor", lambda: service.ready_pids() - {replica})
        assert service.call("/predict", {"rows": [row(1, 2)]})[0] == 200


def environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_replicas_use_one_gpu_each_and_one_above_its_share_is_restarted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, gpus = code_model(tmp_path / "m"), SimulatedGpus(tmp_path / "gpus", processes_with=f"{tmp_path}/m")
    gpus.use(1024 * MIB)
    monkeypatch.setenv("PATH", f"{gpus.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with Service(tmp_path / "s", trusted(model, replicas=2)) as service:
        wait_for("the measurement", lambda: all(one.gpu_memory_bytes for one in service.report().replicas))
        replicas = service.ready_pids()
        code = [pid for replica in replicas for pid in children(replica)]
        assert sorted(environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in code) == ["0", "1"]
        assert [one.gpu_memory_bytes for one in service.report().replicas] == [1024 * MIB] * 2
        assert "gridmill_gpu_memory_bytes" in service.text("/metrics")

        gpus.use(20 * 1024 * MIB, only=code[0])

        def has_ended() -> bool:
            # each request has a connection of its own, and so reaches each replica at some time
            assert service.call("/predict", {"rows": [row(1, 2)]})[0] == 200
            return not os.path.exists(f"/proc/{code[0]}")

        wait_for("the end of the code above its share", has_ended)
        assert service.call("/predict", {"rows": [row(1, 2)]})[0] == 200
        assert service.ready_pids() == replicas
        assert os.path.exists(f"/proc/{code[1]}")
        assert "uses 20 GiB of GPU memory; its share is 16 GiB" in service.log()


def test_two_services_share_a_gpu_and_code_above_its_limit_is_restarted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = SimulatedGpus(tmp_path / "gpus", processes_with=f"{tmp_path}/m")
    gpus.use(2048 * MIB)
    monkeypatch.setenv("PATH", f"{gpus.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(POD_GPU_SHARES, "16")
    first = trusted(code_model(tmp_path / "m1"), replicas=1)
    second = trusted(code_model(tmp_path / "m2"), replicas=1, gpu_memory_bytes=4096 * MIB)
    with Service(tmp_path / "s1", first) as rain, Service(tmp_path / "s2", second) as hail:
        both, code = (rain, hail), []
        for service in both:
            wait_for(
                "the measurement", lambda one=service: all(r.gpu_needed_bytes for r in one.report().replicas)
            )
            (report,) = service.report().replicas
            assert (report.gpu_needed_bytes, report.gpu_size_bytes) == (2048 * MIB, 16384 * MIB)
            code += children(min(service.ready_pids()))
        assert {environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in code} == {"0"}
        gpus.use(3000 * MIB, only=code[0])

        def has_ended() -> bool:
            for service in both:
                assert service.call("/predict", {"rows": [row(1, 2)]})[0] == 200
            return not os.path.exists(f"/proc/{code[0]}")

        wait_for("the end of the code above its limit", has_ended)
        assert os.path.exists(f"/proc/{code[1]}")
        assert "uses 2.9 GiB of GPU memory; its share is 2.5 GiB" in rain.log()
        assert "GPU memory" not in hail.log()
        assert [service.report().restarts for service in both] == [0, 0]
        assert rain.call("/predict", {"rows": [row(1, 2)]})[0] == 200


def test_requests_that_differ_from_the_training_rows_are_reported_as_drift(tmp_path: Path) -> None:
    model = linear_model(tmp_path / "m")
    save_statistics(model, statistics_of(load_card(model), rows(1000), predictions(rows(1000))))
    with Service(tmp_path / "s", order_of(model)) as service:

        def drift_after(shift: float) -> tuple[str, ...]:
            body = [dict(zip(FIELDS, (*one[:2], None), strict=True)) for one in (rows(400) + shift).tolist()]
            text = json.loads(json.dumps(body).replace("NaN", "null"))
            assert service.call("/predict", {"rows": text})[0] == 200
            return service.report().drift[0].drifting

        wait_for("a drift", lambda: "temp" in drift_after(5.0))
        metrics = requests_text(service.report().port, "/metrics")
        assert 'gridmill_drift_psi{version="weather/linear@1",feature="temp"}' in metrics


def requests_text(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.read().decode()
