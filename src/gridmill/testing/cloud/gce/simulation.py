"""Starts a simulated Compute Engine, and controls it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gridmill.ports.clock import Clock
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.bill import Bill
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.gce.api import GoogleApi
from gridmill.testing.cloud.gce.bills import bill_of, leftovers
from gridmill.testing.cloud.gce.records import Instance
from gridmill.testing.cloud.gce.world import GceWorld
from gridmill.testing.cloud.google_accounts import TOKEN_PATH, AccountControl
from gridmill.testing.cloud.machine_host import MachineHost, NoMachines
from gridmill.testing.cloud.simulation_server import Answer
from gridmill.testing.cloud.wire_simulation import (
    TICK_SECONDS,
    WallClock,
    WireSimulation,
    record_json,
)

PROJECT = "simulated-project"
_LONGEST_WAIT_SECONDS = 120.0
"""How long a request that waits for an operation waits at most."""


class GceSimulation(AccountControl, WireSimulation):
    """A running simulated Compute Engine with one project. All its methods can be called from any thread.

    `endpoint_url` replaces `https://compute.googleapis.com`, `https://cloudbilling.googleapis.com` and
    `https://cloudresourcemanager.googleapis.com`. `project` is the id of the project, and
    `service_account_key` the JSON of a key file of an account that may do everything.
    """

    def __init__(
        self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int, port: int = 0
    ) -> None:
        self.project = PROJECT
        self.world = GceWorld(clock, faults, host, seed, PROJECT)
        self._api = GoogleApi(self.world, lambda: self.token_uri)
        self.buckets = self._api.buckets
        self.service_account = self.add_service_account("gridmill")
        AccountControl.__init__(self, self.world.accounts, self.world.lock, self.service_account)
        WireSimulation.__init__(self, "gce", self.world, port)

    @property
    def token_uri(self) -> str:
        """Returns the address that replaces `https://oauth2.googleapis.com/token`."""
        return f"{self.endpoint_url}{TOKEN_PATH}"

    @property
    def service_account_key(self) -> dict[str, str]:
        """Returns the JSON of a key file of the first service account."""
        return self.key_of(self.service_account)

    def key_of(self, email: str) -> dict[str, str]:
        """Returns the JSON of a key file of a service account."""
        with self.world.lock:
            return self.world.accounts.key_file(email, self.token_uri)

    def add_service_account(
        self,
        name: str,
        allowed: tuple[str, ...] = ("*",),
        denied: tuple[str, ...] = (),
        resources: tuple[str, ...] = ("*",),
    ) -> str:
        """Adds a service account, and returns its email address. `allowed` and `denied` are patterns of
        permissions, such as `compute.instances.delete`, and `resources` patterns of the resources that they
        are for, such as `*/instances/worker-1`, as in an IAM condition."""
        with self.world.lock:
            return self.world.accounts.add(name, allowed=allowed, denied=denied, resources=resources).email

    def add_role(self, name: str, permissions: tuple[str, ...]) -> str:
        """Adds a custom role to the project, and returns its full name."""
        with self.world.lock:
            full = f"projects/{self.world.project}/roles/{name}"
            self.world.roles[full] = permissions
            return full

    def access_token(self, email: str = "") -> str:
        """Returns a valid access token of a service account, for tests that send requests themselves."""
        with self.world.lock:
            text = self.world.accounts.new_token()
            self.world.accounts.add_token(text, email or self.service_account, self.world.wall_time())
            return text

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if method == "POST" and path.endswith("/wait") and not isinstance(self.clock, FakeClock):
            self._wait(path)
        return self._api.answer(method, path, headers, body)

    def _wait(self, path: str) -> None:
        end = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not self._api.is_done(path) and time.monotonic() < end:
            if self._closed.wait(TICK_SECONDS):
                return

    def machines(self) -> list[Instance]:
        """Returns all instances as they really are, also those that were deleted."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.instances.last_versions())

    def running(self) -> list[Instance]:
        """Returns the instances that exist, and neither stop nor are stopped."""
        return [one for one in self.machines() if one.lives]

    def find(self, instance: str) -> Instance:
        """Returns the last instance with a name or an id, as it really is. Raises NotFoundError."""
        with self.world.lock:
            self.world.settle()
            return self.world.find(instance)

    def leftovers(self) -> list[str]:
        """Returns everything that still exists in the project, such as `disks/worker-1`: instances, disks,
        images, static addresses and firewall rules."""
        with self.world.lock:
            self.world.settle()
            return leftovers(self.world)

    def bill(self) -> Bill:
        """Returns the bill of the project until now. The subjects are names of instances, disks,
        images and addresses."""
        with self.world.lock:
            return bill_of(self.world, self.world.settle())

    def interrupt(self, instance: str) -> None:
        """Preempts a Spot instance, which is given by its name or id: it gets its notice, and is stopped or
        deleted after at most 30 seconds."""
        with self.world.lock:
            self.world.preempt(instance, self.world.settle())

    def break_machine(self, instance: str) -> None:
        """The machine dies, but Compute Engine shows RUNNING."""
        with self.world.lock:
            self.world.die(instance, self.world.settle())

    def fail_hardware(self, instance: str) -> None:
        """The host of an instance fails. The instance is stopped, or runs on if it has
        `automaticRestart`."""
        with self.world.lock:
            self.world.fail_hardware(instance, self.world.settle())

    def shut_down(self, instance: str) -> None:
        """The machine shuts itself down, as by `shutdown -h now`. The instance is stopped, not deleted."""
        with self.world.lock:
            self.world.shut_down(instance, self.world.settle())

    def terminate_by_hand(self, instance: str) -> None:
        """Somebody deletes the instance in the console of Google."""
        with self.world.lock:
            self.world.delete(self.world.find(instance), self.world.settle())

    def _commands(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        return {
            "machines": lambda _: [_machine_json(one) for one in self.machines()],
            "interrupt": lambda given: self.interrupt(given["instance"]),
            "break": lambda given: self.break_machine(given["instance"]),
            "fail-hardware": lambda given: self.fail_hardware(given["instance"]),
            "shut-down": lambda given: self.shut_down(given["instance"]),
            "terminate": lambda given: self.terminate_by_hand(given["instance"]),
            "revoke": lambda _: self.revoke(),
            "restore": lambda _: self.restore(),
            "deny": lambda given: self.deny(*given["permissions"]),
        }


def _machine_json(instance: Instance) -> dict[str, Any]:
    return record_json(instance) | {"labels": dict(instance.labels), "metadata": {}, "token": ""}


@contextmanager
def simulated_gce(
    *,
    clock: Clock | None = None,
    faults: CloudFaults | None = None,
    host: MachineHost | None = None,
    seed: int = 0,
    port: int = 0,
) -> Iterator[GceSimulation]:
    """Starts a simulated Compute Engine for the duration of the `with` block. Without arguments, it uses the
    clock of this machine, has no faults, and its machines are only states.

    The ids and the random faults are the same for the same `seed` and the same requests. `port` is the port
    of the server; 0 means any free port.
    """
    simulation = GceSimulation(
        clock or WallClock(), faults or CloudFaults(seed=seed), host or NoMachines(), seed, port
    )
    try:
        yield simulation
    finally:
        simulation.close()
