"""The simulated provider passes the conformance suite for providers, in each of its modes."""

from collections.abc import Collection
from dataclasses import replace
from math import inf

import pytest

from gridmill.errors import GridmillError, NoMachineError, QuotaError
from gridmill.ports.cloud import LaunchRequest, SelfEnd
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.catalog import TRAITS, Catalog
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.cloud.provider_faults import ProviderFaults
from gridmill.testing.cloud_suite import CloudHarness, CloudSuite


class SimulatedHarness(CloudHarness):
    """A simulated account whose time passes at each step."""

    region, zone, instance_type, image = "north-1", "north-1a", "gpu.one", "ubuntu"
    unpriced_type = "odd.unpriced"

    def __init__(self, mode: SelfEnd, faults: ProviderFaults) -> None:
        self.clock = FakeClock()
        catalog = Catalog(
            images=("ubuntu",),
            quotas={("north-1", "gpu", False): 400.0, ("north-1", "gpu", True): 64.0},
        )
        traits = replace(TRAITS[mode], launch_gap_seconds=0.0)
        self.account = SimulatedAccount(self.clock, traits=traits, faults=faults, catalog=catalog)
        self.cloud = SimulatedProvider(self.account)

    def alive(self) -> Collection[str]:
        return [one.id for one in self.account.machines_alive()]

    def step(self) -> None:
        self.clock.advance(5.0)

    def reopen(self) -> None:
        self.cloud.close()
        self.cloud = SimulatedProvider(self.account, name="again")

    def refuse(self, error: type[GridmillError]) -> LaunchRequest:
        request = self.request("refused")
        if error is NoMachineError:
            faults = replace(self.account.faults, no_machine=frozenset({(self.zone, self.instance_type)}))
            self.account.use_faults(faults)
            return request
        if error is QuotaError:
            return replace(request, instance_type="gpu.eight", spot=True)
        return replace(request, image="unknown")

    def fail(self, method: str, fault: str) -> None:
        self.account.give_faults(method, fault)

    def refuse_credentials(self, refuse: bool) -> None:
        self.account.credentials_end = self.clock.monotonic() if refuse else inf


class TestSimulatedProvider(CloudSuite):
    """The suite with each mode, with lists that are complete and lists that lag."""

    @pytest.fixture(params=[(mode, lag) for mode in SelfEnd for lag in (0.0, 90.0)], ids=str)
    def harness(self, request: pytest.FixtureRequest) -> CloudHarness:
        mode, lag = request.param
        faults = ProviderFaults(lag_seconds=lag, detach_seconds=lag, orphaned_volumes=0.5)
        return SimulatedHarness(mode, faults)
