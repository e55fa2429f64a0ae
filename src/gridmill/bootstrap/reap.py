"""Finds and ends the machines and other resources of Gridmill at a provider. Neither a home nor a control
node is needed."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Leftover, Machine, MachineState
from gridmill.domain.machine_image import MachineImage
from gridmill.domain.reaping import (
    RESULTS,
    ReapItem,
    ReapOrder,
    ReapReport,
    ReapResult,
    selected_images,
    selected_leftovers,
    selected_machines,
    selected_results,
)
from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    InputError,
    RefusedError,
    UnavailableError,
)
from gridmill.plugins import find
from gridmill.ports.clock import Clock
from gridmill.ports.cloud import CloudPort, ImageProvider

T = TypeVar("T")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 20.0
"""The shortest and the longest time between two requests for the state of what ends."""


class ResultObjects(Protocol):
    """The results that machines exported to a bucket."""

    def leftovers(self) -> tuple[Leftover, ...]:
        """Return one leftover of kind `results` for each lease. Raises UnavailableError and InputError."""

    def delete(self, leftover: Leftover) -> None:
        """Delete the results of a lease. May be repeated. Raises UnavailableError and RefusedError."""


class _SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def reap(order: ReapOrder) -> ReapReport:
    """Open the account that the order names, and carry out the order. Raises NotFoundError, InputError,
    CredentialsError, UnavailableError."""
    cloud: CloudPort = find("clouds", order.kind)(order.settings, _no_secret)
    options = {"endpoint": order.endpoint} if order.endpoint else {}
    try:
        results = find("machines", "results")(order.bucket, options) if order.bucket else None
        return Reaper(
            cloud=cloud, order=order, clock=_SystemClock(), pause=time.sleep, results=results
        ).reap()
    finally:
        cloud.close()


def _no_secret(name: str) -> str:
    raise InputError(
        f"`gridmill reap` does not read the secret {name}, because it uses no home",
        hint="Set the credentials in the environment variables of the provider, such as AWS_ACCESS_KEY_ID, "
        "GOOGLE_APPLICATION_CREDENTIALS or LAMBDA_API_KEY.",
    )


@dataclass(slots=True, kw_only=True)
class Reaper:
    """One execution of an order. `pause` waits for a number of seconds. `results` are the results in the
    bucket of the order."""

    cloud: CloudPort
    order: ReapOrder
    clock: Clock
    pause: Callable[[float], None]
    results: ResultObjects | None = None

    def reap(self) -> ReapReport:
        """Carry out the order. Raises CredentialsError and UnavailableError if the provider does not list
        its machines within the time of the order."""
        until = self.clock.monotonic() + self.order.wait_seconds
        machines = self._patiently(self.cloud.machines, until)
        leftovers = self._patiently(self.cloud.leftovers, until)
        images = self._patiently(self._all_images, until)
        now = self.clock.now()
        targets, kept = selected_machines(machines, self.order, now)
        resources, kept_resources = selected_leftovers(leftovers, machines, self.order, now)
        unwanted, wanted = selected_images(images, self.order, now)
        in_bucket, problem = self._in_bucket()
        results, kept_results = selected_results(in_bucket, machines, self.order, now)
        resources = (*resources, *map(_leftover, unwanted), *results)
        kept_resources = (*kept_resources, *map(_leftover, wanted), *kept_results)
        problems = self._end(targets, resources, until) if self.order.end else {}
        prices = self._prices((*targets, *kept))
        items = [
            *(self._item(one, self._result(_key(one), problems), problems, prices) for one in targets),
            *(self._item(one, ReapResult.KEPT, {}, prices) for one in kept),
            *(_resource(one, self._result(_key(one), problems), problems) for one in resources),
            *(_resource(one, ReapResult.KEPT, {}) for one in kept_resources),
            *((_unknown_bucket(self.order.bucket, problem),) if problem else ()),
        ]
        return ReapReport(kind=self.order.kind, ended=self.order.end, items=tuple(items))

    def _all_images(self) -> tuple[MachineImage, ...]:
        return self.cloud.images() if isinstance(self.cloud, ImageProvider) else ()

    def _in_bucket(self) -> tuple[tuple[Leftover, ...], str]:
        """Return the results in the bucket, or the reason why they are unknown. The bucket must not keep the
        machines from ending."""
        try:
            return (() if self.results is None else self.results.leftovers()), ""
        except GridmillError as error:
            return (), error.message

    def _delete_one(self, leftover: Leftover) -> None:
        if leftover.kind == RESULTS and self.results is not None:
            self.results.delete(leftover)
        else:
            self.cloud.delete(leftover)

    def _result(self, key: tuple[str, str], problems: Mapping[tuple[str, str], str]) -> ReapResult:
        if not self.order.end:
            return ReapResult.FOUND
        return ReapResult.REMAINS if key in problems else ReapResult.ENDED

    def _patiently(self, call: Callable[[], T], until: float) -> T:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return call()
            except CredentialsError:
                raise
            except UnavailableError:
                if not self.order.end or self.clock.monotonic() + pause > until:
                    raise
            self.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _end(
        self, targets: Sequence[Machine], resources: Sequence[Leftover], until: float
    ) -> dict[tuple[str, str], str]:
        """End everything, and return what remains, with the reasons."""
        machines = {_key(one): one for one in targets}
        left = {_key(one): one for one in resources}
        accepted: dict[tuple[str, str], float] = {}
        pause = FIRST_PAUSE_SECONDS
        while True:
            problems = self._end_machines(machines, accepted)
            problems |= self._delete(left)
            problems |= dict.fromkeys(machines.keys() - problems.keys(), "its end is not confirmed yet")
            if not problems or self.clock.monotonic() + pause > until:
                return problems
            self.pause(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE_SECONDS)
            self._confirm(machines, accepted)

    def _end_machines(
        self, machines: Mapping[tuple[str, str], Machine], accepted: dict[tuple[str, str], float]
    ) -> dict[tuple[str, str], str]:
        problems: dict[tuple[str, str], str] = {}
        for key, machine in machines.items():
            at = self.clock.monotonic()
            problem = _problem_of(partial(self.cloud.terminate, machine))
            if problem:
                problems[key] = problem
            else:
                accepted.setdefault(key, at)
        return problems

    def _delete(self, left: dict[tuple[str, str], Leftover]) -> dict[tuple[str, str], str]:
        problems: dict[tuple[str, str], str] = {}
        for key, leftover in tuple(left.items()):
            problem = _problem_of(partial(self._delete_one, leftover))
            if problem:
                problems[key] = problem
            else:
                del left[key]
        return problems

    def _confirm(
        self, machines: dict[tuple[str, str], Machine], accepted: Mapping[tuple[str, str], float]
    ) -> None:
        """Remove the machines whose end the provider confirms. A machine that is missing in a list has ended
        if the list is so new that the machine would be in it."""
        at = self.clock.monotonic()
        try:
            states = {_key(one): one.state for one in self.cloud.machines()}
        except UnavailableError:
            return
        for key in tuple(machines):
            is_new = key in accepted and at >= accepted[key] + self.cloud.traits.list_lag_seconds
            if states.get(key) is MachineState.ENDED or (key not in states and is_new):
                del machines[key]

    def _prices(self, machines: Sequence[Machine]) -> dict[tuple[str, str, bool], tuple[int | None, str]]:
        """Return the prices per hour by region, type and whether the machine is a spot machine. Prices that
        cannot be read are missing, whatever the reason, because what remains must be reported."""
        prices: dict[tuple[str, str, bool], tuple[int | None, str]] = {}
        for region, name in sorted({(one.region, one.instance_type) for one in machines}):
            try:
                offers = self.cloud.offers(region, name)
            except (GridmillError, ArithmeticError, LookupError, OSError, TypeError, ValueError):
                continue
            for one in offers:
                if one.region == region:
                    prices[region, name, False] = (one.price_micros, one.currency)
                    prices[region, name, True] = (one.spot_price_micros, one.currency)
        return prices

    def _item(
        self,
        machine: Machine,
        result: ReapResult,
        problems: Mapping[tuple[str, str], str],
        prices: Mapping[tuple[str, str, bool], tuple[int | None, str]],
    ) -> ReapItem:
        price, currency = prices.get((machine.region, machine.instance_type, machine.spot), (None, "USD"))
        age = None if machine.launched is None else max(0.0, self.clock.now() - machine.launched)
        return ReapItem(
            kind="machine",
            id=machine.id,
            region=machine.region,
            owner=machine.owner,
            lease=machine.lease,
            result=result,
            state=machine.native_state or machine.state,
            instance_type=machine.instance_type,
            age_seconds=age,
            price_micros=price,
            currency=currency,
            problem=problems.get(_key(machine), ""),
        )


def _leftover(image: MachineImage) -> Leftover:
    """Return a finished image as a resource to delete, with the lease of its build."""
    return Leftover(
        kind="image",
        id=image.id,
        region=image.region,
        lease=image.build,
        owner=image.owner,
        created=image.created,
    )


def _unknown_bucket(url: str, problem: str) -> ReapItem:
    return ReapItem(
        kind=RESULTS, id=url, region="", owner="", lease="", result=ReapResult.REMAINS, problem=problem
    )


def _resource(leftover: Leftover, result: ReapResult, problems: Mapping[tuple[str, str], str]) -> ReapItem:
    return ReapItem(
        kind=leftover.kind,
        id=leftover.id,
        region=leftover.region,
        owner=leftover.owner,
        lease=leftover.lease,
        result=result,
        problem=problems.get(_key(leftover), ""),
    )


def _problem_of(call: Callable[[], None]) -> str:
    try:
        call()
    except (ConflictError, UnavailableError, RefusedError) as error:
        return error.message
    return ""


def _key(one: Machine | Leftover) -> tuple[str, str]:
    kind = one.kind if isinstance(one, Leftover) else "machine"
    return f"{kind} {one.region}", one.id
