"""A service of a model with its own code: its failures cost only the requests that cause them."""

import os
import signal
from pathlib import Path

import pytest

from tests.kit.served_models import code_model, row
from tests.kit.services import Load, Service, wait_for
from tests.unit.serving.test_code_model import trusted

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
