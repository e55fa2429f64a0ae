"""A router in front of a service, each with its parent process: replicas and routers are killed while clients
send requests."""

import os
import signal
from pathlib import Path

import pytest

from gridmill.domain.serving import ServiceOrder, Upstream
from tests.kit.served_models import linear_model, order_of, row
from tests.kit.services import Load, Service, wait_for

pytestmark = pytest.mark.e2e
BODY = {"rows": [row()]}


def router_order(service: Service, generation: int = 1) -> ServiceOrder:
    settings = {"host": "127.0.0.1", "port": str(service.report().port)}
    upstream = Upstream(link="tcp", attempt_id=f"a{generation}", settings=settings)
    return ServiceOrder(name="rain", versions=(), upstream=upstream, generation=generation)


def test_no_request_fails_when_replicas_are_killed_and_when_the_service_moves(tmp_path: Path) -> None:
    order = order_of(linear_model(tmp_path / "m"))
    with (
        Service(tmp_path / "first", order) as first,
        Service(tmp_path / "second", order) as second,
        Service(tmp_path / "r", router_order(first)) as router,
    ):
        with Load(router.report().port, BODY) as load:
            [victim] = first.ready_pids()
            os.kill(victim, signal.SIGKILL)
            wait_for("a successor", lambda: first.ready_pids() - {victim})
            load.wait_for_more(50)
            routers = router.ready_pids()
            router.update(router_order(second, 2))
            router.wait_ready()
            assert first.stop() == 0
            load.wait_for_more(50)
            assert router.ready_pids() == routers  # the router itself goes on
            [killed] = routers
            os.kill(killed, signal.SIGKILL)
            wait_for("another router", lambda: router.ready_pids() - {killed})
            load.wait_for_more(50)
        assert set(load.statuses) == {200}
        # only the requests that were on their way in the router when it was killed
        assert len(load.failures) <= 4
