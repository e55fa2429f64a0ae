"""A replica at the load for which a size plans it, for a long time: no error, and no growth of its memory.

`GRIDMILL_SOAK_SECONDS` is the time of the load in seconds: 300 if it is not set, 3600 in `make soak`. From
the second minute of five on (from the tenth minute of an hour on), the memory may grow by 5 %.
"""

import json
import os
import time
from pathlib import Path

import pytest

from gridmill.domain.amounts import MIB
from gridmill.domain.service_size import expected_p99
from gridmill.serving.calibration import calibrate
from gridmill.serving.replica_process import memory_bytes
from gridmill.serving.service_files import write_order
from tests.kit.paced_load import PacedLoad
from tests.kit.served_models import linear_model, order_of, row
from tests.kit.services import Service

pytestmark = [pytest.mark.e2e, pytest.mark.soak]
SECONDS = float(os.environ.get("GRIDMILL_SOAK_SECONDS", "300"))
LOOK_SECONDS = 5.0
GROWTH = 1.05


def test_a_replica_under_its_planned_load_neither_fails_nor_grows(tmp_path: Path, capsys) -> None:
    order = order_of(linear_model(tmp_path / "m"))
    (tmp_path / "c").mkdir()
    write_order(tmp_path / "c", order)
    calibration = calibrate(tmp_path / "c")
    rate = calibration.rate_per_replica
    memory: list[tuple[float, int]] = []
    with Service(tmp_path / "s", order) as service:
        (pid,) = service.ready_pids()
        load = PacedLoad(service.report().port, json.dumps({"rows": [row()]}).encode(), rate)
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < SECONDS:
            load.run(min(LOOK_SECONDS, SECONDS - passed))
            memory.append((passed, memory_bytes(pid) + memory_bytes(service.parent.pid)))
        load.close()
        assert service.ready_pids() == {pid}
        assert service.report().restarts == 0
    warm = next(size for at, size in memory if at >= min(600.0, 0.4 * SECONDS))
    largest = max(size for at, size in memory if at >= min(600.0, 0.4 * SECONDS))
    seconds = time.monotonic() - begin
    first, expected = memory[0][1], expected_p99(calibration, rate) * 1000
    with capsys.disabled():
        print(
            f"\n{load.latencies.total() / seconds:,.0f} of {rate:,.0f} requests/s in {seconds:.0f} s: p50 "
            f"{load.quantile(0.5)} ms, p99 {load.quantile(0.99)} ms (expected {expected:.1f} ms); memory "
            f"{first / MIB:.1f} MiB, {warm / MIB:.1f} MiB when warm, {largest / MIB:.1f} MiB at most"
        )
    assert largest <= GROWTH * warm
