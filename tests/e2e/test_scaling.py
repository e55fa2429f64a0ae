"""A service whose number of replicas follows the load: to zero, and from zero while requests wait."""

import time

import pytest

from gridmill.domain.serving import Scaling, ServiceState
from tests.kit.served_models import linear_model, order_of, row
from tests.kit.services import Load, Service, wait_for

pytestmark = pytest.mark.e2e
BODY = {"rows": [row()]}
FEW = Scaling(least=0, most=2, rate_per_replica=1e6, down_seconds=1.0, idle_seconds=1.0)


def wanted(service: Service) -> int | None:
    report = service.report()
    return report.wanted if report.state == ServiceState.READY else None


def test_requests_wait_while_the_first_replica_starts_from_zero(tmp_path):
    order = order_of(linear_model(tmp_path / "m"), scaling=FEW)
    with Service(tmp_path / "s", order) as service:
        service.call("/predict", BODY)
        wait_for("no replica", lambda: wanted(service) == 0 and not service.pids())
        assert "no request for 1 s" in service.report().scale_reason
        begin = time.monotonic()
        with Load(service.report().port, BODY, clients=4) as load:
            first_answer = time.monotonic() - begin
            assert first_answer < 30
        assert load.failures == []
        assert set(load.statuses) == {200}
        assert "a request waited for the first replica" in service.report().scale_reason
