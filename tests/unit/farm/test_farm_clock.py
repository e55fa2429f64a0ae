"""A jump of the clock of a farm is no silence of its tenants."""

import time
from pathlib import Path

import pytest
from tests.kit.farms import farm, open_folder

from gridmill.farm.join import invite
from gridmill.farm.main import TickLoop


@pytest.mark.parametrize("jump", [36_000.0, -36_000.0])
def test_a_jump_of_the_clock_is_no_silence(tmp_path: Path, jump: float) -> None:
    with open_folder() as there, farm(there / "farm") as running:
        running.tick_loop.close()
        shift = [0.0]
        running.farm.now = lambda: time.time() + shift[0]
        assert invite(running.farm.records, running.farm.now())
        loop = TickLoop(running.farm, 3600.0)
        running.farm.last_contacts["t"] = running.farm.now() - 100.0
        shift[0] = jump
        loop._follow_clock(running.farm.now(), time.monotonic())
        silent = running.farm.now() - running.farm.last_contacts["t"]
        assert silent == pytest.approx(100.0, abs=30.0)
