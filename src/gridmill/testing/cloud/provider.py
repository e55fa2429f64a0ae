"""A simulated provider: CloudPort on a fake clock, with faults that a test adjusts."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import TypeVar

from gridmill.errors import CredentialsError, UnavailableError
from gridmill.ports.cloud import AccountCheck, LaunchRequest, Leftover, Machine, Offer
from gridmill.testing.cloud.account import RecordedCall, SimulatedAccount
from gridmill.testing.cloud.catalog import GIB, SimulatedType
from gridmill.testing.cloud.provider_faults import TokenBucket

T = TypeVar("T")


def ignore(moment: str) -> None:
    """Does nothing at a moment of a call."""


class SimulatedProvider:
    """Implements CloudPort for a simulated account.

    `name` identifies the client in the calls that the account records. `at_call` is called before and after
    the effect of each call with a text such as `launch:before` and `launch:after`; a test raises an
    exception there to kill the control node. While `is_cut` is true, the client has no network.
    """

    def __init__(
        self,
        account: SimulatedAccount,
        *,
        name: str = "client",
        at_call: Callable[[str], None] = ignore,
    ) -> None:
        self.account, self.name, self.at_call = account, name, at_call
        self.traits = account.traits
        self.is_cut = False
        self._bucket = TokenBucket(account.faults.calls_per_second, account.faults.call_burst)
        gap = account.traits.launch_gap_seconds
        self._launches = TokenBucket(1.0 / gap if gap else inf, 1)

    def account_name(self) -> str:
        """See CloudPort. The name is known without a call."""
        return self.account.name

    def check_account(self, region: str) -> AccountCheck:
        """See CloudPort."""
        account = self.account
        quotas = account.catalog.quota_list(region, account.used_quota())
        return self._call("check_account", lambda: AccountCheck(account=account.name, quotas=quotas))

    def offers(self, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """See CloudPort."""
        regions = self.account.catalog.regions
        return self._call(
            "offers",
            lambda: tuple(
                self._offer(kind, where, zones)
                for where, zones in regions.items()
                if where.startswith(region) and where not in self.account.hidden_regions
                for kind in self.account.catalog.types
                if instance_type in ("", kind.name)
            ),
        )

    def _offer(self, kind: SimulatedType, region: str, zones: tuple[str, ...]) -> Offer:
        return Offer(
            provider=self.account.name,
            region=region,
            zones=zones,
            instance_type=kind.name,
            cpus=kind.cpus,
            memory_bytes=kind.memory_bytes,
            gpus=kind.gpus,
            gpu_model=kind.gpu_model,
            gpu_memory_bytes=kind.gpu_memory_bytes,
            architecture=kind.architecture,
            price_micros=kind.price_micros,
            spot_price_micros=kind.spot_price_micros,
        )

    def launch(self, request: LaunchRequest) -> Machine:
        """See CloudPort. The token is used per zone, as at EC2."""
        if not self._launches.take(self.account.clock.monotonic()):
            raise UnavailableError(f"{self.account.name} limits the rate of launches (429)")

        def act() -> Machine:
            return self.account.view(self.account.launch(request), self.account.clock.monotonic())

        return self._call("launch", act, subject=request.token, owner=request.owner, effect=True)

    def machines(self, owner: str = "") -> tuple[Machine, ...]:
        """See CloudPort. Raises UnavailableError if one of the regions does not answer, because the list
        would be incomplete."""
        now = self.account.clock.monotonic()
        away = [region for region, until in self.account.region_away_until.items() if now < until]
        if away:
            raise UnavailableError(f"the region {away[0]} does not answer")
        return self._call("machines", lambda: self.account.listed_machines(owner))

    def terminate(self, machine: Machine) -> None:
        """See CloudPort."""
        one = self.account.every.get(machine.id)
        owner = one.request.owner if one else ""
        self._check_region(machine.region)
        self._call(
            "terminate",
            lambda: self.account.terminate(machine.id),
            subject=machine.id,
            owner=owner,
            effect=True,
        )

    def leftovers(self, owner: str = "") -> tuple[Leftover, ...]:
        """See CloudPort."""
        return self._call("leftovers", lambda: self.account.listed_resources(owner))

    def delete(self, leftover: Leftover) -> None:
        """See CloudPort."""
        known = self.account.resources.get((leftover.kind, leftover.id))
        owner = known.leftover.owner if known else ""
        self._check_region(leftover.region)
        self._call(
            "delete",
            lambda: self.account.delete(leftover),
            subject=f"{leftover.kind} {leftover.id}",
            owner=owner,
            effect=True,
        )

    def close(self) -> None:
        """Does nothing, because there are no connections."""

    def _check_region(self, region: str) -> None:
        if self.account.clock.monotonic() < self.account.region_away_until.get(region, -inf):
            raise UnavailableError(f"the region {region} does not answer")

    def _call(
        self, method: str, act: Callable[[], T], *, subject: str = "", owner: str = "", effect: bool = False
    ) -> T:
        account = self.account
        self.at_call(f"{method}:before")
        fault = self._fault(method)
        at = account.clock.monotonic()
        call = RecordedCall(at=at, client=self.name, method=method, subject=subject, owner=owner)
        if fault == "before":
            account.calls.append(call)
            raise UnavailableError(f"{account.name} answers {method} with a server error (503)")
        with account.lock:
            result = act()
            account.calls.append(replace(call, effect=effect))
        self.at_call(f"{method}:after")
        if fault == "after":
            raise UnavailableError(f"the answer of {account.name} to {method} was lost")
        return result

    def _fault(self, method: str) -> str:
        account, now = self.account, self.account.clock.monotonic()
        if self.is_cut or now < account.away_until:
            raise UnavailableError(f"{account.name} does not answer")
        if now >= account.credentials_end:
            raise CredentialsError(f"{account.name} refuses the credentials")
        self._bucket.limit(account.faults.calls_per_second, account.faults.call_burst)
        if not self._bucket.take(now):
            raise UnavailableError(f"{account.name} limits the rate of calls (429)")
        given = account.faults.next_faults.get(method, ())
        if given:
            account.give_faults(method, *given[1:])
            return given[0]
        draw = account.random.random()
        if draw < account.faults.server_errors:
            return "before"
        return "after" if draw < account.faults.server_errors + account.faults.lost_answers else "none"


class _RealClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def known_settings() -> Mapping[str, str]:
    """Returns the settings of the provider for tests, with their descriptions."""
    return {
        "machines": "the number of machines that exist in the account",
        "faults": "credentials: the provider refuses the credentials",
        "secret": "the name of a secret that the provider reads",
        "cache_folder": "the folder in which offers are cached, which this provider does not use",
    }


def make(settings: Mapping[str, str], resolve: Callable[[str], str]) -> SimulatedProvider:
    """Makes a provider with an account of its own, for tests of commands. The setting `machines` is the
    number of machines that exist in the account; they belong to the grids `grid-0`, `grid-1` and so on. With
    the setting `faults: credentials`, the provider refuses the credentials. The setting `secret` is the name
    of a secret that the provider reads."""
    account = SimulatedAccount(_RealClock(), terminate_seconds=0.0)
    if settings.get("secret"):
        resolve(settings["secret"])
    for number in range(int(settings.get("machines", "0"))):
        account.launch(
            LaunchRequest(
                token=f"token-{number}",
                lease=f"lease-{number}",
                owner=f"grid-{number}",
                region="north-1",
                zone="north-1a",
                instance_type="gpu.one",
                image="",
                spot=False,
                disk_bytes=GIB,
                ssh_public_key="",
                user_data="",
                max_seconds=3600.0,
            )
        )
    if settings.get("faults") == "credentials":
        account.credentials_end = account.clock.monotonic()
    return SimulatedProvider(account)
