"""This module estimates the time and the cost of a job on a rented machine, and chooses between resources by
a deadline and a budget.

The estimate of the time until a machine is ready comes from earlier leases. The times of the transfers and of
the job come from the forecasts that all sites use.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import median

from gridmill.domain.amounts import about
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import HOUR_SECONDS, Lease
from gridmill.domain.rental_estimate import (
    Charges,
    CostKind,
    Phase,
    RentalEstimate,
    show_money,
)
from gridmill.domain.resource import TransferEstimate

BOOT_SECONDS = 180.0
"""The assumed seconds until a machine is ready, before the first machine of the provider was rented."""
RELEASE_SECONDS = 5.0
"""The assumed seconds until the provider has confirmed the end of a machine."""
LEAST_BILLED_SECONDS = 60.0
RECENT = 20
"""The number of earlier machines from which the time of the next boot is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBoot:
    """The seconds until a machine of the same type, or of another type of the provider, was ready; `machines`
    is the number of measured machines."""

    seconds: float
    machines: int
    same_type: bool


def measured_boot(leases: Iterable[Lease], provider: str, instance_type: str) -> MeasuredBoot | None:
    """Return the median of the boot times of the last machines of this type. If there are none, the machines
    of other types of the provider are used. The result is None if the provider has rented no machine that
    became ready."""
    times = sorted(
        (lease.ready, lease.ready - last.at, last.instance_type)
        for lease in leases
        if lease.provider == provider
        and lease.ready is not None
        and (last := lease.last_try) is not None
        and lease.ready >= last.at
    )
    same = [seconds for _, seconds, kind in times if kind == instance_type][-RECENT:]
    other = [seconds for _, seconds, _ in times][-RECENT:]
    chosen = same or other
    if not chosen:
        return None
    return MeasuredBoot(seconds=median(chosen), machines=len(chosen), same_type=bool(same))


