"""This module makes the calls of leases to providers and sites, and applies their results."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from gridmill.control.renting_state import SiteRental, closed_lease
from gridmill.control.steps.lease_records import Renting, put_lease
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import Lease, TryProblem
from gridmill.domain.machine import Machine, MachineState, Offer, Quota
from gridmill.domain.machine_image import MachineImage
from gridmill.errors import (
    CredentialsError,
    GridmillError,
    InputError,
    InstallError,
    MachineFaultError,
    NoMachineError,
    QuotaError,
    RefusedError,
    UnavailableError,
    UnfitMachineError,
    explained,
)
from gridmill.ports.cloud import BuildingSite, CloudPort, MachineReport, RentingSite
from gridmill.scheduler.rental_accounts import account_problem
from gridmill.scheduler.rental_calls import Action, Call, id_of
from gridmill.scheduler.rental_list import MachineList
from gridmill.scheduler.rental_results import (
    end_accepted,
    faulty,
    image_built,
    image_failed,
    launched,
    prepared,
    refused,
)

_T = TypeVar("_T")
DELETE_AGAIN_SECONDS = 30.0
"""The seconds after which something is deleted again that the provider still lists."""
TERMINATE_AGAIN_SECONDS = 30.0
"""A machine that has not ended this many seconds after the provider has accepted the request is ended
again."""
MARKET_SECONDS = 300.0
"""The time for which the offers and the quotas of a provider are used."""
_REFUSALS: dict[type[GridmillError], TryProblem] = {
    NoMachineError: TryProblem.NO_MACHINE,
    QuotaError: TryProblem.QUOTA,
    RefusedError: TryProblem.REFUSED,
    InputError: TryProblem.REFUSED,
}
"""The errors after which no machine exists for a request."""


def action_call(port: RentingSite, action: Action, now: float) -> Callable[[], Any]:
    """Return the function that executes an action. The function uses no records of the control node."""
    match action:
        case Action(call=Call.LIST):
            return partial(_list, port.cloud(), port.owner, now)
        case Action(call=Call.LAUNCH, lease=Lease() as lease, launch_try=one) if one is not None:
            return partial(_in_account, port.cloud(), lease, partial(port.launch, lease, one))
        case Action(call=Call.PREPARE, lease=Lease() as lease, machine=machine) if machine is not None:
            return partial(port.prepare_machine, lease, machine)
        case Action(call=Call.BUILD, lease=Lease() as lease, machine=machine) if machine is not None:
            return partial(_build, port, lease, machine)
        case Action(call=Call.TERMINATE, machine=machine) if machine is not None:
            end = partial(port.cloud().terminate, machine)
            return partial(_in_account, port.cloud(), action.lease, end)
        case Action(call=Call.DELETE, leftover=left) if left is not None:
            return partial(port.cloud().delete, left)
        case Action(call=Call.FORGET, lease=Lease() as lease):
            return partial(port.forget_lease, lease)
        case _:
            raise ValueError(f"{action.id} is not complete")


def _build(port: RentingSite, lease: Lease, machine: Machine) -> MachineImage:
    if not isinstance(port, BuildingSite):
        raise RefusedError(f"the site {lease.provider} builds no images")
    return port.build_image(lease, machine)


def _list(cloud: CloudPort, owner: str, at: float) -> MachineList:
    account = cloud.account_name()
    listed = MachineList(
        at=at, machines=cloud.machines(owner), leftovers=cloud.leftovers(owner), account=account
    )
    if cloud.account_name() != account:
        raise UnavailableError(f"the credentials changed from the account {account} to another account")
    return listed


def _in_account(cloud: CloudPort, lease: Lease | None, act: Callable[[], _T]) -> _T:
    """Call a function of the provider if the credentials belong to the account of the lease. In another
    account, the machine to end does not exist, and a repeated request rents a second machine."""
    if lease is not None and lease.account:
        problem = account_problem(lease, cloud.account_name())
        if problem:
            raise UnavailableError(problem)
    return act()


def finish_call(renting: Renting, site: str, rental: SiteRental, action: Action, done: Future[Any]) -> None:
    """Apply the result of a call to the lease as it is now."""
    rental.running.discard(action.id)
    if action.call is Call.LAUNCH:
        # before anything can fail, because an unexpected error may also follow a request that was received
        rental.sent[action.key] = renting.now()
        rental.repeats[action.key] = rental.repeats.get(action.key, 0) + 1
    error = done.exception()
    if error is not None and not isinstance(error, GridmillError):
        done.result()
    if error is None and action.call is not Call.FORGET:
        rental.succeeded(action.id)
        rental.problems.pop(action.id, None)
    match action.call:
        case Call.LIST:
            _listed(renting, rental, done)
        case Call.LAUNCH:
            _launched(renting, rental, action, done)
        case Call.PREPARE:
            _prepared(renting, rental, action, done)
        case Call.BUILD:
            _built(renting, rental, action, done)
        case Call.TERMINATE:
            _terminated(renting, rental, action, done)
        case Call.DELETE if error is not None:
            _note_problem(renting, rental, action, error)
        case Call.DELETE:
            # the last list still names the leftover, so that the call would be repeated at once
            rental.not_before[action.id] = renting.now() + DELETE_AGAIN_SECONDS
        case _:
            pass


def _change(renting: Renting, rental: SiteRental, action: Action, act: Callable[[Lease], Lease]) -> None:
    """Apply a function to the lease of an action, as the lease is now."""
    key = action.lease.id if action.lease is not None else ""
    lease = renting.ledger.snapshot.leases.get(key)
    if lease is not None:
        transaction = renting.ledger.begin(renting.now())
        put_lease(renting, transaction, rental, act(lease))
        renting.ledger.stage(transaction)


def _note_problem(renting: Renting, rental: SiteRental, action: Action, error: BaseException) -> None:
    """Show the error of a call at its lease, or at the site if no open lease has the machine. The first
    failure of a call is not shown, because a repeated call often succeeds."""
    if rental.failures.get(action.id, 0) < 2 and not isinstance(error, CredentialsError):
        return
    text = explained(error) if isinstance(error, GridmillError) else str(error)
    if action.lease is None:
        rental.problems[action.id] = f"{action.key}: {_DOING[action.call]}: {text}"
    else:
        message = f"{_DOING[action.call]}: {text}"
        _change(renting, rental, action, partial(_with_problem, message))


def _with_problem(message: str, lease: Lease) -> Lease:
    return replace(lease, problem=message)


_DOING = {
    Call.LAUNCH: "a machine cannot be requested now",
    Call.PREPARE: "its machine cannot be prepared now",
    Call.BUILD: "its image cannot be built now",
    Call.TERMINATE: "the machine cannot be ended now",
    Call.DELETE: "a resource of the provider cannot be deleted now",
}


def _listed(renting: Renting, rental: SiteRental, done: Future[MachineList]) -> None:
    """Use the list of the provider. Numbers of leases that the list names are not used again, because the
    store may be an old copy."""
    try:
        latest = done.result()
    except GridmillError as error:
        rental.problems["list"] = f"the provider's machines cannot be listed: {explained(error)}"
        return
    rental.problems.pop("list", None)
    rental.latest = latest
    for machine in latest.machines:
        if machine.state is not MachineState.ENDED and machine.token:
            rental.seen[machine.token] = latest.at
    named = {one.lease for one in latest.machines} | {one.lease for one in latest.leftovers}
    named -= {""}
    for name in named:
        prefix, _, number = name.rpartition("-")
        if prefix == "lease" and number.isdecimal():
            renting.counters.used("lease", int(number))
    for name in named - renting.ledger.snapshot.leases.keys() - rental.closed.keys():
        lease = renting.ledger.read(Lease, name)
        if lease is not None and not lease.is_open:
            rental.closed[name] = closed_lease(lease)
    _keep_problems(rental, latest)


def _keep_problems(rental: SiteRental, latest: MachineList) -> None:
    """Remove the problems with machines and resources that the provider does not list any more."""
    alive = {one.id for one in latest.machines if one.state is not MachineState.ENDED}
    present = {id_of(Call.TERMINATE, key) for key in alive}
    present |= {id_of(Call.DELETE, one.id) for one in latest.leftovers}
    for key in [one for one in rental.problems if one.startswith(_ENDINGS) and one not in present]:
        del rental.problems[key]


_ENDINGS = (f"{Call.TERMINATE} ", f"{Call.DELETE} ")


def _launched(renting: Renting, rental: SiteRental, action: Action, done: Future[Any]) -> None:
    now = renting.now()
    try:
        machine = done.result()
    except GridmillError as error:
        problem = next((each for kind, each in _REFUSALS.items() if isinstance(error, kind)), None)
        if problem is None or isinstance(error, UnavailableError):
            _note_problem(renting, rental, action, error)
        else:
            message = error.message
            _change(renting, rental, action, lambda one: refused(one, action.key, problem, message, now))
        return
    _change(renting, rental, action, lambda one: launched(one, action.key, machine, now))


def _prepared(renting: Renting, rental: SiteRental, action: Action, done: Future[Any]) -> None:
    now = renting.now()
    try:
        report = done.result()
    except UnfitMachineError as error:
        why = explained(error)
        _change(renting, rental, action, lambda one: faulty(one, action.key, why, TryProblem.UNFIT))
    except MachineFaultError as error:
        message = error.message
        _change(renting, rental, action, lambda one: faulty(one, action.key, message))
    except UnavailableError as error:
        # after another error, the machine still boots
        if isinstance(error, (CredentialsError, InstallError)):
            _note_problem(renting, rental, action, error)
    except GridmillError as error:
        _note_problem(renting, rental, action, error)
    else:
        facts = facts_of(report)
        _change(renting, rental, action, lambda one: prepared(one, action.key, report.address, now, facts))


def _built(renting: Renting, rental: SiteRental, action: Action, done: Future[MachineImage]) -> None:
    now = renting.now()
    try:
        image = done.result()
    except UnavailableError as error:
        _note_problem(renting, rental, action, error)
    except GridmillError as error:
        message = explained(error)
        _change(renting, rental, action, lambda one: image_failed(one, action.key, message, now))
    else:
        _change(renting, rental, action, lambda one: image_built(one, action.key, image.id, now))


def facts_of(report: MachineReport) -> Mapping[str, str]:
    """Return the facts about a prepared machine that are shown with its lease."""
    facts = {"gpus": ", ".join(report.gpus), "driver": report.driver, "installed": report.installed}
    facts |= {f"{phase} seconds": f"{seconds:.1f}" for phase, seconds in report.seconds.items()}
    return {name: text for name, text in facts.items() if text}


def _terminated(renting: Renting, rental: SiteRental, action: Action, done: Future[None]) -> None:
    now = renting.now()
    try:
        done.result()
    except GridmillError as error:
        _note_problem(renting, rental, action, error)
        return
    rental.not_before[action.id] = now + TERMINATE_AGAIN_SECONDS
    _change(renting, rental, action, lambda one: end_accepted(one, action.key, now))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketReading:
    """The offers and quotas that a provider reported."""

    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...]


def market_call(
    port: RentingSite, rental: SiteRental, wanted: frozenset[tuple[str, str]], now: float
) -> tuple[Callable[[], MarketReading], float] | None:
    """Return the function that reads the offers and quotas for these pairs of a region and a type, and the
    seconds until it may be called. The result is None if nothing has to be read."""
    if not wanted:
        return None
    is_known = rental.market_at is not None and wanted <= rental.market_wanted
    wait = (rental.market_at or now) + MARKET_SECONDS - now if is_known else 0.0
    wait = max(wait, rental.not_before.get("market", now) - now)
    return partial(_read_market, port.cloud(), wanted | rental.market_wanted), wait


def _read_market(cloud: CloudPort, wanted: frozenset[tuple[str, str]]) -> MarketReading:
    offers = {
        (offer.region, offer.instance_type): offer
        for region, instance_type in sorted(wanted)
        for offer in cloud.offers(region, instance_type)
    }
    quotas: dict[tuple[str, str, bool], Quota] = {}
    with suppress(UnavailableError):  # without quotas, the provider itself refuses machines beyond them
        for region in sorted({region for region, _ in wanted}):
            found = cloud.check_account(region).quotas
            quotas |= {(one.region, one.name, one.spot): one for one in found}
    return MarketReading(offers=tuple(offers.values()), quotas=tuple(quotas.values()))


def finish_market(
    rental: SiteRental, wanted: frozenset[tuple[str, str]], now: float, done: Future[MarketReading]
) -> None:
    """Use the offers and quotas that were read."""
    try:
        reading = done.result()
    except GridmillError as error:
        rental.failed("market", now)
        rental.problems["market"] = f"the provider's offers cannot be read: {explained(error)}"
        return
    rental.succeeded("market")
    rental.problems.pop("market", None)
    rental.offers, rental.quotas = reading.offers, reading.quotas
    rental.market_at, rental.market_wanted = now, rental.market_wanted | wanted
