"""Starts a simulated Lambda Cloud, and controls it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gridmill.ports.clock import Clock
from gridmill.testing.cloud.bill import Bill
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.lambda_cloud.api import LambdaApi
from gridmill.testing.cloud.lambda_cloud.bills import bill_of, leftovers
from gridmill.testing.cloud.lambda_cloud.records import Instance
from gridmill.testing.cloud.lambda_cloud.world import LambdaWorld
from gridmill.testing.cloud.machine_host import MachineHost, NoMachines
from gridmill.testing.cloud.simulation_server import Answer
from gridmill.testing.cloud.wire_simulation import WallClock, WireSimulation, record_json


class LambdaSimulation(WireSimulation):
    """A running simulated Lambda Cloud with one account. All its methods can be called from any thread.

    `endpoint_url` is the address that replaces `https://cloud.lambda.ai`, and `api_key` a valid API key.
    """

    def __init__(
        self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int, port: int = 0
    ) -> None:
        self.world = LambdaWorld(clock, faults, host, seed)
        self._api = LambdaApi(self.world)
        self.api_key = self.add_api_key()
        super().__init__("lambda-cloud", self.world, port)

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return self._api.answer(method, path, headers, body)

    def add_api_key(self) -> str:
        """Returns a new API key of the account."""
        with self.world.lock:
            key = f"secret_simulated_{self.world.random.getrandbits(160):040x}"
            self.world.api_keys[key] = True
            return key

    def revoke(self, api_key: str = "") -> None:
        """Revokes an API key, or the first one: Lambda answers with status 401 from now on."""
        with self.world.lock:
            self.world.api_keys[api_key or self.api_key] = False

    def restore(self, api_key: str = "") -> None:
        """Makes a revoked API key valid again."""
        with self.world.lock:
            self.world.api_keys[api_key or self.api_key] = True

    def set_active(self, is_active: bool) -> None:
        """Deactivates or activates the account. Lambda answers requests of an inactive account with status
        403."""
        with self.world.lock:
            self.world.is_active = is_active

    def machines(self) -> list[Instance]:
        """Returns all instances as they really are: also those that lists do not show."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.instances.all())

    def running(self) -> list[Instance]:
        """Returns the instances that exist and are not ending."""
        return [one for one in self.machines() if one.runs]

    def leftovers(self) -> list[str]:
        """Returns the ids of everything that still exists in the account: instances, SSH keys and firewall
        rulesets."""
        with self.world.lock:
            self.world.settle()
            return leftovers(self.world)

    def bill(self) -> Bill:
        """Returns the bill of the account until now."""
        with self.world.lock:
            return bill_of(self.world, self.world.settle())

    def break_machine(self, instance_id: str) -> None:
        """The machine dies. Lambda shows it as unhealthy, and charges for it."""
        with self.world.lock:
            self.world.die(instance_id, self.world.settle())

    def shut_down(self, instance_id: str) -> None:
        """The machine shuts itself down, which does not end the instance."""
        self.break_machine(instance_id)

    def terminate_by_hand(self, instance_id: str) -> None:
        """Somebody terminates the instance in the dashboard of Lambda."""
        with self.world.lock:
            now = self.world.settle()
            self.world.terminate(self.world.find(instance_id), now)

    def _commands(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        return {
            "machines": lambda _: [_machine_json(one) for one in self.machines()],
            "break": lambda given: self.break_machine(given["instance"]),
            "shut-down": lambda given: self.shut_down(given["instance"]),
            "terminate": lambda given: self.terminate_by_hand(given["instance"]),
            "revoke": lambda _: self.revoke(),
            "restore": lambda _: self.restore(),
        }


def _machine_json(instance: Instance) -> dict[str, Any]:
    return record_json(instance) | {"tags": dict(instance.tags)}


@contextmanager
def simulated_lambda(
    *,
    clock: Clock | None = None,
    faults: CloudFaults | None = None,
    host: MachineHost | None = None,
    seed: int = 0,
    port: int = 0,
) -> Iterator[LambdaSimulation]:
    """Starts a simulated Lambda Cloud for the duration of the `with` block. Without arguments, it uses the
    clock of this machine, has no faults, and its machines are only states.

    The ids and the random faults are the same for the same `seed` and the same requests. `port` is the port
    of the server; 0 means any free port.
    """
    simulation = LambdaSimulation(
        clock or WallClock(), faults or CloudFaults(seed=seed), host or NoMachines(), seed, port
    )
    try:
        yield simulation
    finally:
        simulation.close()
