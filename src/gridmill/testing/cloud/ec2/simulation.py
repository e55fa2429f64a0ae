"""Starts a simulated EC2, and controls it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.errors import InputError
from gridmill.ports.clock import Clock
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.bill import Bill
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.ec2.accounts import bill_of, leftovers
from gridmill.testing.cloud.ec2.actions import Services
from gridmill.testing.cloud.ec2.records import Instance, Principal
from gridmill.testing.cloud.ec2.world import World
from gridmill.testing.cloud.machine_host import MachineHost, NoMachines
from gridmill.testing.cloud.simulation_server import SimulationServer
from gridmill.testing.cloud.wire_simulation import TICK_SECONDS, WallClock, bill_json, record_json


class EC2Simulation:
    """A running simulated EC2 with one account. All its methods can be called from any thread."""

    def __init__(
        self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int, port: int = 0
    ) -> None:
        self.clock = clock
        self.faults = faults
        self.host = host
        self.world = World(clock, faults, host, seed)
        self.services = Services(self.world)
        admin = self.add_user("admin")
        self.access_key, self.secret_key = admin.access_key, admin.secret_key
        self._server = SimulationServer("ec2", self.services.answer, self._control, port)
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="ec2-clock", daemon=True)
        self._ticker.start()

    @property
    def endpoint_url(self) -> str:
        """Returns the address of all simulated services. The signature of a request names the service and the
        region."""
        return self._server.url

    @property
    def requests(self) -> list[tuple[float, str, str]]:
        """Returns the time, the region and the action of each request so far."""
        with self.world.lock:
            return list(self.services.requests)

    def add_user(self, name: str, denied: tuple[str, ...] = ()) -> Principal:
        """Adds a user with own credentials. `denied` are patterns of the actions that the user may not carry
        out, such as `ec2:Terminate*` or `pricing:*`."""
        with self.world.lock:
            number = self.world.random.getrandbits(160)
            principal = Principal(
                access_key=f"AKIA{number % 16**16:016X}",
                secret_key=f"{number:040x}",
                user=name,
                denied=denied,
            )
            self.world.principals[principal.access_key] = principal
            return principal

    def deny(self, *patterns: str, access_key: str = "") -> None:
        """Sets the actions that a user may not carry out. Without patterns, all actions are allowed."""
        self._change_user(access_key, denied=patterns)

    def revoke(self, access_key: str = "") -> None:
        """Revokes the credentials of a user: EC2 answers AuthFailure from now on."""
        self._change_user(access_key, is_revoked=True)

    def restore(self, access_key: str = "") -> None:
        """Makes revoked credentials valid again."""
        self._change_user(access_key, is_revoked=False)

    def _change_user(self, access_key: str, **changes: Any) -> None:  # noqa: ANN401  fields of Principal
        with self.world.lock:
            key = access_key or self.access_key
            self.world.principals[key] = replace(self.world.principals[key], **changes)

    def settle(self) -> None:
        """Makes all changes whose time has come. Requests do this too; call it after a fake clock was
        advanced."""
        with self.world.lock:
            self.world.settle()

    def advance(self, seconds: float) -> None:
        """Lets time pass. Raises InputError if the clock is not a fake one."""
        if not isinstance(self.clock, FakeClock):
            raise InputError("the simulation uses the clock of this machine", hint="Wait instead.")
        with self.world.lock:
            self.clock.advance(seconds)
            self.world.settle()

    def machines(self) -> list[Instance]:
        """Returns all instances of all regions, as they really are: also those that lists do not show."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.instances())

    def running(self) -> list[Instance]:
        """Returns the instances that are pending or running."""
        return [one for one in self.machines() if one.state.uses_quota]

    def leftovers(self) -> list[str]:
        """Returns the ids of everything that still exists in the account: instances, volumes, security
        groups, key pairs and addresses. The defaults of the account are left out."""
        with self.world.lock:
            self.world.settle()
            return leftovers(self.world)

    def bill(self) -> Bill:
        """Returns the bill of the account until now."""
        with self.world.lock:
            return bill_of(self.world, self.world.settle())

    def interrupt(self, instance_id: str) -> None:
        """Gives a spot instance its notice; it is terminated when the notice has passed."""
        with self.world.lock:
            self.world.interrupt(instance_id, self.world.settle())

    def break_machine(self, instance_id: str) -> None:
        """The machine dies, but EC2 says that it runs."""
        with self.world.lock:
            self.world.die(instance_id, self.world.settle())

    def fail_hardware(self, instance_id: str) -> None:
        """EC2 terminates the instance because of a failure."""
        with self.world.lock:
            self.world.fail_hardware(instance_id, self.world.settle())

    def shut_down(self, instance_id: str) -> None:
        """The machine shuts itself down, as by `shutdown -h now`."""
        with self.world.lock:
            self.world.shut_down(instance_id, self.world.settle())

    def terminate_by_hand(self, instance_id: str) -> None:
        """Somebody terminates the instance in the console of AWS."""
        with self.world.lock:
            now = self.world.settle()
            instance = self.world.find(instance_id)
            self.world.terminate(instance, "Client.UserInitiatedShutdown", "User initiated shutdown", now)

    def close(self) -> None:
        """Ends the server and all machines. The call can be repeated."""
        if not self._closed.is_set():
            self._closed.set()
            self._ticker.join()
            self._server.close()
            self.host.close()

    def _tick(self) -> None:
        # Machines are real, so that changes must be made at their time even if nobody asks.
        while not self._closed.wait(TICK_SECONDS):
            self.settle()

    def _control(self, command: str, given: dict[str, Any]) -> Any:  # noqa: ANN401  JSON
        match command:
            case "faults":
                with self.world.lock:
                    self.faults.change(**given)
                    return self.faults.as_json()
            case "bill":
                return bill_json(self.bill())
            case "machines":
                return [_machine_json(one) for one in self.machines()]
            case "leftovers":
                return self.leftovers()
            case "advance":
                self.advance(float(given["seconds"]))
            case "interrupt":
                self.interrupt(given["instance"])
            case "break":
                self.break_machine(given["instance"])
            case "shut-down":
                self.shut_down(given["instance"])
            case "terminate":
                self.terminate_by_hand(given["instance"])
            case "revoke":
                self.revoke()
            case "restore":
                self.restore()
            case "deny":
                self.deny(*given["actions"])
            case _:
                raise InputError(f"{command!r} is not a command of the simulation")
        return {}


def _machine_json(instance: Instance) -> dict[str, Any]:
    return record_json(instance) | {"tags": dict(instance.tags)}


@contextmanager
def simulated_ec2(
    *,
    clock: Clock | None = None,
    faults: CloudFaults | None = None,
    host: MachineHost | None = None,
    seed: int = 0,
    port: int = 0,
) -> Iterator[EC2Simulation]:
    """Starts a simulated EC2 for the duration of the `with` block. Without arguments, it uses the clock of
    this machine, has no faults, and its machines are only states.

    The ids and the random faults are the same for the same `seed` and the same requests. `port` is the port
    of the server; 0 means any free port. The simulation needs the extra `aws`.
    """
    simulation = EC2Simulation(
        clock or WallClock(), faults or CloudFaults(seed=seed), host or NoMachines(), seed, port
    )
    try:
        yield simulation
    finally:
        simulation.close()
