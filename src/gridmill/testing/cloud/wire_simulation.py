"""What the simulations of all clouds have in common: the time, the machines, the bill, and the control of a
running simulation."""

import heapq
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from ipaddress import IPv4Network
from random import Random
from typing import Any

from gridmill.errors import InputError, UnavailableError
from gridmill.ports.clock import Clock
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.bill import Bill
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.machine_host import MachineHost
from gridmill.testing.cloud.simulation_server import Answer, Respond, SimulationServer

TICK_SECONDS = 0.05


class WallClock:
    """The clock of this machine."""

    def now(self) -> float:
        """See Clock."""
        return time.time()

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()


class Agenda:
    """Changes that are made when their time has come. A change gets its planned time as its argument, not the
    time at which it is made, so that a bill does not depend on how often the simulation is asked."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, change: Callable[[float], None]) -> None:
        """Plans a change at a Unix time in seconds."""
        heapq.heappush(self._changes, (time, next(self._numbers), change))

    def settle(self, now: float) -> None:
        """Makes all changes whose time has come, in the order of their times. A change can plan others."""
        while self._changes and self._changes[0][0] <= now:
            time, _, change = heapq.heappop(self._changes)
            change(time)

    def next_time(self) -> float | None:
        """Returns the time of the next change, or None if no change is planned."""
        return self._changes[0][0] if self._changes else None


class CloudWorld:
    """The time and the machines of a simulated account. All its methods must be called with `lock`."""

    def __init__(self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int) -> None:
        self.clock = clock
        self.faults = faults
        self.host = host
        self.lock = threading.RLock()
        self.agenda = Agenda()
        self.random = Random(seed)
        self.requests: list[tuple[float, str, str]] = []
        """The time, the region or zone, and the action of each request, for tests of rates."""
        self._private = _addresses(host.private_network)
        self._public = _addresses(host.public_network)

    def now(self) -> float:
        """Returns the time of the simulation, as Unix time in seconds."""
        return self.clock.now()

    def wall_time(self) -> float:
        """Returns the clock with which signatures and tokens are compared. It is the clock of this computer,
        which signs, even if the time of the simulation is another one."""
        return time.time() + self.faults.clock_ahead_seconds

    def settle(self) -> float:
        """Makes all changes whose time has come, and returns the time."""
        now = self.now()
        self.agenda.settle(now)
        return now

    def new_address(self) -> str:
        """Returns a private address that no machine had before."""
        return _next_address(self._private)

    def new_public_address(self) -> str:
        """Returns a public address that no machine had before."""
        return _next_address(self._public)


def _addresses(network: IPv4Network) -> Iterator[str]:
    return (str(network.network_address + number) for number in range(10, network.num_addresses - 10))


def _next_address(addresses: Iterator[str]) -> str:
    address = next(addresses, None)
    if address is None:
        raise UnavailableError("the simulation has no more addresses", hint="Start a new simulation.")
    return address


class WireSimulation(ABC):
    """A running simulated cloud with one account, behind an HTTP server. All its methods can be called from
    any thread.

    `faults` are the present faults, `host` has the machines, and `requests` lists the requests so far.
    """

    def __init__(self, name: str, world: CloudWorld, port: int) -> None:
        self.clock = world.clock
        self.faults = world.faults
        self.host = world.host
        self._lock = world.lock
        self._settle = world.settle
        self._requests = world.requests
        self._server = SimulationServer(name, self._respond, self._control, port)
        self._guests = _guest_server(name, self._respond, world.host.address)
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name=f"{name}-clock", daemon=True)
        self._ticker.start()

    @abstractmethod
    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer: ...

    @abstractmethod
    def bill(self) -> Bill:
        """Returns the bill of the account until now."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Returns all resources that still exist in the account, without the defaults of the account."""

    @abstractmethod
    def _commands(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        """Returns the commands of the control paths beyond those of all clouds."""

    @property
    def endpoint_url(self) -> str:
        """Returns the address of all simulated services."""
        return self._server.url

    @property
    def guest_url(self) -> str:
        """Returns the address of all simulated services for the machines. It is empty if the machines are not
        real."""
        return self._guests.url if self._guests is not None else ""

    @property
    def requests(self) -> list[tuple[float, str, str]]:
        """Returns the time, the region or zone, and the action of each request so far."""
        with self._lock:
            return list(self._requests)

    def settle(self) -> None:
        """Makes all changes that are due. Requests do this too; call it after a fake clock was advanced."""
        with self._lock:
            self._settle()

    def advance(self, seconds: float) -> None:
        """Lets time pass. Raises InputError if the clock is not a fake one."""
        if not isinstance(self.clock, FakeClock):
            raise InputError("the simulation uses the clock of this machine", hint="Wait instead.")
        with self._lock:
            self.clock.advance(seconds)
            self._settle()

    def close(self) -> None:
        """Ends the server and all machines. The call can be repeated."""
        if not self._closed.is_set():
            self._closed.set()
            self._ticker.join()
            self._server.close()
            if self._guests is not None:
                self._guests.close()
            self.host.close()

    def _tick(self) -> None:
        # Machines are real, so that changes must be made at their time even if nobody asks.
        while not self._closed.wait(TICK_SECONDS):
            self.settle()

    def _control(self, command: str, given: dict[str, Any]) -> Any:  # noqa: ANN401  JSON
        match command:
            case "faults":
                with self._lock:
                    self.faults.change(**given)
                    return self.faults.as_json()
            case "bill":
                return bill_json(self.bill())
            case "leftovers":
                return self.leftovers()
            case "advance":
                self.advance(float(given["seconds"]))
                return {}
        commands = self._commands()
        if command not in commands:
            raise InputError(f"{command!r} is not a command of the simulation")
        answer = commands[command](given)
        return {} if answer is None else answer


def _guest_server(name: str, respond: Respond, address: str) -> SimulationServer | None:
    # Machines have no way to the loopback of this computer, and they must not control the simulation.
    def refuse(command: str, _: dict[str, Any]) -> Any:  # noqa: ANN401  JSON
        raise InputError(f"a machine cannot control the simulation: {command}")

    return SimulationServer(f"{name}-guests", respond, refuse, address=address) if address else None


def bill_json(bill: Bill) -> dict[str, Any]:
    """Returns a bill as JSON values."""
    return {
        "currency": "USD",
        "total_micros": bill.total_micros,
        "items": [record_json(one) for one in bill.items],
    }


def record_json(record: Any) -> dict[str, Any]:  # noqa: ANN401  any record
    """Returns a record as JSON values, without its user data."""
    return {name: value for name, value in asdict(record).items() if name != "user_data"}
