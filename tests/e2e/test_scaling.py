"""A service whose number of replicas follows the load, and the measurement of one replica. No control node
runs in these tests."""

import json
import os
import time
from pathlib import Path

import pytest

from gridmill.domain.amounts import MIB
from gridmill.domain.serving import Scaling, ServedVersion, ServiceState
from gridmill.errors import UnavailableError
from gridmill.serving.calibration import CONNECTIONS, calibrate
from gridmill.serving.service_files import write_order
from tests.e2e.conftest import processes_mentioning
from tests.kit.paced_load import PacedLoad
from tests.kit.served_models import code_model, linear_model, order_of, row
from tests.kit.services import PATIENCE_SECONDS, Load, Service, wait_for
from tests.unit.serving.test_code_model import trusted

pytestmark = pytest.mark.e2e
BODY = {"rows": [row()]}


def wanted(service: Service) -> int | None:
    """The number of wanted replicas, if they are ready."""
    report = service.report()
    return report.wanted if report.state == ServiceState.READY else None


def test_requests_wait_while_the_first_replica_starts_from_zero(tmp_path: Path) -> None:
    terms = Scaling(least=0, most=2, rate_per_replica=1e6, down_seconds=1.0, idle_seconds=1.0)
    with Service(tmp_path / "s", order_of(linear_model(tmp_path / "m"), scaling=terms)) as service:
        service.call("/predict", BODY)
        wait_for("no replica", lambda: wanted(service) == 0 and not service.pids())
        assert "no request for 1 s" in service.report().scale_reason
        with Load(service.report().port, BODY, clients=4) as load:
            wait_for("the reason", lambda: "a request waited" in service.report().scale_reason)
            load.wait_for_more(20)
        assert load.failures == []
        assert set(load.statuses) == {200}


def test_replicas_are_added_while_the_rate_is_high_and_removed_when_it_is_low_again(tmp_path: Path) -> None:
    terms = Scaling(least=1, most=2, rate_per_replica=40.0, slow_seconds=60.0, down_seconds=6.0)
    with Service(tmp_path / "s", order_of(linear_model(tmp_path / "m"), scaling=terms)) as service:
        first = service.ready_pids()
        load = PacedLoad(service.report().port, json.dumps(BODY).encode(), 60.0)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wanted(service) != 2:
            load.run(0.5)
            assert time.monotonic() < deadline, service.report()
        assert len(service.ready_pids()) == 2
        assert first < service.ready_pids()
        report = service.report()
        assert "requests/s need 2 replicas: one serves 40 requests/s" in report.scale_reason
        assert report.generation == 1
        metrics = service.text("/metrics")
        assert "gridmill_replicas_wanted 2" in metrics
        assert "gridmill_scale_changes_total 1" in metrics
        load.close()
        wait_for("one replica", lambda: wanted(service) == 1 and len(service.ready_pids()) == 1)
        assert "for 6 s" in service.report().scale_reason
        assert service.report().restarts == 0


def test_a_calibration_measures_the_rate_the_cpus_and_the_memory_of_one_replica(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    write_order(tmp_path / "s", order_of(linear_model(tmp_path / "m"), calibrates=True))
    measured = calibrate(tmp_path / "s")
    assert measured.version == "weather/linear@1"
    counts = [one.connections for one in measured.points]
    assert counts == list(CONNECTIONS[: len(counts)])
    assert len(counts) >= 3
    for one in measured.points:
        assert one.rate_per_second > 0
        assert 0 < one.mean_seconds <= one.p99_seconds
        assert one.batch_rows >= 1
    assert max(one.batch_rows for one in measured.points) > 1
    assert 0 < measured.cpu_seconds < 1
    assert 50 * MIB < measured.replica_bytes < 1024 * MIB
    assert measured.start_seconds > 0
    assert not processes_mentioning(os.fspath(tmp_path / "s"))


def test_a_calibration_counts_the_cpus_and_the_memory_of_the_code_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    write_order(tmp_path / "s", trusted(code_model(tmp_path / "m"), calibrates=True))
    measured = calibrate(tmp_path / "s")
    assert 10 * MIB < measured.code_bytes < 1024 * MIB
    assert measured.replica_bytes > 50 * MIB
    assert 0 < measured.cpu_seconds < 1
    assert measured.cpus_per_replica <= 2
    assert not processes_mentioning(os.fspath(tmp_path / "m"))


def test_a_version_that_cannot_be_loaded_ends_its_calibration_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    version = ServedVersion(label="weather/linear@1", folder=str(tmp_path / "nothing"))
    write_order(tmp_path / "s", order_of(linear_model(tmp_path / "m"), versions=(version,), calibrates=True))
    with pytest.raises(UnavailableError, match=r"weather/linear@1 cannot be served: .*do not exist"):
        calibrate(tmp_path / "s")
