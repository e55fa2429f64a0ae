"""What the simulated batch services have in common: the images and containers, and the control of a running
simulation."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

from gridmill.errors import InputError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.containers import Containers, Image
from gridmill.testing.cloud.machine_host import NoMachines
from gridmill.testing.cloud.wire_simulation import CloudWorld, WireSimulation

_SCHEDULE_SECONDS = 1.0
"""How long the scheduler waits before it looks again at those that wait, if it knows of no change."""


class BatchWorld(CloudWorld, ABC):
    """The time, the images and the containers of a simulated account. All its methods must be called with
    `lock`. `changed` is notified when a job or task has a new state. `waiting` has the names of the jobs or
    tasks that wait for a place, the first one first."""

    faults: BatchFaults

    def __init__(self, clock: Clock, faults: BatchFaults, images: Mapping[str, Image], seed: int) -> None:
        super().__init__(clock, faults, NoMachines(), seed)
        self.images = dict(images)
        self.changed = threading.Condition(self.lock)
        self.containers = Containers(clock)
        self.waiting: dict[str, None] = {}
        self._is_dirty = False
        self._scheduled_at = 0.0

    @abstractmethod
    def _schedule(self, now: float) -> None:
        """Gives places to those that wait."""

    def settle(self) -> float:
        """Makes all changes that are due, gives places to those that wait, and returns the time."""
        now = self.now()
        self.agenda.settle(now)
        while self.waiting and (self._is_dirty or now >= self._scheduled_at + _SCHEDULE_SECONDS):
            self._is_dirty, self._scheduled_at = False, now
            self._schedule(now)
            self.agenda.settle(now)
        return now

    def needs_scheduling(self) -> None:
        """Makes the scheduler look at those that wait again."""
        self._is_dirty = True

    def new_id(self, digits: int = 32) -> str:
        """Returns a random number with so many hexadecimal digits."""
        return f"{self.random.getrandbits(4 * digits):0{digits}x}"

    def new_uuid(self) -> str:
        """Returns a random id of the form of a UUID."""
        text = self.new_id()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class BatchSimulation(WireSimulation):
    """A running simulated batch service with one account."""

    def __init__(self, name: str, world: BatchWorld, port: int) -> None:
        self._batch_world = world
        super().__init__(name, world, port)

    def add_image(self, name: str, image: Image) -> None:
        """Adds a container image, or replaces it."""
        with self._lock:
            self._batch_world.images[name] = image

    def _wait_until(self, state: Callable[[], str], wanted: Iterable[str], timeout_seconds: float) -> None:
        """Waits in real time until a state is one of the wanted ones. Raises InputError after the timeout."""
        states = set(wanted)
        with self._lock:
            self._settle()
            if not self._batch_world.changed.wait_for(lambda: state() in states, timeout_seconds):
                raise InputError(f"the state is {state()}, not one of {', '.join(sorted(states))}")

    def close(self) -> None:
        """Ends the server and all containers. The call can be repeated."""
        super().close()
        self._batch_world.containers.close()
