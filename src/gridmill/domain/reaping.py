"""This module selects the machines and other resources at a provider that `gridmill reap` shows and ends,
without the records of a control node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Leftover, Machine, MachineState
from gridmill.domain.machine_image import MachineImage

RESULTS = "results"
"""The kind of leftovers that are results in a bucket."""


class ReapResult(StrEnum):
    """What happened to a machine or another resource."""

    FOUND = "found"
    """It exists, and it was only listed."""
    KEPT = "kept"
    """It exists, and `--older-than` excludes it, or it is an image or a result that is wanted."""
    ENDED = "ended"
    """The provider has confirmed that it does not exist any more."""
    REMAINS = "remains"
    """It should end, and the provider has not confirmed its end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapOrder:
    """What `gridmill reap` searches for and does. `kind` is the kind of the provider, and `settings` are the
    settings with which its account is opened. An empty `owner` or `lease` means all. Machines that are
    younger than `older_than_seconds` are kept. Images that were built are kept, unless `with_images`.
    `bucket` is the URL of the bucket to which machines export results (empty: it is not searched), and
    `endpoint` the address of its server. Results are kept, unless `with_results`. With `end`, the command
    ends what it finds, and waits at most `wait_seconds` until the provider confirms it."""

    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    lease: str = ""
    older_than_seconds: float | None = None
    end: bool = False
    with_images: bool = False
    bucket: str = ""
    endpoint: str = ""
    with_results: bool = False
    wait_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapItem:
    """A machine or another resource. `kind` is `machine` or the kind of the resource. `age_seconds` is None
    if the provider reports no time. `price_micros` is the price per hour in micro-units of `currency`, or
    None if it is unknown."""

    kind: str
    id: str
    region: str
    owner: str
    lease: str
    result: ReapResult
    state: str = ""
    instance_type: str = ""
    age_seconds: float | None = None
    price_micros: int | None = None
    currency: str = "USD"
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport:
    """The result of `gridmill reap`: everything that was found at the provider `kind`. `ended` shows whether
    the command was asked to end it."""

    kind: str
    ended: bool
    items: tuple[ReapItem, ...]

    def count(self, result: ReapResult) -> int:
        """Return the number of items with this result."""
        return sum(item.result is result for item in self.items)


def reap_command(kind: str, owner: str, lease: str) -> str:
    """Return the command that ends all machines of a lease. The owner is needed because each grid numbers its
    leases from 1. A missing name is replaced by a word in capitals, so that the command never covers more."""
    return f"gridmill reap {kind} --owner {owner or 'GRID'} --lease {lease or 'LEASE'} --yes"


def selected_machines(
    machines: Iterable[Machine], order: ReapOrder, now: float
) -> tuple[tuple[Machine, ...], tuple[Machine, ...]]:
    """Return the machines that exist and that the order selects, and those that are kept because of their
    age. A machine without a time of launch is kept if the order has an age."""
    found: list[Machine] = []
    kept: list[Machine] = []
    for machine in machines:
        if machine.state is MachineState.ENDED or not _matches(machine, order):
            continue
        (found if _is_old(machine.launched, order, now) else kept).append(machine)
    return tuple(found), tuple(kept)


def selected_leftovers(
    leftovers: Iterable[Leftover], machines: Sequence[Machine], order: ReapOrder, now: float
) -> tuple[tuple[Leftover, ...], tuple[Leftover, ...]]:
    """Return the resources that the order selects, and those that are kept. `machines` are all machines that
    the provider lists, also those that have ended.

    A resource is kept if a kept machine has the same lease. If the order has an age and the provider lists no
    machine of the lease, the machine may be about to start: then the resources of the lease are kept unless
    the provider reports the time of creation of at least one of them, and all reported times are old."""
    leftovers = tuple(leftovers)
    ages: dict[tuple[str, str], list[bool]] = {}
    for machine in machines:
        old = machine.state is MachineState.ENDED or _is_old(machine.launched, order, now)
        ages.setdefault((machine.owner, machine.lease), []).append(old)
    with_machine = set(ages)
    for leftover in leftovers:
        key = (leftover.owner, leftover.lease)
        if key not in with_machine and leftover.created is not None:
            ages.setdefault(key, []).append(_is_old(leftover.created, order, now))
    found: list[Leftover] = []
    kept: list[Leftover] = []
    for leftover in leftovers:
        if not _matches(leftover, order):
            continue
        known = ages.get((leftover.owner, leftover.lease), [])
        is_old = all(known) and (bool(known) or order.older_than_seconds is None)
        (found if is_old else kept).append(leftover)
    return tuple(found), tuple(kept)


def selected_images(
    images: Iterable[MachineImage], order: ReapOrder, now: float
) -> tuple[tuple[MachineImage, ...], tuple[MachineImage, ...]]:
    """Return the finished images that the order deletes, and those that are kept. An image without a time of
    creation is kept if the order has an age. An unfinished image is a leftover of its lease, and is not
    returned."""
    found: list[MachineImage] = []
    kept: list[MachineImage] = []
    for image in images:
        if image.lease or order.owner not in ("", image.owner) or order.lease not in ("", image.build):
            continue
        is_old = _is_old(image.created, order, now)
        (found if order.with_images and is_old else kept).append(image)
    return tuple(found), tuple(kept)


def selected_results(
    results: Iterable[Leftover], machines: Iterable[Machine], order: ReapOrder, now: float
) -> tuple[tuple[Leftover, ...], tuple[Leftover, ...]]:
    """Return the results in the bucket that the order deletes, and those that are kept. The results of a
    lease are always kept while the provider lists a machine of the lease that has not ended."""
    alive = {(one.owner, one.lease) for one in machines if one.state is not MachineState.ENDED}
    found: list[Leftover] = []
    kept: list[Leftover] = []
    for one in results:
        if not _matches(one, order):
            continue
        is_over = (one.owner, one.lease) not in alive and _is_old(one.created, order, now)
        (found if order.with_results and is_over else kept).append(one)
    return tuple(found), tuple(kept)


def _matches(one: Machine | Leftover, order: ReapOrder) -> bool:
    return order.owner in ("", one.owner) and order.lease in ("", one.lease)


def _is_old(launched: float | None, order: ReapOrder, now: float) -> bool:
    if order.older_than_seconds is None:
        return True
    return launched is not None and now - launched >= order.older_than_seconds
