"""The simulated EC2 that the tests of this folder use, with a clock that they move."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.ec2 import client

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2


@pytest.fixture
def simulation() -> Iterator[EC2Simulation]:
    """A simulated EC2 whose machines are only states."""
    with simulated_ec2(clock=FakeClock()) as made:
        yield made


@pytest.fixture
def ec2(simulation: EC2Simulation) -> Any:
    """A client of EC2 with all rights."""
    return client(simulation)
