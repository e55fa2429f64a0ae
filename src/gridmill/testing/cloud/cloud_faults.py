"""The faults of a simulated cloud. They can be changed while it runs."""

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from gridmill.domain.frozen import dataclass, replace
from gridmill.errors import InputError


class Outcome(StrEnum):
    """How a request ends that a planned fault applies to."""

    ERROR = "error"
    """The request has no effect, and its answer is the given error."""
    ERROR_AFTER = "error-after"
    """The request has its effect, but its answer is the given error."""
    LOST_BEFORE = "lost-before"
    """The connection is closed before the request has an effect."""
    LOST = "lost"
    """The request has its effect, but the connection is closed before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """A fault for the next `count` requests whose action matches the pattern `action`, such as `RunInstances`
    or `Describe*`. `region` and `key` are patterns too."""

    action: str = "*"
    region: str = "*"
    key: str = "*"
    outcome: Outcome = Outcome.ERROR
    code: str = "InternalError"
    message: str = "An internal error has occurred."
    status: int = 500
    count: int = 1

    def matches(self, action: str, region: str, key: str) -> bool:
        """Returns whether the fault is for a request."""
        given = ((action, self.action), (region, self.region), (key, self.key))
        return all(fnmatchcase(value, pattern) for value, pattern in given)


UNAVAILABLE = PlannedFault(code="Unavailable", message="The server is overloaded.", status=503)
INTERNAL = PlannedFault()


@dataclass(slots=True, kw_only=True)
class CloudFaults:
    """The faults of a simulated cloud. Every field can be set while the cloud runs. Times are seconds of the
    clock of the simulation. The random faults are the same for the same `seed` and the same requests.

    Patterns for places are `TYPE@ZONE` for capacities, such as `g5.xlarge@us-east-1a`, `g5.*@*` or
    `spot:*@us-east-1*`, and `QUOTA-CODE@REGION` for quotas.
    """

    seed: int = 0
    list_lag_seconds: float = 0.0
    """Each list shows the state of an earlier time: up to so long ago, drawn for each request."""
    invisible_seconds: float = 0.0
    """So long after its creation, a resource is in no list, and its id is not found."""
    pending_seconds: float = 0.0
    boot_seconds: float = 0.0
    """How long a machine that runs already takes until SSH answers, beyond what its boot really takes."""
    shutting_down_seconds: float = 0.0
    notice_seconds: float = 120.0
    image_seconds: float = 0.0
    """How long a new machine image and its snapshots are pending."""
    failing_images: int = 0
    """How many of the next machine images end in the state `failed`."""
    planned: list[PlannedFault] = field(default_factory=list)
    error_rate: float = 0.0
    """The share of requests that are answered with status 500 or 503, with or without an effect."""
    lost_rate: float = 0.0
    """The share of requests whose answer is lost after their effect."""
    capacity: dict[str, int] = field(default_factory=dict)
    """How many instances may run in a place. The first pattern that matches counts; no pattern: any
    number."""
    quotas: dict[str, int] = field(default_factory=dict)
    """The virtual processors of a quota. The first pattern that matches counts."""
    throttling: bool = False
    """Whether requests are limited by token buckets as documented."""
    regions_down: list[str] = field(default_factory=list)
    """Regions whose requests get no answer: the connection is closed."""
    regions_gone: list[str] = field(default_factory=list)
    """Regions that the account may no longer use: the credentials are refused there."""
    shutdown_terminates: bool = True
    """If false, a shutdown from inside a machine stops it, even where it should terminate it."""
    never_boot_rate: float = 0.0
    """The share of machines that run but never open SSH."""
    never_boot_next: int = 0
    """How many of the next machines never open SSH."""
    spot_lifetime_seconds: float = 0.0
    """The mean of the exponential time until a spot machine gets its notice; 0 for never."""
    lifetime_seconds: float = 0.0
    """The mean of the exponential time until any machine dies; 0 for never."""
    unpriced_types: list[str] = field(default_factory=list)
    """Patterns of instance types that have no price in the price list."""
    dns_support: bool = True
    """Whether the default networks use the name server of AWS."""
    clock_ahead_seconds: float = 0.0
    """How far the clock of the service is ahead of the clock of this machine, for signatures."""
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def plan(self, *faults: PlannedFault) -> None:
        """Adds faults for the next requests."""
        self.planned.extend(faults)

    def lose_answers(self, action: str, count: int = 1) -> None:
        """The next `count` requests for an action have their effect, but get no answer."""
        self.plan(PlannedFault(action=action, outcome=Outcome.LOST, count=count))

    def fail(self, action: str, code: str, *, status: int = 400, message: str = "", count: int = 1) -> None:
        """The next `count` requests for an action are answered with an error, and have no effect."""
        text = message or f"The simulation was told to answer {code}."
        self.plan(PlannedFault(action=action, code=code, status=status, message=text, count=count))

    def next_fault(self, action: str, region: str, key: str) -> PlannedFault | None:
        """Returns the fault for a request, and counts it. A planned fault comes before a random one."""
        for index, fault in enumerate(self.planned):
            if fault.matches(action, region, key):
                del self.planned[index]
                if fault.count > 1:
                    self.planned.insert(index, replace(fault, count=fault.count - 1))
                return fault
        return self._random_fault()

    def _random_fault(self) -> PlannedFault | None:
        drawn = self.random.random() if self.error_rate or self.lost_rate else 1.0
        if drawn < self.lost_rate:
            return PlannedFault(outcome=Outcome.LOST)
        if drawn < self.lost_rate + self.error_rate:
            base = self.random.choice((UNAVAILABLE, INTERNAL))
            outcome = self.random.choice((Outcome.ERROR, Outcome.ERROR_AFTER))
            return PlannedFault(outcome=outcome, code=base.code, message=base.message, status=base.status)
        return None

    def lag_seconds(self) -> float:
        """Draws how old the answer of a list is."""
        return self.random.uniform(0.0, self.list_lag_seconds) if self.list_lag_seconds else 0.0

    def invisible(self) -> float:
        """Draws how long a new resource is invisible."""
        return self.random.uniform(0.5, 1.0) * self.invisible_seconds if self.invisible_seconds else 0.0

    def boots(self) -> bool:
        """Draws whether a new machine ever opens SSH."""
        if self.never_boot_next > 0:
            self.never_boot_next -= 1
            return False
        return not (self.never_boot_rate and self.random.random() < self.never_boot_rate)

    def death_after(self, mean_seconds: float) -> float | None:
        """Draws a time until an interruption or a death, or returns None for never."""
        return self.random.expovariate(1.0 / mean_seconds) if mean_seconds else None

    def capacity_of(self, kind: str, zone: str, *, spot: bool) -> int | None:
        """Returns how many instances of a type may run in a zone, or None for any number."""
        for pattern, count in self.capacity.items():
            wants_spot = pattern.startswith("spot:")
            if (spot or not wants_spot) and fnmatchcase(f"{kind}@{zone}", pattern.removeprefix("spot:")):
                return count
        return None

    def quota(self, code: str, region: str, default: int) -> int:
        """Returns the virtual processors of a quota in a region."""
        for pattern, count in self.quotas.items():
            if fnmatchcase(f"{code}@{region}", pattern if "@" in pattern else f"{pattern}@*"):
                return count
        return default

    def has_price(self, kind: str) -> bool:
        """Returns whether the price list has an instance type."""
        return not any(fnmatchcase(kind, pattern) for pattern in self.unpriced_types)

    def change(self, **values: Any) -> None:  # noqa: ANN401  as they come from JSON
        """Sets the given fields. `planned` is a list of objects with the fields of PlannedFault.

        Raises InputError for a field that does not exist.
        """
        for name, value in values.items():
            if name not in self._names():
                raise InputError(f"{name!r} is not a fault", hint=f"Faults: {', '.join(self._names())}.")
            setattr(self, name, _planned(value) if name == "planned" else value)
            if name == "seed":
                self.random = Random(value)

    def as_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {name: getattr(self, name) for name in self._names() if name != "planned"}

    def _names(self) -> Sequence[str]:
        return [name for name in self.__dataclass_fields__ if name != "random"]


def _planned(values: Sequence[Any]) -> list[PlannedFault]:
    return [
        one
        if isinstance(one, PlannedFault)
        else PlannedFault(**one | {"outcome": Outcome(one.get("outcome", "error"))})
        for one in values
    ]


@dataclass(slots=True, kw_only=True)
class BatchFaults(CloudFaults):
    """The faults of a simulated batch service, in addition to the faults of CloudFaults. Times are seconds of
    the clock of the simulation."""

    queued_seconds: float = 0.0
    """How long a new job waits until the scheduler sees it."""
    starting_seconds: float = 0.0
    """How long a container takes from its placement to its start."""
    cancel_seconds: float = 0.0
    """How long a waiting job is still shown in its old state after it was canceled."""
    idle_seconds: float = 0.0
    """How long a machine without a job is kept, and charged."""
    stuck_next: int = 0
    """How many of the next jobs wait for ever, without a reason from the service."""
    shows_reasons: bool = True
    """Whether the service shows why a job waits. If false, the job only waits."""
    lost_after_seconds: float = 0.0
    """How long the service takes to see that a machine has died. Its jobs are shown as running until then."""
    never_starting_next: int = 0
    """How many of the next containers never start: their job stays in the state before `running`."""