def estimate(
    *,
    instance_type: str,
    region: str,
    price_micros: int | None,
    currency: str,
    boot: MeasuredBoot | None,
    run_seconds: float | None,
    transfer: TransferEstimate | None,
    charges: Charges | None,
    disk_bytes: int,
) -> RentalEstimate:
    """Return the estimate for one job that is alone on one machine. `price_micros` is the price of the
    machine per hour. Everything that is missing is listed in the result. Charges in another currency than
    the price count as unknown."""
    if charges is not None and charges.currency != currency:
        charges = None
    seconds = _phases(boot, run_seconds, transfer)
    whole = sum(seconds.values()) if len(seconds) == len(Phase) else None
    assumed = [] if boot is not None else [f"{about(BOOT_SECONDS)} until the machine is ready"]
    if boot is not None and not boot.same_type:
        assumed.append("the boot time of machines of other types")
    return RentalEstimate(
        instance_type=instance_type,
        region=region,
        price_micros=price_micros,
        seconds=seconds,
        micros=_costs(whole, price_micros, transfer, charges, disk_bytes),
        currency=currency,
        unknown=tuple(_unknown(price_micros, run_seconds, transfer, charges)),
        assumed=tuple(assumed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTime:
    """What a job saves because it uses the machine of an earlier job: with `is_up`, the boot of a machine,
    and the seconds of its upload during which the earlier `job` runs."""

    is_up: bool = False
    upload_seconds: float = 0.0
    job: str = ""


NOTHING_SAVED = SavedTime()


def with_saved(rental: RentalEstimate, saved: SavedTime) -> RentalEstimate:
    """Return the estimate of a job on the machine of an earlier job. The costs that grow with the time
    decrease in proportion; the least billed time belongs to the first job of the machine."""
    before = rental.total_seconds
    seconds = {
        **rental.seconds,
        Phase.BOOT: 0.0,
        Phase.UPLOAD: max(0.0, rental.seconds.get(Phase.UPLOAD, 0.0) - saved.upload_seconds),
    }
    micros = dict(rental.micros)
    if before is not None:
        share = sum(seconds.values()) / max(LEAST_BILLED_SECONDS, before)
        for kind in {CostKind.MACHINE, CostKind.DISK, CostKind.ADDRESS} & micros.keys():
            micros[kind] = ceil(micros[kind] * share)
    early = f"; its inputs are transferred while {saved.job} runs" if saved.upload_seconds else ""
    assumed = (f"the machine of {saved.job}{early}",)
    return replace(rental, seconds=seconds, micros=micros, assumed=assumed)


def _phases(
    boot: MeasuredBoot | None, run_seconds: float | None, transfer: TransferEstimate | None
) -> Mapping[Phase, float]:
    upload = 0.0 if transfer is None else transfer.upload_seconds
    download = 0.0 if transfer is None else transfer.download_seconds
    phases = {
        Phase.BOOT: BOOT_SECONDS if boot is None else boot.seconds,
        Phase.UPLOAD: upload,
        Phase.RUN: run_seconds,
        Phase.DOWNLOAD: download,
        Phase.RELEASE: RELEASE_SECONDS,
    }
    return {phase: seconds for phase, seconds in phases.items() if seconds is not None}


def _costs(
    seconds: float | None,
    price_micros: int | None,
    transfer: TransferEstimate | None,
    charges: Charges | None,
    disk_bytes: int,
) -> Mapping[CostKind, int]:
    """Return the known costs. All are rounded up, because a bill is never lower than the exact amount."""
    costs: dict[CostKind, int] = {}
    if seconds is not None:
        billed = max(LEAST_BILLED_SECONDS, seconds)
        if price_micros is not None:
            costs[CostKind.MACHINE] = ceil(price_micros * billed / HOUR_SECONDS)
        if charges is not None:
            costs[CostKind.DISK] = charges.disk_cost_micros(disk_bytes, billed)
            costs[CostKind.ADDRESS] = charges.address_cost_micros(billed)
    sent = 0 if transfer is None else transfer.download_bytes
    if charges is not None and sent is not None:
        costs[CostKind.EGRESS] = charges.egress_cost_micros(sent)
    return {kind: costs[kind] for kind in CostKind if kind in costs}


def _unknown(
    price_micros: int | None,
    run_seconds: float | None,
    transfer: TransferEstimate | None,
    charges: Charges | None,
) -> list[str]:
    unknown = [] if price_micros is not None else ["the price of the machine"]
    if run_seconds is None:
        unknown.append("the duration of the job, until it has run once")
    unknown.extend(transfer.unknown if transfer is not None else ())
    if charges is None:
        unknown.append("the provider's prices for disks, addresses and data")
    return unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAndCost:
    """A resource on which a job may run, with the expected seconds until its result is at home and the
    expected cost in micro-units. A value is None if it is unknown. Machines that are not rented cost 0."""

    resource: str
    seconds: float | None
    micros: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TermsChoice:
    """The resource that meets the deadline and the budget of a job, and the reason as a sentence. If
    `refused` is set, no resource meets them, and the job must not start."""

    resource: str
    why: str
    refused: str = ""


def choose_within(
    options: Sequence[TimeAndCost],
    *,
    deadline_seconds: float | None = None,
    budget_micros: int | None = None,
    currency: str = "USD",
) -> TermsChoice:
    """Return the cheapest resource that meets the deadline, or the quickest one if there is no deadline.

    An unknown cost never meets a budget. If no resource is expected to meet the deadline, the quickest
    resource within the budget is chosen, because a late result is better than none. If the time of a
    resource is unknown, this resource comes after all resources whose time is known. `options` must not be
    empty.
    """
    affordable = [one for one in options if _is_affordable(one, budget_micros)]
    if not affordable:
        return TermsChoice(
            resource=options[0].resource, why="", refused=_too_dear(options, budget_micros or 0, currency)
        )
    if deadline_seconds is None:
        best = min(affordable, key=_by_time)
        return TermsChoice(resource=best.resource, why="the earliest expected end within the budget")
    timely = [one for one in affordable if one.seconds is not None and one.seconds <= deadline_seconds]
    if timely:
        best = min(timely, key=_by_cost)
        return TermsChoice(resource=best.resource, why="the cheapest resource that meets the deadline")
    best = min(affordable, key=_by_time)
    reason = (
        "whether it meets the deadline is not known, because the job was not measured there"
        if best.seconds is None
        else f"the quickest resource, which is expected to miss the deadline by"
        f" {about(best.seconds - deadline_seconds)}"
    )
    return TermsChoice(resource=best.resource, why=reason)


def meets(one: TimeAndCost, *, deadline_seconds: float | None, budget_micros: int | None) -> bool:
    """Return whether a resource is expected to meet the deadline and the budget."""
    is_timely = deadline_seconds is None or (one.seconds is not None and one.seconds <= deadline_seconds)
    return is_timely and _is_affordable(one, budget_micros)


def _is_affordable(one: TimeAndCost, budget_micros: int | None) -> bool:
    return budget_micros is None or (one.micros is not None and one.micros <= budget_micros)


def _by_time(one: TimeAndCost) -> tuple[bool, float, bool, int]:
    return one.seconds is None, one.seconds or 0.0, one.micros is None, one.micros or 0


def _by_cost(one: TimeAndCost) -> tuple[bool, int, float]:
    return one.micros is None, one.micros or 0, one.seconds or 0.0


def _too_dear(options: Sequence[TimeAndCost], budget_micros: int, currency: str) -> str:
    costs = [one.micros for one in options if one.micros is not None]
    if not costs:
        budget = show_money(budget_micros, currency)
        return f"the cost is not known, so that the budget of {budget} may be exceeded"
    return (
        f"the expected cost of {show_money(min(costs), currency)} exceeds the budget of"
        f" {show_money(budget_micros, currency)}"
    )
